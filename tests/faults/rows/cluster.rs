//! A cluster node fails, slots move, or the whole cluster is gone.
//!
//! The counters of a trial are spread evenly over the three masters, so that the results can be
//! read by shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::grpc_caller::{CallResult, question};
use crate::open_loop_load::{CallPlan, CallRecord};
use crate::redis_behind_proxy;
use crate::results_table::Observation;
use crate::support::acl;
use crate::support::fault_proxy::Fault;
use crate::support::redis_cluster::Cluster;
use crate::support::wait::until_so as until;
use crate::tidegate_replica::{self, Tidegate};
use crate::trial::{Outcome, Trial, either, limit, p99, policy, rate};

/// Counters on each master.
const KEYS_EACH: usize = 7;
const MASTERS: usize = 3;
const KEYS: u64 = (KEYS_EACH * MASTERS) as u64;
/// A value's number tells its shard: the first seven are the first master's.
fn home(key: u32) -> usize {
    key as usize / KEYS_EACH
}

struct Bench {
    tidegate: Tidegate,
    /// Values of the rule `local`, by home.
    values: Vec<String>,
    /// A slot of the first master's.
    slot: u16,
    cluster: Cluster,
}

impl Bench {
    fn start(flags: &[&str]) -> Bench {
        Bench::of(Cluster::start(&[&acl::line(acl::CLUSTER)]), flags)
    }

    fn of(cluster: Cluster, flags: &[&str]) -> Bench {
        let mut all = redis_behind_proxy::counting_in(cluster.nodes[1].port);
        all.extend(["--redis-type", "cluster"].map(str::to_owned));
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let tidegate = tidegate_replica::start(&policy(), &all);
        let values = spread(&cluster, &tidegate, "local");
        let slot = cluster.slot_of(&keys_of(&tidegate, "local", &values[..1])[0]);
        Bench { tidegate, values, slot, cluster }
    }

    /// Every counter in turn.
    fn asks(&self) -> CallPlan {
        let questions: Vec<_> =
            self.values.iter().map(|value| question(&[&[("local", value)]])).collect();
        Arc::new(move |number| {
            let key = (number % KEYS) as u32;
            (key, questions[key as usize].clone())
        })
    }

    fn trial(&self) -> Trial {
        let trial = Trial::with(&[&self.tidegate], rate(), &self.asks());
        trial.calls(KEYS * limit() * 6 / 10);
        trial
    }

    /// Who serves the first master's slots, as the second master knows.
    fn heir(&self) -> usize {
        self.cluster.owner(1, self.slot)
    }
}

/// The Redis keys of some values of a rule, as `tidegate explain` prints them.
fn keys_of(tidegate: &Tidegate, rule: &str, values: &[String]) -> Vec<String> {
    let policy = tidegate.directory().join("policy.yaml").display().to_string();
    let descriptors = values.iter().map(|value| format!("{rule}={value}"));
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["explain", "--policy", &policy, "faults"])
        .args(descriptors)
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let keys = told.lines().filter_map(|line| line.trim().strip_prefix("in Redis "));
    keys.map(str::to_owned).collect()
}

/// As many values for each master, by home.
fn spread(cluster: &Cluster, tidegate: &Tidegate, rule: &str) -> Vec<String> {
    let candidates: Vec<String> = (0..60).map(|number| format!("v{number}")).collect();
    let keys = keys_of(tidegate, rule, &candidates);
    let mut homes: [Vec<String>; MASTERS] = Default::default();
    for (value, key) in candidates.into_iter().zip(keys) {
        let home = cluster.owner(0, cluster.slot_of(&key));
        if homes[home].len() < KEYS_EACH {
            homes[home].push(value);
        }
    }
    assert!(homes.iter().all(|home| home.len() == KEYS_EACH), "{homes:?}");
    homes.concat()
}

/// What the other shards' callers saw.
fn others(entry: &&CallRecord) -> bool {
    home(entry.key) != 0
}

/// Nobody saw an error, and no counter admitted more than its limit once more; and, where a master
/// died, what its replica had not heard of.
fn bounded(outcome: &Outcome, said: String, unheard: f64) -> Observation {
    outcome.assert_no_errors();
    let seen = Observation::of(outcome, said);
    seen.assert_beyond_at_most(1.0 + unheard);
    seen
}

/// The first master fails and its replica takes over, which nobody has to help.
fn taken_over(fault: impl FnOnce(&mut Cluster), cure: impl FnOnce(&Cluster)) -> Observation {
    let mut bench = Bench::start(&[]);
    let threads = bench.tidegate.proc_status("Threads");
    let mut trial = bench.trial();
    trial.inject(|| fault(&mut bench.cluster));
    trial.until_local();
    trial.calls(KEYS * limit() * 8 / 10);
    until("its replica to take over", || bench.heir() != 0);
    trial.until_redis();
    let more = bench.tidegate.proc_status("Threads").saturating_sub(threads);
    cure(&bench.cluster);
    trial.calls(rate());
    let outcome = trial.end();
    assert!(more <= 8, "{more} threads more");
    let other = p99(outcome.during().filter(others));
    let said = format!("{} % local; other shards' p99 {:.1} ms", outcome.local_share(), ms(other));
    bounded(&outcome, said, 1.0)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub fn master_killed() -> Observation {
    taken_over(|cluster| cluster.nodes[0].kill(), |_| ())
}

pub fn master_frozen() -> Observation {
    taken_over(|cluster| cluster.nodes[0].freeze(), |cluster| cluster.nodes[0].thaw())
}

pub fn planned_failover() -> Observation {
    let bench = Bench::start(&redis_behind_proxy::PATIENT);
    let mut trial = bench.trial();
    let heir = bench.cluster.replica_of(0);
    trial.inject(|| drop(bench.cluster.nodes[heir].ask(&["CLUSTER", "FAILOVER"])));
    until("its replica to be master", || bench.heir() == heir);
    trial.calls(KEYS * limit() * 8 / 10);
    trial.until_redis();
    let moved = trial.figures.metric("redis_moved_total");
    let again = trial.figures.metric("redis_noscript_total");
    let outcome = trial.end();
    let said = format!("{moved} MOVED, {again} NOSCRIPT, {} % local", outcome.local_share());
    bounded(&outcome, said, 0.0)
}

pub fn all_gone() -> Observation {
    let mut bench = Bench::start(&[]);
    let mut trial = bench.trial();
    let dialled = |trial: &Trial| {
        trial.figures.metric("redis_dial_failures_total")
            + trial.figures.metric("redis_connects_total")
    };
    trial.inject(|| bench.cluster.nodes.iter_mut().for_each(|node| node.kill()));
    trial.until_local();
    let (from, before) = (trial.load.now(), dialled(&trial));
    trial.calls(rate() * 2);
    let after = (dialled(&trial) - before) as f64 / (trial.load.now() - from).as_secs_f64();
    // Three masters with two connections each, twenty milliseconds apart at first, then a second.
    assert!(after < 100.0, "{after} dials a second");
    let outcome = trial.end();
    let said = format!("{} % local, {after:.0} dials/s", outcome.local_share());
    Observation { recover: None, ..bounded(&outcome, said, 0.0) }
}

pub fn slots_move() -> Observation {
    let bench = Bench::start(&redis_behind_proxy::PATIENT);
    let mut trial = bench.trial();
    trial.inject(|| ());
    let slots: Vec<u16> = keys_of(&bench.tidegate, "local", &bench.values[..KEYS_EACH])
        .iter()
        .map(|key| bench.cluster.slot_of(key))
        .collect();
    let rounds = either(1, 5);
    for round in 0..rounds {
        for slot in &slots {
            let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
            move_slot(&bench.cluster, &trial, *slot, from, to);
        }
    }
    trial.calls(rate());
    trial.heal(|| ());
    trial.until_redis();
    let (moved, ask) =
        (trial.figures.metric("redis_moved_total"), trial.figures.metric("redis_ask_total"));
    let outcome = trial.end();
    let slots = slots.len() * rounds;
    let said =
        format!("{slots} slots moved: {moved} MOVED, {ask} ASK, {} % local", outcome.local_share());
    let seen = bounded(&outcome, said, 0.0);
    assert_eq!((seen.beyond, outcome.local_share()), (Some(0.0), 0));
    Observation { detect: None, recover: None, ..seen }
}

/// As an operator's tool does it, a step at a time, each under load.
fn move_slot(cluster: &Cluster, trial: &Trial, slot: u16, from: usize, to: usize) {
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let (slot, port) = (slot.to_string(), target.port.to_string());
    let set = |node: usize, words: &[&str]| {
        cluster.nodes[node].ask(&[&["CLUSTER", "SETSLOT", &slot], words].concat())
    };
    set(to, &["IMPORTING", &cluster.id(from)]);
    set(from, &["MIGRATING", &cluster.id(to)]);
    trial.calls(KEYS);
    let keys = source.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
    for key in redis::from_redis_value::<Vec<String>>(keys).unwrap() {
        source.ask(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
    }
    trial.calls(KEYS);
    for node in [to, from, 2] {
        set(node, &["NODE", &cluster.id(to)]);
    }
    trial.calls(KEYS);
}

pub fn one_black_hole() -> Observation {
    let cluster = Cluster::start_behind_a_proxy(&[&acl::line(acl::CLUSTER)]);
    // Where refusals are cached, Redis is hardly asked once the limits are used up.
    let bench = Bench::of(cluster, &["--rejection-cache", "false"]);
    let proxy = bench.cluster.proxy.as_ref().expect("a proxy");
    let mut trial = bench.trial();
    trial.calls(either(0, 2 * rate()));
    trial.inject(|| proxy.both(Fault::Swallow));
    trial.until_local();
    trial.calls(KEYS * limit() * 8 / 10);
    trial.calls(either(0, 2 * rate()));
    trial.heal(|| proxy.heal());
    trial.until_redis();
    let outcome = trial.end();
    let (before, during) =
        (p99(outcome.before().filter(others)), p99(outcome.during().filter(others)));
    let said = format!("other shards' p99 {:.1} → {:.1} ms", ms(before), ms(during));
    Observation { calm: before, p99: during, ..bounded(&outcome, said, 0.0) }
}

/// Each call has a counter on the silent master that nobody reaches the end of, and a narrow one on a
/// sound master: what the stand-in admits must be charged there.
pub fn silent_slot() -> Observation {
    let bench = Bench::start(&[]);
    let wide = spread(&bench.cluster, &bench.tidegate, "wide");
    let sound: Vec<String> = bench.values[KEYS_EACH..].to_vec();
    let questions: Vec<_> =
        sound.iter().map(|value| question(&[&[("wide", &wide[0])], &[("local", value)]])).collect();
    let count = AtomicU64::new(0);
    let asks: CallPlan = Arc::new(move |_| {
        let at = count.fetch_add(1, Ordering::SeqCst) as usize % questions.len();
        ((KEYS_EACH + at) as u32, questions[at].clone())
    });
    let mut trial = Trial::with(&[&bench.tidegate], rate(), &asks);
    let most = sound.len() as u64 * limit();
    trial.calls(most * 3 / 10);
    trial.inject(|| bench.cluster.nodes[0].freeze());
    trial.until_local();
    trial.calls(most * 2);
    let told = trial.figures.latest();
    bench.cluster.nodes[0].thaw();
    let outcome = trial.end();
    let admitted = outcome.book.iter().filter(|entry| entry.told == CallResult::Admitted).count();
    let said = format!("{} local answers, {admitted} of {most} admitted", told.local);
    let seen = bounded(&outcome, said, 0.0);
    Observation { recover: None, ..seen }
}
