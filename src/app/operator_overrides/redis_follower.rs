//! Task that makes every change of an override, and follows the changes of other replicas in Redis.
//!
//! Redis holds no truth: if it has lost records, each replica sends those it knows. Not here: the merge
//! law (`domain`), the commands (`store::redis::override_store`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use super::{ChangeRequest, OperatorOverrides, Requests};
use crate::clock::Clock;
use crate::domain::{Merged, Micros, OverrideRecord, OverrideTable, TOMBSTONE_LIFETIME};
use crate::store::redis::override_store::{OverrideStore, PAGE_RECORDS, PollReply};

/// Interval at which a replica follows the changes of others, 1 s.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which old tombstones are removed, 1 h.
const FORGET_INTERVAL: Duration = Duration::from_secs(3_600);
/// Version after every other, so that a poll returns no changes.
const NO_CHANGES: u64 = 1 << 52;
/// Reason for which a rehearsed outage keeps a replica from Redis.
const REHEARSED: &str = "an operator has disabled Redis";

/// Number of failed polls in a row after which the log says so, once.
const REPORTED_FAILURES: u32 = 3;

/// Position of a replica in the changes that Redis has.
struct Follower {
    overrides: Arc<OperatorOverrides>,
    /// `None` if counters are in memory.
    store: Option<OverrideStore>,
    /// Whether the number of replicas in Redis is the number of replicas that share the limits.
    counts_replicas: bool,
    /// Version up to which the changes are known; `None` if all records must be read, as at the start
    /// and after Redis has lost some.
    followed: Option<u64>,
    /// Version and checksum of Redis when all records were the same but the checksums differed.
    unexplained: Option<(u64, u64)>,
    /// Difference of the checksums that no record explains, for example after a manual deletion.
    drift: u64,
    /// Number of polls that failed in a row.
    failures: u32,
    next_forget: Instant,
}

/// Follows Redis, if there is one, and carries out the requests of operators, until the process ends.
pub(crate) async fn run(
    overrides: Arc<OperatorOverrides>,
    mut requests: Requests,
    store: Option<OverrideStore>,
    counts_replicas: bool,
) {
    let now = Clock::System.monotonic_now();
    *overrides.known_at.lock() = store.as_ref().map(|_| now);
    let mut follower = Follower {
        overrides,
        store,
        counts_replicas,
        followed: None,
        unexplained: None,
        drift: 0,
        failures: 0,
        next_forget: now + FORGET_INTERVAL,
    };
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => follower.poll().await,
            request = requests.recv() => match request {
                Some(request) => follower.change(request).await,
                None => return,
            },
        }
    }
}

impl Follower {
    /// Makes changes in Redis or, if it is unavailable, on this replica. The next poll that succeeds then
    /// finds that Redis lacks them, and sends them.
    async fn change(&mut self, ChangeRequest { changes, reply }: ChangeRequest) {
        let mut failure = self.is_rehearsed().then(|| REHEARSED.to_owned());
        let mut ids = Vec::new();
        for (id, body) in changes {
            let known = self.overrides.state.lock().table.highest();
            let written = match &mut self.store {
                Some(store) if failure.is_none() => match store.change(&id, known, &body).await {
                    Ok(record) => Some(record),
                    Err(error) => {
                        failure = Some(error.reason);
                        None
                    }
                },
                Some(_) | None => None,
            };
            let record = written.unwrap_or_else(|| {
                let written_at = self.overrides.now();
                OverrideRecord { version: known + 1, written_at, body: body.into() }
            });
            ids.extend(self.overrides.merge([(id, record)], &mut HashSet::new()));
        }
        self.overrides.apply(ids);
        // The operator may have left.
        let _ = reply.send(failure);
    }

    fn is_rehearsed(&self) -> bool {
        self.overrides.decider.store().redis().is_some_and(|redis| redis.is_store_disabled())
    }

    /// Returns whether the log already says that Redis is down, and why.
    fn is_outage_known(&self) -> bool {
        let redis = self.overrides.decider.store().redis();
        redis.is_some_and(|redis| redis.outage(Clock::System.now()).is_some())
    }

    async fn poll(&mut self) {
        if self.store.is_some() {
            let mut changed = Vec::new();
            let followed = match self.is_rehearsed() {
                true => Err(REHEARSED.to_owned()),
                false => self.follow(&mut changed).await,
            };
            // Also those before an error.
            self.overrides.apply(changed);
            match &followed {
                Ok(()) => {
                    *self.overrides.known_at.lock() = Some(Clock::System.monotonic_now());
                    if self.failures >= REPORTED_FAILURES {
                        tracing::info!("following overrides in Redis again");
                    }
                    self.failures = 0;
                }
                Err(_) => self.failures = self.failures.saturating_add(1),
            }
            if let Err(reason) = &followed
                && self.failures == REPORTED_FAILURES
                && !self.is_outage_known()
            {
                let advice = "overrides known so far stay in force until their end";
                tracing::warn!(reason, advice, "cannot follow overrides in Redis");
            }
        }
        if let Err(reason) = self.forget_old().await {
            tracing::warn!(reason, "cannot remove old tombstones of overrides from Redis");
        }
        self.overrides.was_polled.send_replace(true);
    }

    /// Reads the changes since the last call, or all records, and sends those that Redis lacks. Adds the
    /// ids of changed records to `changed`.
    async fn follow(&mut self, changed: &mut Vec<String>) -> Result<(), String> {
        let reply = loop {
            let Some(store) = &mut self.store else { return Ok(()) };
            let after = self.followed.unwrap_or(NO_CHANGES);
            let sent = Clock::System.monotonic_now();
            let mut reply = store.poll(after).await.map_err(|error| error.reason)?;
            // Redis read its clock between the command and the reply.
            let took = Clock::System.monotonic_now().saturating_duration_since(sent);
            *self.overrides.redis_clock.lock() = Some((reply.time, sent + took / 2));
            if self.counts_replicas
                && let Some(redis) = self.overrides.decider.store().redis()
            {
                redis.set_replicas(reply.replicas);
            }
            if self.followed.is_none_or(|followed| reply.highest < followed) {
                return self.read_whole(&reply, changed).await;
            }
            let changes = std::mem::take(&mut reply.changes);
            let last = changes.iter().map(|(_, record)| record.version).max();
            self.followed = last.filter(|_| reply.has_more).or(Some(reply.highest));
            changed.extend(self.overrides.merge(changes, &mut HashSet::new()));
            if !reply.has_more {
                break reply;
            }
        };
        if self.is_same(&reply) {
            return Ok(());
        }
        // Other replicas may have removed old tombstones.
        let old = self.overrides.forgettable(reply.time);
        self.overrides.forget(old.iter().map(|(id, _)| &**id));
        if self.is_same(&reply) {
            return Ok(());
        }
        if self.unexplained == Some((reply.highest, reply.checksum)) {
            self.drift = self.overrides.state.lock().table.difference(reply.checksum);
            return Ok(());
        }
        self.read_whole(&reply, changed).await
    }

    fn is_same(&self, reply: &PollReply) -> bool {
        self.overrides.state.lock().table.difference(reply.checksum) == self.drift
    }

    /// Reads all records, and sends those that Redis lacks or has in an older version. After seven days
    /// without Redis, sends nothing, and keeps only what Redis has.
    async fn read_whole(
        &mut self,
        reply: &PollReply,
        changed: &mut Vec<String>,
    ) -> Result<(), String> {
        let Some(store) = &mut self.store else { return Ok(()) };
        self.followed = None;
        let is_late = Micros::from_secs(self.overrides.age_seconds()) > TOMBSTONE_LIFETIME;
        let mut fresh = is_late.then(OverrideTable::default);
        let (mut seen, mut cursor, changed_before) = (HashSet::new(), 0, changed.len());
        loop {
            let (next, page) = store.scan(cursor).await.map_err(|error| error.reason)?;
            match &mut fresh {
                Some(fresh) => page.into_iter().for_each(|(id, record)| {
                    fresh.merge(&id, record);
                }),
                None => changed.extend(self.overrides.merge(page, &mut seen)),
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let mut is_pushed = false;
        match fresh {
            Some(fresh) => changed.extend(self.overrides.replace_table(fresh)),
            None => {
                let missing = self.overrides.records_except(&seen);
                is_pushed = !missing.is_empty();
                for page in missing.chunks(PAGE_RECORDS) {
                    store.push(page).await.map_err(|error| error.reason)?;
                }
            }
        }
        if is_pushed {
            tracing::info!("sent overrides that Redis lacked");
        }
        let is_same = !is_pushed && changed.len() == changed_before;
        self.unexplained = is_same.then_some((reply.highest, reply.checksum));
        (self.followed, self.drift) = (Some(reply.highest), 0);
        Ok(())
    }

    /// Removes records that have been remembered for long enough, here and in Redis.
    async fn forget_old(&mut self) -> Result<(), String> {
        let now = Clock::System.monotonic_now();
        if now < self.next_forget || self.failures > 0 {
            return Ok(());
        }
        self.next_forget = now + FORGET_INTERVAL;
        let old = self.overrides.forgettable(self.overrides.now());
        for page in old.chunks(PAGE_RECORDS) {
            if let Some(store) = &mut self.store {
                store.forget(page).await.map_err(|error| error.reason)?;
            }
            self.overrides.forget(page.iter().map(|(id, _)| &**id));
        }
        Ok(())
    }
}

impl OperatorOverrides {
    /// Merges records of Redis. Returns the ids of those that won, and adds the ids of those that need
    /// not be sent to Redis to `seen`.
    fn merge(
        &self,
        records: impl IntoIterator<Item = (String, OverrideRecord)>,
        seen: &mut HashSet<String>,
    ) -> Vec<String> {
        let mut state = self.state.lock();
        let mut won = Vec::new();
        for (id, record) in records {
            match state.table.merge(&id, record) {
                Merged::Changed => won.push(id.clone()),
                Merged::Older => continue,
                Merged::Same => {}
                Merged::Full => tracing::warn!(id, "no room for an override, it does not apply"),
            }
            seen.insert(id);
        }
        won
    }

    fn records_except(&self, seen: &HashSet<String>) -> Vec<(String, OverrideRecord)> {
        let state = self.state.lock();
        let missing = state.table.iter().filter(|(id, _)| !seen.contains(*id));
        missing.map(|(id, record)| (id.to_owned(), record.clone())).collect()
    }

    /// Replaces all records. Returns the ids of the former ones and of the new ones.
    fn replace_table(&self, table: OverrideTable) -> Vec<String> {
        let mut state = self.state.lock();
        let ids = state.table.iter().chain(table.iter()).map(|(id, _)| id.to_owned());
        let ids = ids.collect();
        state.table = table;
        ids
    }
}
