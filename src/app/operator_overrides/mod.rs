//! Overrides that operators set at run time: which are known, which are in force, and who changed them.
//!
//! Every replica knows all records, and applies those in force to the policy itself, so that an outage of
//! Redis neither ends nor prolongs an override.
//!
//! | file | contents |
//! |---|---|
//! | `redis_follower` | the task that makes all changes, and follows those of other replicas |
//! | `base_file` | overrides of `--overrides`, beneath all others |
//! | `operator_request` | reading what an operator asks for |
//! | `listing`, `override_metrics` | overrides as JSON and over gRPC; their metrics |
//!
//! Not here: the merge law (`domain`), the effect of an override on limits (`policy`).

pub(super) mod base_file;
pub(super) mod listing;
pub(super) mod operator_request;
pub(super) mod override_metrics;
pub(super) mod redis_follower;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use self::listing::{effect_of, to_event};
use super::wiring::store_setup::ServiceDecider;
use crate::clock::Clock;
use crate::domain::{
    Lock, Micros, OVERRIDES_MAX, OverrideRecord, OverrideTable, TOMBSTONE_LIFETIME, named_enum,
};
use crate::policy::{Fit, OverrideEntry, Policy};

/// Number of changes that are remembered, and that are logged one by one if they take effect together.
const RECENT_CHANGES: usize = 50;
/// Maximum number of requests of operators that wait for the task that makes changes.
const REQUESTS_MAX: usize = 64;

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum ChangeKind {
        /// The override was set.
        Set => "set",
        /// Another override with the same target and kind took its place.
        Replaced => "replaced",
        /// An operator deleted it.
        Deleted => "deleted",
        /// Its time is over.
        Ended => "ended",
        /// A new policy lacks its target.
        Unmatched => "unmatched",
    }
}

/// Overrides that operators set, applied on top of the loaded policy.
#[derive(Debug)]
pub(crate) struct OperatorOverrides {
    decider: Arc<ServiceDecider>,
    state: Lock<OverrideState>,
    /// Time of Redis at a monotonic time; `None` until Redis has replied, and then the wall clock applies.
    redis_clock: Lock<Option<(Micros, Instant)>>,
    /// Monotonic time at which Redis last said what it has; `None` if counters are in memory.
    known_at: Lock<Option<Instant>>,
    requests: mpsc::Sender<ChangeRequest>,
    /// Whether the overrides in Redis were read, or reading them has failed once.
    was_polled: watch::Sender<bool>,
    /// Number of changes by [`ChangeKind`].
    change_counts: [AtomicU64; ChangeKind::ALL.len()],
}

#[derive(Debug)]
struct OverrideState {
    /// Policy as loaded, without overrides.
    loaded: Arc<Policy>,
    table: OverrideTable,
    /// Overrides of the file, by id; each applies if no record has its id.
    base: BTreeMap<String, Arc<OverrideEntry>>,
    /// Whether the file's last content is invalid, so that the one before applies.
    is_base_broken: bool,
    in_force: BTreeMap<String, Arc<OverrideEntry>>,
    /// Earliest end of an override in force.
    next_end: Option<Micros>,
    /// Latest changes, the last one first.
    recent: VecDeque<Value>,
}

/// Changes that an operator asks for: ids, and the content of each override, empty to delete it.
#[derive(Debug)]
pub(crate) struct ChangeRequest {
    changes: Vec<(String, String)>,
    /// Receives why the changes apply to this replica only; `None` if they apply to all.
    reply: oneshot::Sender<Option<String>>,
}

impl OverrideState {
    /// Returns the override with this id that applies now.
    fn effective(&self, id: &str, now: Micros) -> Option<Arc<OverrideEntry>> {
        let applies = |entry: &Arc<OverrideEntry>| entry.until.is_none_or(|until| until > now);
        let set = match self.table.get(id) {
            Some(record) if record.is_tombstone() => return None,
            Some(record) => parse_record(id, record),
            None => None,
        };
        set.filter(applies).or_else(|| self.base.get(id).filter(|entry| applies(entry)).cloned())
    }
}

/// Returns the override of a record, or logs why this replica cannot read it. Another version of
/// Tidegate may have written it.
fn parse_record(id: &str, record: &OverrideRecord) -> Option<Arc<OverrideEntry>> {
    let entry = OverrideEntry::from_json(&record.body);
    if let Err(reason) = &entry {
        tracing::warn!(id, %reason, "cannot read an override, it does not apply");
    }
    entry.ok().map(Arc::new)
}

impl OperatorOverrides {
    /// Creates the overrides of the decider's policy: none. Returns them with the requests that
    /// [`redis_follower::run`] carries out.
    pub(crate) fn new(decider: &Arc<ServiceDecider>) -> (Arc<OperatorOverrides>, Requests) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let state = OverrideState {
            loaded: Arc::clone(&decider.policy()),
            table: OverrideTable::default(),
            base: BTreeMap::new(),
            is_base_broken: false,
            in_force: BTreeMap::new(),
            next_end: None,
            recent: VecDeque::new(),
        };
        let overrides = OperatorOverrides {
            decider: Arc::clone(decider),
            state: Lock::new(state),
            redis_clock: Lock::default(),
            known_at: Lock::default(),
            requests,
            was_polled: watch::Sender::new(false),
            change_counts: Default::default(),
        };
        (Arc::new(overrides), receiver)
    }

    /// Returns the time by which overrides end: that of Redis, if it is known, since replicas share it.
    pub(crate) fn now(&self) -> Micros {
        let Some((time, at)) = *self.redis_clock.lock() else { return Clock::System.now() };
        let since = Clock::System.monotonic_now().saturating_duration_since(at);
        Micros(time.0.saturating_add(since.as_micros() as u64))
    }

    /// Waits until the overrides in Redis were read, or reading them has failed once.
    pub(crate) async fn wait_until_polled(&self) {
        // The sender lives as long as `self`.
        let _ = self.was_polled.subscribe().wait_for(|was_polled| *was_polled).await;
    }

    /// Sets an override, replacing any earlier one with the same id. Returns a message for the operator.
    ///
    /// # Errors
    ///
    /// Returns a message for the operator if the override is invalid, the policy has no such target, or
    /// there is no room for it.
    pub(crate) async fn set(&self, entry: OverrideEntry) -> Result<String, String> {
        let now = self.now();
        let entry = OverrideEntry { set_at: now, ..entry };
        entry.check_bounds()?;
        if entry.until.is_some_and(|until| until <= now) {
            return Err("the override would have ended already: `until` is in the past".to_owned());
        }
        let (id, body) = (entry.id(), entry.to_json());
        let has_room = {
            let state = self.state.lock();
            if self.decider.policy().check_override(&entry)? == Fit::Unmatched {
                let advice = "/rlconfig lists all rules, /explain those of a descriptor";
                return Err(format!("the policy has no rule for {entry}; {advice}"));
            }
            let is_known = state.in_force.contains_key(&id);
            (is_known || state.in_force.len() < OVERRIDES_MAX)
                && state.table.has_room(&id, body.len())
        };
        if !has_room {
            return Err(format!(
                "there is no room for another override: at most {OVERRIDES_MAX} apply at a time, and \
                 their records take at most 64 MiB; delete some first. A deleted or ended one is \
                 remembered for seven days"
            ));
        }
        let spread = self.change(vec![(id, body)]).await?;
        Ok(format!("{entry}; {spread}\n"))
    }

    /// Deletes overrides. Returns a message for the operator.
    ///
    /// # Errors
    ///
    /// Returns a message for the operator if the service is stopping.
    pub(crate) async fn delete(&self, ids: Vec<String>) -> Result<String, String> {
        let deleted = ids.len();
        let spread = self.change(ids.into_iter().map(|id| (id, String::new())).collect()).await?;
        Ok(format!("{deleted} deleted; {spread}\n"))
    }

    async fn change(&self, changes: Vec<(String, String)>) -> Result<String, String> {
        let (reply, spread) = oneshot::channel();
        let is_sent = self.requests.send(ChangeRequest { changes, reply }).await.is_ok();
        match if is_sent { spread.await.ok() } else { None } {
            None => Err("the service is stopping".to_owned()),
            Some(Some(reason)) => Ok(format!(
                "in force on this replica only, until Redis is available again ({reason})"
            )),
            Some(None) if self.decider.store().redis().is_some() => {
                Ok("in force on all replicas within a second".to_owned())
            }
            Some(None) => {
                Ok("in force on this replica, which has no Redis, until its process ends"
                    .to_owned())
            }
        }
    }

    /// Ends the overrides whose time is over.
    pub(crate) fn expire(&self) {
        let now = self.now();
        let mut state = self.state.lock();
        if state.next_end.is_some_and(|end| end <= now) {
            let is_over = |entry: &OverrideEntry| entry.until.is_some_and(|until| until <= now);
            let over = state.in_force.iter().filter(|(_, entry)| is_over(entry));
            let ids: Vec<String> = over.map(|(id, _)| id.clone()).collect();
            self.update(&mut state, ids);
            state.next_end = state.in_force.values().filter_map(|entry| entry.until).min();
        }
    }

    /// Replaces the policy after a reload. The overrides stay, also those whose target the policy lacks.
    pub(crate) fn replace_policy(&self, policy: Arc<Policy>) {
        let mut state = self.state.lock();
        let became_unmatched = |entry: &&Arc<OverrideEntry>| {
            is_matched(&state.loaded, entry) && !is_matched(&policy, entry)
        };
        let unmatched: Vec<_> = state.in_force.values().filter(became_unmatched).cloned().collect();
        let event = |entry| (ChangeKind::Unmatched, entry);
        self.record(&mut state, unmatched.into_iter().map(event).collect());
        state.loaded = policy;
        self.activate(apply_all(&state));
    }

    /// Replaces the overrides of the file; `None` if its content is invalid, and the former ones stay.
    pub(crate) fn replace_base(&self, entries: Option<Vec<OverrideEntry>>) {
        let mut state = self.state.lock();
        state.is_base_broken = entries.is_none();
        let Some(entries) = entries else { return };
        let base = entries.into_iter().map(|entry| (entry.id(), Arc::new(entry))).collect();
        let former = std::mem::replace(&mut state.base, base);
        let ids = former.keys().chain(state.base.keys()).cloned().collect();
        self.update(&mut state, ids);
    }

    /// Returns the policy as loaded, without overrides.
    pub(crate) fn loaded(&self) -> Arc<Policy> {
        Arc::clone(&self.state.lock().loaded)
    }

    /// Applies the records of these ids.
    fn apply(&self, ids: Vec<String>) {
        self.update(&mut self.state.lock(), ids);
    }

    /// Brings the overrides with these ids up to date, and the policy.
    fn update(&self, state: &mut OverrideState, ids: Vec<String>) {
        let (now, mut events) = (self.now(), Vec::new());
        let (mut ended, mut set) = (Vec::new(), Vec::new());
        for id in ids {
            let (former, entry) = (state.in_force.remove(&id), state.effective(&id, now));
            let is_deleted = state.table.get(&id).is_some_and(OverrideRecord::is_tombstone);
            if let Some(entry) = &entry {
                state.in_force.insert(id, Arc::clone(entry));
                state.next_end = state.next_end.into_iter().chain(entry.until).min();
            }
            let (kind, shown) = match (&former, &entry) {
                (former, entry) if former == entry => continue,
                (None, Some(entry)) => (ChangeKind::Set, entry),
                (Some(_), Some(entry)) => (ChangeKind::Replaced, entry),
                (Some(former), None) if is_deleted => (ChangeKind::Deleted, former),
                (Some(former), None) => (ChangeKind::Ended, former),
                (None, None) => continue,
            };
            events.push((kind, Arc::clone(shown)));
            ended.extend(former);
            set.extend(entry);
        }
        if !events.is_empty() {
            let changed = self.decider.policy().with_changed_overrides(
                &ended.iter().collect::<Vec<_>>(),
                &set.iter().collect::<Vec<_>>(),
            );
            self.record(state, events);
            self.activate(changed.map_or_else(|| apply_all(state), Arc::new));
        }
    }

    /// Counts, logs, and remembers changes.
    fn record(&self, state: &mut OverrideState, events: Vec<(ChangeKind, Arc<OverrideEntry>)>) {
        let (now, count) = (self.now(), events.len());
        for (at, (kind, entry)) in events.into_iter().enumerate() {
            self.change_counts[kind as usize].fetch_add(1, Ordering::Relaxed);
            if at < RECENT_CHANGES {
                let OverrideEntry { target, change, by, reason, .. } = &*entry;
                let seconds = entry.until.map(|until| until.0.saturating_sub(now.0) / 1_000_000);
                // A process that has just started learns of changes that were made long ago.
                let at = match kind {
                    ChangeKind::Ended | ChangeKind::Unmatched => now,
                    _ => state.table.get(&entry.id()).map_or(now, |record| record.written_at),
                };
                state.recent.push_front(to_event(at, kind, &entry));
                let (kind, effect) = (kind.as_str(), effect_of(change));
                tracing::warn!(
                    kind, %target, %change, seconds, effect, by, reason, "override changed"
                );
            }
        }
        state.recent.truncate(RECENT_CHANGES);
        if count > RECENT_CHANGES {
            tracing::warn!(more = count - RECENT_CHANGES, "overrides changed");
        }
    }

    /// Activates the policy with overrides. The caller holds the lock on the state, so that a concurrent
    /// reload cannot activate an older policy afterwards.
    fn activate(&self, policy: Arc<Policy>) {
        self.decider.replace_policy(policy);
        self.decider.store().retire_policy();
    }

    /// Returns the ids of records that have been remembered for long enough, with their versions.
    fn forgettable(&self, now: Micros) -> Vec<(String, u64)> {
        let state = self.state.lock();
        let is_old = |at: Micros| at.0.saturating_add(TOMBSTONE_LIFETIME.0) < now.0;
        let is_over = |id: &str, record: &OverrideRecord| {
            let end = || OverrideEntry::from_json(&record.body).ok()?.until;
            is_old(record.written_at)
                && (record.is_tombstone()
                    || !state.in_force.contains_key(id) && end().is_some_and(is_old))
        };
        let over = state.table.iter().filter(|(id, record)| is_over(id, record));
        over.map(|(id, record)| (id.to_owned(), record.version)).collect()
    }

    fn forget<'i>(&self, ids: impl IntoIterator<Item = &'i str>) {
        let mut state = self.state.lock();
        ids.into_iter().for_each(|id| state.table.forget(id));
    }
}

/// Requests of operators, for the task that carries them out.
pub(crate) type Requests = mpsc::Receiver<ChangeRequest>;

/// Returns the policy with all overrides in force.
fn apply_all(state: &OverrideState) -> Arc<Policy> {
    Arc::new(state.loaded.with_overrides(state.in_force.values()))
}

/// Returns whether the override can apply to a rule of the policy.
fn is_matched(policy: &Policy, entry: &OverrideEntry) -> bool {
    policy.check_override(entry) == Ok(Fit::Matched)
}
