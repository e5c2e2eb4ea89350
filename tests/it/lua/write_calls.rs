//! Batching is invisible: calls that become one script call leave the same values and expiries in
//! Redis, and get the same answers, as the same calls in smaller writes or one by one.
//!
//! 5,000 random sequences, in `make proof` as many as make a million calls. Counters live for 50
//! sequences, so that states of earlier windows, of other limits, and of clocks that ran ahead are
//! met; in every other seed, the clock steps back and values are spoiled on the way. The seeds are
//! printed, TIDEGATE_SEED sets the first.

use std::sync::Arc;

use redis::Value;
use tidegate::domain::{Accounting, Call, Check, CounterKey, Hits, Limit, Micros, Op, Role, Unit};
use tidegate::store::redis::script::arguments::{CallScope, Encoder};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::STRICT;
use tidegate::store::redis::script::replay::{CallResult, Replay, WriteResults};
use tidegate::store::redis::script::reply::ReplyError;
use tidegate::store::redis::script::write_calls::{WriteCalls, is_shareable};

use crate::support::drawn_check::{DrawnCheck, scaled};
use crate::support::environment::number;
use crate::support::limits::*;
use crate::support::proof;
use crate::support::random::Random;
use crate::support::redis_server::Server;

const SEQUENCES: u64 = 5_000;
const SEQUENCES_PROVED: u64 = 90_000;
const SEQUENCES_PER_SEED: u64 = 50;
const COUNTERS: u64 = 12;
/// Seeds that once failed.
const REGRESSIONS: [u64; 1] = [436];
/// Numbers of a limit: those that it usually has, and those after a change.
const VARIANTS: u64 = 4;
/// How much expiries may differ, in milliseconds: the time that one transaction takes.
const EXPIRY_MILLIS: u64 = 2_000;

/// A call that owns its limits.
struct DrawnCall {
    checks: Vec<DrawnCheck>,
    accounting: Accounting,
    /// Time of the process that sends the call.
    local_now: Micros,
}

impl DrawnCall {
    fn checks(&self) -> Vec<Check<'_>> {
        self.checks.iter().map(DrawnCheck::check).collect()
    }

    /// Whether the call is sent as one whose other checks another node decides. No part has quotas.
    fn is_part(&self) -> bool {
        let has_quotas = self.checks.iter().any(|check| matches!(check.role, Role::Quota(_)));
        let is_whole = self.checks.len() == 1 || has_quotas;
        self.accounting == Accounting::AllOrNothing && !is_whole
    }
}

/// A way to send a sequence: under keys of its own, in writes of up to so many calls, or by `decide_call.lua`
/// (0).
struct Way {
    encoder: Encoder,
    prefix: Prefix,
    calls_max: u64,
}

/// All ways but the first, in which `decide_call.lua` decides the calls one by one.
const OTHER_WAYS: [&str; 4] =
    ["alone in their writes", "some writes", "one write", "one write to a node of a cluster"];

impl Way {
    fn new((name, calls_max, is_cluster): (&str, u64, bool)) -> Way {
        let prefix = Prefix::new(&format!("{name}:")).unwrap();
        Way { encoder: Encoder::new(prefix.clone(), &STRICT, is_cluster), prefix, calls_max }
    }

    fn key(&self, key: CounterKey, letter: u8) -> Vec<u8> {
        let same = (0..COUNTERS).find(|n| letter_of(*n) == letter).unwrap();
        self.prefix.key(&key, &limit_of(same, 0).algorithm).to_vec()
    }
}

#[tokio::test]
async fn batching_is_invisible() {
    let server = Server::start(&[]);
    let mut connection = server.connect().await;
    for script in STRICT.all() {
        redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(&script.text)
            .exec_async(&mut connection)
            .await
            .unwrap();
    }
    let variants = |n| (0..VARIANTS).map(|variant| limit_of(n, variant)).collect();
    let limits: Vec<Vec<Arc<Limit>>> = (0..COUNTERS).map(variants).collect();
    let ways = [
        ("decide_call", 0, false),
        ("alone", 1, false),
        ("some", 7, false),
        ("all", u64::MAX, false),
        ("node", u64::MAX, true),
    ];
    let ways = ways.map(Way::new);
    let mut tally = Tally::default();
    let first = number("TIDEGATE_SEED").unwrap_or(1);
    let seeds = proof::times(SEQUENCES, SEQUENCES_PROVED).div_ceil(SEQUENCES_PER_SEED);
    let regressions = REGRESSIONS.into_iter().filter(|_| first == 1);
    for seed in regressions.chain(first..first + seeds) {
        println!("seed {seed}");
        let mut random = Random::seeded(seed);
        let mut now = START;
        for nth in 0..SEQUENCES_PER_SEED {
            now = moved(&mut random, now, is_wild(seed));
            let count = 1 + random.below(24);
            let calls = (0..count).map(|_| draw_call(&mut random, &limits, seed, now)).collect();
            let is_spoiled = is_wild(seed) && random.one_in(3);
            let spoiled = is_spoiled.then(|| spoil(&mut random, seed, now));
            let sequence = Sequence { seed, nth, now, calls, spoiled };
            let (pipeline, sent) = sequence.send(&ways, &random);
            let replies: Vec<Value> = pipeline.query_async(&mut connection).await.unwrap();
            sequence.check(&sent, &mut replies.into_iter(), &mut tally);
        }
        redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    }
    assert_eq!(tally.disagreements, 0, "the script and the replay decide alike");
    let shared = tally.shared_calls;
    assert!(shared > seeds * SEQUENCES_PER_SEED, "{shared} calls shared a write");
}

/// What all sequences together did.
#[derive(Default)]
struct Tally {
    shared_calls: u64,
    disagreements: usize,
}

/// Calls at one time.
struct Sequence {
    seed: u64,
    nth: u64,
    now: Micros,
    calls: Vec<DrawnCall>,
    /// A counter, its letter, and the value that it gets before the calls.
    spoiled: Option<(CounterKey, u8, String)>,
}

impl Sequence {
    fn told(&self) -> String {
        format!("seed {}, sequence {}, spoiled {:?}", self.seed, self.nth, self.spoiled)
    }

    fn counters(&self) -> impl Iterator<Item = (CounterKey, u8)> + use<> {
        let seed = self.seed;
        (0..COUNTERS).map(move |n| (key(seed * COUNTERS + n), letter_of(n)))
    }

    /// The sequence in every way, and then every counter, in one transaction, so that expiries can be
    /// compared.
    fn send(&self, ways: &[Way], random: &Random) -> (redis::Pipeline, Vec<Vec<Sent>>) {
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        let mut sent = Vec::new();
        for way in ways {
            if let Some((key, letter, value)) = &self.spoiled {
                let key = way.key(*key, *letter);
                pipeline.cmd("SET").arg(&key).arg(value).arg("PX").arg(99_000_000).ignore();
            }
            sent.push(send(&mut pipeline, way, &self.calls, self.now, &mut random.clone()));
        }
        for (key, letter) in self.counters() {
            for way in ways {
                let key = way.key(key, letter);
                pipeline.cmd("GET").arg(&key);
                pipeline.cmd("PTTL").arg(&key);
            }
        }
        (pipeline, sent)
    }

    fn check(
        &self,
        sent: &[Vec<Sent>],
        replies: &mut impl Iterator<Item = Value>,
        tally: &mut Tally,
    ) {
        let mut answers: Vec<Vec<CallResult>> = Vec::new();
        for writes in sent {
            let mut each = Vec::new();
            for write in writes {
                let results = write.results(&replies.next().unwrap(), &self.calls, self.now);
                tally.shared_calls +=
                    if write.calls.len() > 1 { write.calls.len() as u64 } else { 0 };
                let disagrees = |result: &&CallResult| matches!(result, CallResult::Decided(reply) if reply.disagrees);
                tally.disagreements += results.each.iter().filter(disagrees).count();
                assert_eq!(results.error_code, None, "{}", self.told());
                each.extend(results.each);
            }
            answers.push(each);
        }
        let [one, others @ ..] = answers.as_slice() else { unreachable!() };
        for (other, way) in others.iter().zip(OTHER_WAYS) {
            for (at, call) in self.calls.iter().enumerate() {
                let (told, checks) = (self.told(), call.checks());
                assert_eq!(other[at], one[at], "{told}: {way}, and one by one: {at}: {checks:?}");
            }
        }
        for (key, letter) in self.counters() {
            let mut next = || {
                let (value, left) = (replies.next().unwrap(), replies.next().unwrap());
                (value, redis::from_redis_value::<i64>(left).unwrap())
            };
            let one = next();
            for way in OTHER_WAYS {
                let (other, told, of) = (next(), self.told(), (key, char::from(letter)));
                assert_eq!(other.0, one.0, "{told}: {way}, and one by one: {of:?}");
                let apart = other.1.abs_diff(one.1);
                let is_close = is_wild(self.seed) || apart <= EXPIRY_MILLIS;
                assert!(is_close, "{told}: {way}: {of:?}: {} {}", other.1, one.1);
            }
        }
    }
}

/// Whether the clock steps back and values are spoiled now and then. A script may keep the expiry of a
/// state that is ahead of the clock, where another renews it, so expiries are not compared then.
fn is_wild(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Calls that were sent together, from the `start`-th on.
struct Sent {
    start: usize,
    calls: WriteCalls,
}

/// Adds the sequence to the pipeline, in writes of one to `calls_max` calls.
fn send(
    pipeline: &mut redis::Pipeline,
    way: &Way,
    calls: &[DrawnCall],
    now: Micros,
    random: &mut Random,
) -> Vec<Sent> {
    let mut sent: Vec<Sent> = Vec::new();
    let mut room = 0;
    for (at, drawn) in calls.iter().enumerate() {
        let checks = drawn.checks();
        let call = call_of(drawn, &checks);
        if room == 0 || !sent.last().is_some_and(|last| last.calls.fits(&call, Some(now))) {
            room = match way.calls_max {
                u64::MAX => u64::MAX,
                most => 1 + random.below(most.max(1)),
            };
            sent.push(Sent { start: at, calls: WriteCalls::default() });
        }
        room -= 1;
        sent.last_mut().unwrap().calls.add(&way.encoder, &call, Some(now));
    }
    for one in &sent {
        let drawn = &calls[one.start];
        let checks = drawn.checks();
        let call = call_of(drawn, &checks);
        let scope = CallScope { is_part: drawn.is_part(), spans_slots: way.encoder.is_cluster() };
        pipeline.add_command(match (way.calls_max, one.calls.len()) {
            (0, _) => way.encoder.encode_apply(&call, scope, Some(now)).command,
            (_, 1) => call::encode(&way.encoder, &call, scope, Some(now)).command,
            _ => one.calls.encode(&way.encoder, scope.spans_slots).command,
        });
    }
    sent
}

impl Sent {
    fn results(&self, reply: &Value, calls: &[DrawnCall], now: Micros) -> WriteResults {
        let calls = &calls[self.start..self.start + self.calls.len()];
        if let [drawn] = calls {
            let reply = if drawn.is_part() {
                call::decode(reply, &drawn.checks(), Accounting::AllOrNothing, true)
            } else {
                call::decode(reply, &drawn.checks(), drawn.accounting, false)
            };
            let result = match reply {
                Ok(reply) => CallResult::Decided(reply),
                Err(ReplyError::NoWindow) => CallResult::NoWindow,
                Err(error) => panic!("{error:?}"),
            };
            return WriteResults { each: vec![result], error_code: None };
        }
        let Value::BulkString(reply) = reply else { panic!("at {now:?}: {reply:?}") };
        let mut replay = Replay::new(self.calls.limits(), reply).unwrap();
        for (nth, drawn) in calls.iter().enumerate() {
            let (checks, places) = (drawn.checks(), self.calls.places(nth));
            replay.next(&call_of(drawn, &checks), places, drawn.is_part()).unwrap();
        }
        replay.finish().unwrap()
    }
}

fn call_of<'a>(drawn: &DrawnCall, checks: &'a [Check<'a>]) -> Call<'a> {
    let DrawnCall { accounting, local_now, .. } = *drawn;
    Call { checks, accounting, now: local_now, deadline: None }
}

/// Every kind of limit that `decide.lua` takes.
fn limit_of(counter: u64, variant: u64) -> Arc<Limit> {
    let pick = |numbers: [u64; 4]| numbers[usize::try_from(variant).unwrap()];
    let hits = pick([5, 3, 20, 0]);
    let limit = match counter {
        0 => window(hits, MINUTE),
        1 => window(pick([40, 30, 4_000_000, 1]), SECOND),
        2 => window(pick([9, 900, 1, 5]), HOUR),
        3 => bucket(hits, pick([100_000, 200_000, 100_000, 1])),
        4 => floored(&bucket(20, 3 * SECOND), pick([0, 5, 10, 19])),
        5 => credits(hits, pick([7, 7, 13, 7]), MINUTE),
        6 => floored(&credits(30, 7, SECOND), pick([0, 3, 29, 1])),
        7 => billed(&credits(pick([5, 3, 20, 1]), 3, MINUTE)),
        8 => sliding_window(hits, MINUTE),
        9 => sliding_window(pick([50, 5, 4_000_000, 1]), SECOND),
        10 => calendar(hits, Unit::Day, "Europe/Berlin"),
        _ => billed(&window(hits, MINUTE)),
    };
    match (counter % 3, variant) {
        (0, 0..2) => blocking(&limit, 2),
        (0, _) => blocking(&limit, 90),
        _ => limit,
    }
}

fn letter_of(counter: u64) -> u8 {
    b"wwwbbbbbsskw"[usize::try_from(counter).unwrap()]
}

fn draw_call(random: &mut Random, limits: &[Vec<Arc<Limit>>], seed: u64, now: Micros) -> DrawnCall {
    let only_takes = random.one_in(2);
    let count = if random.one_in(3) { 1 + random.below(6) } else { 1 };
    // Mostly the same few, so that calls meet.
    let first = random.below(COUNTERS);
    let mut checks: Vec<DrawnCheck> = Vec::new();
    for nth in 0..count {
        let n = (first + nth * (1 + random.below(2))) % COUNTERS;
        let key = key(seed * COUNTERS + n);
        if checks.iter().any(|known| known.key == key) {
            continue;
        }
        let variant = if random.one_in(4) { random.below(VARIANTS) } else { 0 };
        let at = |number| usize::try_from(number).unwrap();
        let mut limit = Arc::clone(&limits[at(n)][at(variant)]);
        if random.one_in(24) {
            limit = scaled(random, &limit);
        }
        let capacity = limit.capacity().0;
        let cost = Hits(match random.below(24) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 53,
            3 => capacity + 1,
            4..6 => capacity,
            6..8 => 1 + random.below(capacity.max(1)),
            _ => 1 + random.below(3),
        });
        let op = match random.below(6) {
            0 if !only_takes => Op::Peek { hits: Hits(1 + random.below(capacity.clamp(1, 5))) },
            _ => Op::Take { cost },
        };
        let role = match random.below(8) {
            0 if !only_takes => Role::Shadow,
            1 if !only_takes => Role::Quota(0),
            2 if !only_takes => Role::Quota(1),
            _ => Role::Required,
        };
        checks.push(DrawnCheck { key, limit, op, role, holder: None });
    }
    let is_independent = !only_takes && random.one_in(3);
    let accounting =
        if is_independent { Accounting::Independent } else { Accounting::AllOrNothing };
    let days_off = if random.one_in(60) { random.below(4) } else { 0 };
    let local_now = Micros(now.0 + 24 * HOUR * days_off);
    let drawn = DrawnCall { checks, accounting, local_now };
    assert!(is_shareable(&drawn.checks()));
    drawn
}

/// A counter, its letter, and a value that no script of ours wrote, or one of another time.
fn spoil(random: &mut Random, seed: u64, now: Micros) -> (CounterKey, u8, String) {
    let n = random.below(COUNTERS);
    let at = match random.below(4) {
        0 => START.0 + random.below(10 * MINUTE),
        1 => now.0 + random.below(SECOND),
        _ => now.0 - MINUTE + random.below(3 * MINUTE),
    };
    let value = match random.below(16) {
        0 => "x".to_owned(),
        1 => "5".to_owned(),
        2 => "nan".to_owned(),
        3 => "inf".to_owned(),
        4 => "-1".to_owned(),
        5 => format!("{}.5", at),
        6 => format!("{}:{}", at, random.below(100)),
        7 => format!("{}:99999999999999999999", at),
        8 => format!("{:0>10}{:0>10}", at / MINUTE, random.below(9)),
        9 => format!("{}{:010}", at / MINUTE, random.below(9)),
        10 => format!("{}{:010}", at / SECOND + random.below(3), random.below(9)),
        11 => format!("{}:{}:{}", at / MINUTE + random.below(3), random.below(9), random.below(9)),
        12 => "99999999999999999999:5:5".to_owned(),
        13 => format!("{}{}{:09}", at / MINUTE, ['+', ' '][n as usize % 2], random.below(9)),
        14 => format!("{}0x{:08}", at / SECOND, random.below(9)),
        _ => format!("{}:5000000000:5000000000", at / MINUTE),
    };
    (key(seed * COUNTERS + n), letter_of(n), value)
}

fn moved(random: &mut Random, now: Micros, is_wild: bool) -> Micros {
    Micros(match random.below(if is_wild { 100 } else { 92 }) {
        0..30 => now.0,
        30..50 => now.0 + random.below(2_000),
        50..70 => now.0 + random.below(SECOND),
        70..85 => now.0 + random.below(2 * MINUTE),
        85..90 => now.0 + random.below(3 * HOUR),
        90..92 => now.0 + random.below(50 * HOUR),
        92..95 => now.0.saturating_sub(random.below(3 * SECOND)),
        95..99 => now.0.saturating_sub(random.below(3 * MINUTE)),
        _ => now.0.saturating_sub(random.below(100 * HOUR)),
    })
}
