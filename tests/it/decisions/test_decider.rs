//! A decider on the memory store with a manual clock.

use std::sync::{Arc, Mutex};

use tidegate::decide::{DecideError, Decider, DryRun, GlobalModes};
use tidegate::domain::{
    CheckEvent, Code, Decision, Descriptor, Entry, Hits, HoldId, HoldRequest, KeyEvent, Micros,
    NearEvent, Observer, Override, Request, Source, WaitPrecision,
};
use tidegate::policy::{self, Policy, Secret};
use tidegate::store::memory::MemoryStore;

/// Noon on some day, in the middle of a second, a minute and an hour, so that nothing happens to
/// fall on a window's edge.
pub const NOON: Micros = Micros(1_800_014_417_300_000);

/// Remembers what an observer was told: checks, releases without a holder, for each refusal the
/// position of its limit and whether it is a shadow refusal, and for each limit that a call brought
/// near the values of its counter and the used hits.
#[derive(Clone, Default)]
pub struct RecordedEvents(
    pub Arc<Mutex<Vec<CheckEvent>>>,
    pub Arc<Mutex<u32>>,
    pub Arc<Mutex<Vec<(usize, bool)>>>,
    pub Arc<Mutex<Vec<(String, u64)>>>,
);

impl Observer for RecordedEvents {
    fn on_check(&self, facts: &CheckEvent) {
        self.0.lock().unwrap().push(*facts);
    }
    fn on_refusal(&self, refused: &KeyEvent<'_>) {
        self.2.lock().unwrap().push((refused.limit, refused.shadow));
    }
    fn on_near(&self, near: &NearEvent<'_>) {
        let values: Vec<_> =
            near.entries.iter().map(|entry| String::from_utf8_lossy(entry.value)).collect();
        self.3.lock().unwrap().push((values.join(","), near.used.0));
    }
    fn release_without_holder(&self) {
        *self.1.lock().unwrap() += 1;
    }
    fn on_decision(&self, _: &Decision<'_>) {}
}

pub struct Bench {
    pub decider: Decider<MemoryStore, RecordedEvents>,
    pub told: RecordedEvents,
    now: Mutex<Micros>,
}

/// One status as a test compares it: code, shown requests per unit, remaining, whole seconds of
/// the reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub code: Code,
    pub limit: Option<u32>,
    pub name: String,
    pub remaining: u32,
    pub reset_s: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct TestDecision {
    pub code: Code,
    pub rows: Vec<Row>,
    /// For each status, whether it is that of a quota descriptor, and whether its group is refused.
    pub quotas: Vec<(bool, bool)>,
    pub limited_by: Option<String>,
    pub retry_after: Option<Micros>,
    pub precision: Option<WaitPrecision>,
    pub source: Source,
    pub shadowed: bool,
    pub slot: Option<String>,
    /// Each mark as `name: value`.
    pub marks: Vec<String>,
    /// `sent`, or the id that was made.
    pub hold: Option<String>,
}

impl TestDecision {
    pub fn passes(&self) -> bool {
        self.code == Code::Ok
    }
}

/// One descriptor of a test's request.
#[derive(Clone, Default)]
pub struct TestDescriptor {
    pub path: Vec<(String, Vec<u8>)>,
    pub hits: Option<u64>,
    pub refund: bool,
    pub limit: Option<Override>,
    pub holder: Option<String>,
    /// The id of a hold, and whether it is settled.
    pub hold: Option<(String, bool)>,
}

/// `"a=1 > b"` as a descriptor.
pub fn d(path: &str) -> TestDescriptor {
    let path = path
        .split('>')
        .map(str::trim)
        .filter(|step| !step.is_empty())
        .map(|step| {
            let (key, value) = step.split_once('=').unwrap_or((step, ""));
            (key.to_owned(), value.as_bytes().to_vec())
        })
        .collect();
    TestDescriptor { path, ..TestDescriptor::default() }
}

impl TestDescriptor {
    pub fn entries(&self) -> Vec<Entry<'_>> {
        self.path.iter().map(|(k, v)| Entry { key: k.as_bytes(), value: v }).collect()
    }
    pub fn of<'a>(&'a self, entries: &'a [Entry<'a>]) -> Descriptor<'a> {
        Descriptor {
            entries,
            hits: Hits(self.hits.unwrap_or(1)),
            has_hits_addend: self.hits.is_some(),
            refund: self.refund,
            limit: self.limit,
            holder: self.holder.as_deref().map(str::as_bytes),
            hold: self.hold.as_ref().map(|(id, is_settle)| match is_settle {
                true => HoldRequest::Settle { id: id.as_bytes() },
                false => HoldRequest::Hold { id: id.as_bytes(), ttl_secs_max: u32::MAX },
            }),
        }
    }
    pub fn hits(mut self, hits: u64) -> TestDescriptor {
        self.hits = Some(hits);
        self
    }
    pub fn refund(mut self, hits: u64) -> TestDescriptor {
        self.hits = Some(hits);
        self.refund = true;
        self
    }
    pub fn holder(mut self, holder: &str) -> TestDescriptor {
        self.holder = Some(holder.to_owned());
        self
    }
    pub fn hold(mut self, id: &str) -> TestDescriptor {
        self.hold = Some((id.to_owned(), false));
        self
    }
    pub fn settle(mut self, id: &str) -> TestDescriptor {
        self.hold = Some((id.to_owned(), true));
        self
    }
    pub fn limit(mut self, limit: Override) -> TestDescriptor {
        self.limit = Some(limit);
        self
    }
}

pub fn compiled(yaml: &str) -> Policy {
    let source = policy::Source { name: "test.yaml".to_owned(), text: yaml.as_bytes().to_vec() };
    match policy::compile(&[source], &policy::Options::default()) {
        Ok(compiled) => Policy::build(compiled.domains, Secret([7; 32])),
        Err(faults) => panic!("the test's policy has faults:\n{faults}"),
    }
}

impl Bench {
    pub fn new(yaml: &str) -> Bench {
        Bench::with_modes(yaml, GlobalModes::default())
    }

    pub fn with_modes(yaml: &str, modes: GlobalModes) -> Bench {
        let told = RecordedEvents::default();
        let decider = Decider::new(
            Arc::new(compiled(yaml)),
            MemoryStore::new(100_000),
            Arc::new(told.clone()),
            modes,
        );
        Bench { decider, told, now: Mutex::new(NOON) }
    }

    pub fn advance(&self, by: Micros) {
        let mut now = self.now.lock().unwrap();
        *now = now.saturating_add(by);
    }

    /// Sets the time.
    pub fn set(&self, now: Micros) {
        *self.now.lock().unwrap() = now;
    }

    pub fn reload(&self, yaml: &str) {
        self.decider.replace_policy(Arc::new(compiled(yaml)));
    }

    /// Asks about several descriptors of domain `t` at once.
    pub fn ask(&self, descriptors: &[TestDescriptor]) -> TestDecision {
        self.ask_domain("t", descriptors)
    }

    pub fn one(&self, path: &str) -> TestDecision {
        self.ask(&[d(path)])
    }

    /// How many of `calls` calls pass.
    pub fn passes(&self, path: &str, calls: usize) -> usize {
        (0..calls).filter(|_| self.one(path).passes()).count()
    }

    pub fn ask_domain(&self, domain: &str, descriptors: &[TestDescriptor]) -> TestDecision {
        self.try_domain(domain, descriptors).unwrap()
    }

    /// Asks about several descriptors, which may be too many.
    pub fn try_domain(
        &self,
        domain: &str,
        descriptors: &[TestDescriptor],
    ) -> Result<TestDecision, DecideError> {
        let now = *self.now.lock().unwrap();
        let policy = self.decider.policy();
        with_request(domain, descriptors, |request| {
            let decided = waited_for(self.decider.decide(&policy, request, now));
            decided.map(|decision| answered(&decision))
        })
    }

    /// What the same call would be answered.
    pub fn dry_run(&self, descriptors: &[TestDescriptor]) -> TestDecision {
        self.with_dry_run(descriptors, |foreseen| {
            assert_eq!(foreseen.limits.len(), descriptors.len());
            answered(&foreseen.decision)
        })
    }

    /// Passes the dry run of a call to `then`.
    pub fn with_dry_run<R>(
        &self,
        descriptors: &[TestDescriptor],
        then: impl FnOnce(&DryRun<'_>) -> R,
    ) -> R {
        let now = *self.now.lock().unwrap();
        let policy = self.decider.policy();
        with_request("t", descriptors, |request| {
            then(&waited_for(self.decider.dry_run(&policy, request, now)).unwrap())
        })
    }
}

fn waited_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn with_request<R>(
    domain: &str,
    descriptors: &[TestDescriptor],
    then: impl FnOnce(&Request<'_>) -> R,
) -> R {
    let entries: Vec<Vec<Entry<'_>>> = descriptors.iter().map(TestDescriptor::entries).collect();
    let descriptors: Vec<Descriptor<'_>> =
        descriptors.iter().zip(&entries).map(|(d, entries)| d.of(entries)).collect();
    then(&Request { domain, descriptors: &descriptors })
}

pub fn answered(decision: &Decision<'_>) -> TestDecision {
    TestDecision {
        code: decision.code,
        rows: decision
            .statuses
            .iter()
            .map(|s| Row {
                code: s.code,
                limit: s.shown.map(|shown| shown.rate.requests_per_unit),
                name: s.shown.map_or(String::new(), |shown| shown.name.to_owned()),
                remaining: s.remaining,
                reset_s: s.reset.map(Micros::ceil_secs),
            })
            .collect(),
        quotas: decision.statuses.iter().map(|s| (s.quota, s.group_refused)).collect(),
        limited_by: decision.limited_by.map(|by| by.name.to_owned()),
        retry_after: decision.limited_by.and_then(|by| by.retry_after),
        precision: decision.limited_by.map(|by| by.precision),
        source: decision.source,
        shadowed: decision.shadowed,
        slot: decision.slot.as_ref().map(|slot| slot.as_str().to_owned()),
        marks: decision.marks.iter().map(|m| format!("{}: {}", m.name, m.value)).collect(),
        hold: decision.hold.as_ref().map(|hold| match hold {
            HoldId::Sent => "sent".to_owned(),
            HoldId::Generated(token) => token.as_str().to_owned(),
        }),
    }
}
