//! Waits of rejected calls, over random mixes of required, quota, shadow, replaced and unlimited
//! limits, on one slot and on several, with the refusal cache: waiting as long as told passes, and
//! one unit of time less never does.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use tidegate::clock::Clock;
use tidegate::decide::{Decider, GlobalModes};
use tidegate::domain::{Answer, Answers, Call, Code, Micros, Receipt, Source, WaitPrecision};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::transport::{
    NodeRequests, PendingCall, PendingCalls, Transport,
};
use tidegate::store::redis::script::call::NodeRequest;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::ScriptCall;
use tidegate::store::redis::store::TimeSource;
use tokio::task::JoinSet;

use super::test_decider::{NOON, TestDecision, TestDescriptor, answered, compiled, d};
use crate::support::plain_transport::Plain;
use crate::support::proof;
use crate::support::random::Random;
use crate::support::redis_server::{PATIENCE, Server};

/// Tick of every limit here: only sliding windows of a minute or more have a longer one.
const UNIT: Micros = Micros(1);

const KEYS: usize = 6;
const GROUPED: &str = "quota_group: [g]";

/// Keeps the answers to the latest call.
struct Recorder<S> {
    store: S,
    latest: Mutex<Vec<Answer>>,
}

impl<S: Store> Store for Recorder<S> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let answers = self.store.apply(call).await;
        self.latest.lock().unwrap().clone_from(&answers.each);
        answers
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.store.refund(receipts).await;
    }
}

/// One server that claims to be a cluster. Refunds are complete before the next call.
struct ManySlots {
    plain: Plain,
    posted: Arc<Mutex<JoinSet<()>>>,
}

impl Transport for ManySlots {
    fn is_cluster(&self) -> bool {
        true
    }

    fn submit(&self, items: NodeRequests) -> PendingCalls {
        let (plain, posted) = (self.plain.clone(), Arc::clone(&self.posted));
        let run = |item: ScriptCall| {
            let (plain, posted) = (plain.clone(), Arc::clone(&posted));
            PendingCall::boxed(async move {
                let mut posted = std::mem::take(&mut *posted.lock().unwrap());
                while let Some(refund) = posted.join_next().await {
                    refund.unwrap();
                }
                plain.run(&item).await.map_err(|_| SendError::LOST)
            })
        };
        items.into_iter().map(NodeRequest::into_script_call).map(run).collect()
    }

    fn send_in_background(&self, item: ScriptCall) {
        let plain = self.plain.clone();
        let run = async move {
            plain.run(&item).await.unwrap();
        };
        self.posted.lock().unwrap().spawn(run);
    }
}

/// A random rule for each key. Half of the policies group their quotas by an entry above the keys.
fn random_policy(random: &mut Random) -> String {
    let rules = random_rules(random);
    if random.one_in(2) {
        return format!("domain: t\ndescriptors:\n{rules}");
    }
    let rules: String = rules.lines().map(|line| format!("    {line}\n")).collect();
    format!("domain: t\n{GROUPED}\ndescriptors:\n  - key: g\n    descriptors:\n{rules}")
}

fn random_rules(random: &mut Random) -> String {
    let mut yaml = String::new();
    for key in 0..KEYS {
        writeln!(yaml, "  - key: k{key}").unwrap();
        match random.below(10) {
            0 | 1 => yaml.push_str("    shadow_mode: true\n"),
            2..6 => yaml.push_str("    quota_mode: true\n"),
            _ => {}
        }
        let replaces = match random.below(8) {
            0 => format!(", replaces: [{{name: n{}}}]", (key as u64 + 1 + random.below(5)) % 6),
            _ => String::new(),
        };
        match random.below(10) {
            0 => writeln!(yaml, "    rate_limit: {{unlimited: true{replaces}}}").unwrap(),
            1..4 => {
                yaml.push_str("    rate_limits:\n");
                for at in 0..2 + random.below(2) {
                    let limit = random_limit(random);
                    writeln!(yaml, "      - {{name: n{key}l{at}, {limit}}}").unwrap();
                }
            }
            _ => {
                let limit = random_limit(random);
                writeln!(yaml, "    rate_limit: {{name: n{key}, {limit}{replaces}}}").unwrap();
            }
        }
    }
    yaml
}

fn random_limit(random: &mut Random) -> String {
    let hits = 1 + random.below(4);
    let mut unit = ["second", "minute", "hour"][random.below(3) as usize];
    let algorithm = match random.below(5) {
        0 => "algorithm: fixed_window".to_owned(),
        1 => {
            unit = "second";
            "algorithm: sliding_window".to_owned()
        }
        2 => "algorithm: sliding_log".to_owned(),
        3 => format!("algorithm: token_bucket, burst: {}", 1 + random.below(4)),
        _ => "algorithm: leaky_bucket".to_owned(),
    };
    format!("unit: {unit}, requests_per_unit: {hits}, {algorithm}")
}

fn random_call(random: &mut Random, yaml: &str) -> Vec<TestDescriptor> {
    let mut keys: Vec<usize> = (0..KEYS).filter(|_| !random.one_in(3)).collect();
    if random.one_in(2) {
        keys.reverse();
    }
    let descriptor = |key: &usize, random: &mut Random| {
        let group = match random.below(2) {
            _ if !yaml.contains(GROUPED) => "",
            0 => "g=a > ",
            _ => "g=b > ",
        };
        let descriptor = d(&format!("{group}k{key}=v"));
        if random.one_in(3) { descriptor.hits(1 + random.below(2)) } else { descriptor }
    };
    keys.iter().map(|key| descriptor(key, random)).collect()
}

struct Bench<S> {
    decider: Decider<Recorder<Arc<Stack<S, MemoryStore>>>, ()>,
    now: Micros,
}

/// How often each kind of rejection was seen.
#[derive(Debug, Default)]
struct Seen {
    exact: u32,
    at_least: u32,
    never: u32,
    cached: u32,
}

impl<S: Store> Bench<S> {
    fn new(store: S, yaml: &str) -> Bench<S> {
        let config = StackConfig { budget: PATIENCE, ..StackConfig::default() };
        let stack = Stack::new(store, MemoryStore::new(1_000), config, Clock::System);
        let recorder = Recorder { store: stack, latest: Mutex::default() };
        let policy = Arc::new(compiled(yaml));
        Bench {
            decider: Decider::new(policy, recorder, Arc::new(()), GlobalModes::default()),
            now: NOON,
        }
    }

    async fn ask(&self, descriptors: &[TestDescriptor]) -> TestDecision {
        let policy = self.decider.policy();
        let entries: Vec<_> = descriptors.iter().map(TestDescriptor::entries).collect();
        let each = descriptors.iter().zip(&entries);
        let each: Vec<_> = each.map(|(descriptor, entries)| descriptor.of(entries)).collect();
        let request = tidegate::domain::Request { domain: "t", descriptors: &each };
        answered(&self.decider.decide(&policy, &request, self.now).await.unwrap())
    }

    /// Whether every check of the latest call was decided.
    fn all_asked(&self) -> bool {
        let latest = self.decider.store().latest.lock().unwrap();
        latest.iter().all(|answer| matches!(answer, Answer::Decided(_)))
    }

    /// Makes random calls, and waits after each rejected one as long as told.
    async fn check(&mut self, random: &mut Random, calls: u32, seen: &mut Seen, context: &str) {
        for _ in 0..calls {
            let descriptors = random_call(random, context);
            if descriptors.is_empty() {
                continue;
            }
            // Some traffic that leaves the limits in different states.
            for descriptor in &descriptors {
                if random.one_in(2) {
                    self.ask(std::slice::from_ref(descriptor)).await;
                }
            }
            self.now = self.now.saturating_add(Micros(random.below(3) * 700_001));
            let mut answer = self.ask(&descriptors).await;
            for round in 0.. {
                if answer.code == Code::Ok {
                    break;
                }
                assert!(round <= 12, "{context}: a wait that never ends\n{answer:?}");
                seen.cached += u32::from(answer.source == Source::Cached);
                let Some(precision) = answer.precision else { panic!("{context}: {answer:?}") };
                if self.all_asked() {
                    assert_eq!(precision, WaitPrecision::Exact, "{context}\n{answer:?}");
                }
                let Some(wait) = answer.retry_after else {
                    seen.never += 1;
                    self.now = self.now.saturating_add(Micros::from_secs(40 * 86_400));
                    let later = self.ask(&descriptors).await;
                    assert_eq!(later.code, Code::OverLimit, "{context}\n{answer:?}");
                    break;
                };
                if wait > UNIT {
                    let start = self.now;
                    self.now = Micros(start.0 + wait.0 - UNIT.0);
                    let early = self.ask(&descriptors).await;
                    assert_eq!(early.code, Code::OverLimit, "{context}: too long\n{answer:?}");
                    self.now = start;
                }
                self.now = self.now.saturating_add(wait);
                let retried = self.ask(&descriptors).await;
                match precision {
                    WaitPrecision::Exact => {
                        seen.exact += 1;
                        assert_eq!(retried.code, Code::Ok, "{context}: {answer:?}\n{retried:?}");
                    }
                    WaitPrecision::AtLeast => seen.at_least += 1,
                }
                answer = retried;
            }
        }
    }
}

#[tokio::test]
async fn waiting_as_long_as_told_passes_and_one_unit_less_never_does() {
    let mut seen = Seen::default();
    for seed in 0..proof::times(60, 2_000) {
        let mut random = Random::seeded(seed);
        let yaml = random_policy(&mut random);
        let mut bench = Bench::new(MemoryStore::new(100_000), &yaml);
        bench.check(&mut random, 12, &mut seen, &format!("seed {seed}\n{yaml}")).await;
    }
    println!("{seen:?}");
    assert!(seen.exact > 100 && seen.at_least > 10 && seen.never > 1 && seen.cached > 20);
}

#[tokio::test]
async fn waits_of_calls_over_several_slots_are_true_too() {
    let server = Server::start(&[]);
    let mut seen = Seen::default();
    for seed in 0..proof::times(10, 200) {
        let mut random = Random::seeded(seed);
        let yaml = random_policy(&mut random);
        let plain = Plain(server.connect().await);
        let transport = ManySlots { plain, posted: Arc::default() };
        let prefix = Prefix::new(&format!("s{seed}")).unwrap();
        let store = RedisStore::new(transport, prefix, TimeSource::Call);
        let mut bench = Bench::new(store, &yaml);
        bench.check(&mut random, 12, &mut seen, &format!("seed {seed}\n{yaml}")).await;
    }
    println!("{seen:?}");
    assert!(seen.exact > 10 && seen.at_least > 1);
}
