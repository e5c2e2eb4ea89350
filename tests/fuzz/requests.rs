//! Request bytes: decoded, matched, turned into keys, decided, encoded. INVALID_ARGUMENT is the
//! only error; two different paths never share a counter; a Redis key has its one layout.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use tidegate::clock::{Clock, ManualClock};
use tidegate::decide::{CallLimits, CounterSnapshots, DecideError, Decider, GlobalModes};
use tidegate::domain::{Decision, Descriptor, Entry, Micros, Op, Request};
use tidegate::policy::{Options, Policy, Secret, Source, compile};
use tidegate::server::{Decide, RlsService};
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::wire::{ResponseConfig, ResponseSettings};

use crate::fuzzer::{Target, feed};
use crate::mutation::Random;
use crate::sort;

/// Some of everything that the language has.
const EDGE: &str = include_str!("policy.yaml");
/// Counters that are remembered to be compared: a collision would show among far fewer.
const COUNTERS_MAX: usize = 300_000;
const MAX_KEYS: usize = 20_000;

const KEYS: [&str; 16] = [
    "a",
    "b",
    "a_b",
    "c",
    "plan",
    "remote_address",
    "list",
    "log",
    "slots",
    "flow",
    "quota",
    "tidegate.slot",
    "tidegate.hold",
    "tidegate.settle",
    "",
    "*",
];
const VALUES: [&str; 18] = [
    "",
    "1",
    "x",
    "b_c",
    "trial-1",
    "trial-",
    "gold",
    "silver",
    "other",
    "*",
    "x_y",
    "{x}",
    "a}b{c",
    "x\n{\"level\":\"error\"}",
    "\r\nx: y",
    "%s%n",
    "192.0.2.1",
    "\u{202e}\u{0}",
];

/// Decides, and looks at the keys on the way.
struct Looking {
    decider: Decider<MemoryStore, ()>,
    /// What each identity of the domain `plain` stood for.
    seen: Mutex<HashMap<u128, u64>>,
    /// How many rules, checks and refusals the last request met.
    met: Mutex<(usize, usize, bool)>,
}

impl Decide for Looking {
    fn policy(&self) -> impl Deref<Target = Arc<Policy>> + Send {
        self.decider.policy()
    }

    async fn decide<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
        limits: CallLimits<'_>,
    ) -> Result<Decision<'p>, DecideError> {
        let met = self.look(policy, request);
        let answer = self.decider.decide_by(policy, request, now, limits).await;
        if let Ok(decision) = &answer {
            assert_eq!(decision.statuses.len(), request.descriptors.len());
        }
        let refused = answer.as_ref().is_ok_and(|decision| decision.limited_by.is_some());
        *self.met.lock().unwrap() = (met.0, met.1, refused);
        answer
    }

    async fn peek<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<Decision<'p>, DecideError> {
        self.decide(policy, request, now, CallLimits::default()).await
    }

    async fn counters<'p>(
        &self,
        _: &'p Policy,
        _: &str,
        _: &[Entry<'_>],
        _: Op,
        _: Micros,
    ) -> CounterSnapshots<'p> {
        CounterSnapshots { each: Vec::new(), source: tidegate::domain::Source::Memory }
    }
}

impl Looking {
    fn look(&self, policy: &Policy, request: &Request<'_>) -> (usize, usize) {
        let matches = policy.find(request);
        let checks = policy.checks(request, &matches);
        for check in &checks.each {
            let text = Prefix::default().key(&check.key, &check.limit.algorithm);
            let inside = text.iter().filter(|byte| matches!(byte, b'{' | b'}')).count();
            let plain = text.iter().all(|byte| byte.is_ascii_graphic());
            assert!(text.starts_with(b"tg1") && inside == 2 && plain, "{text:?}");
        }
        if request.domain.starts_with("plain") {
            for (descriptor, span) in request.descriptors.iter().zip(&checks.spans) {
                for check in &checks.each[span.clone()] {
                    self.remember(check.key.identity, &path(request.domain, descriptor));
                }
            }
        }
        (matches.found.len(), checks.each.len())
    }

    fn remember(&self, identity: u128, path: &[u8]) {
        let stands_for = u64::from_le_bytes(blake3::hash(path).as_bytes()[..8].try_into().unwrap());
        let mut seen = self.seen.lock().unwrap();
        if seen.len() < COUNTERS_MAX || seen.contains_key(&identity) {
            let before = *seen.entry(identity).or_insert(stands_for);
            assert_eq!(before, stands_for, "two paths, one counter; the second: {path:02x?}");
        }
    }
}

/// What makes a counter where every entry does: nothing else may, and all of it must.
fn path(domain: &str, descriptor: &Descriptor<'_>) -> Vec<u8> {
    // An override with the window of the rule, a minute, counts on the rule's counter.
    let window = descriptor
        .limit
        .map(|limit| {
            limit.unit.seconds().saturating_mul(limit.unit_multiplier.into()).min(315_360_000)
        })
        .filter(|seconds| *seconds != 60);
    let mut path = format!("{} {domain} {window:?}", domain.len()).into_bytes();
    for Entry { key, value } in descriptor.entries {
        for part in [key, value] {
            path.extend((part.len() as u64).to_le_bytes());
            path.extend(*part);
        }
    }
    path
}

/// Three levels of any value, in two domains: each counter is its path.
fn plain(domain: &str) -> Source {
    let keys = ["a", "b", "a_b", "c", "plan"];
    let level = |below: &str| {
        let node = |key: &str| {
            format!("{{key: {key}, rate_limit: {{unit: minute, requests_per_unit: 9}}{below}}}")
        };
        keys.map(node).join(", ")
    };
    let (third, second);
    third = level("");
    second = level(&format!(", descriptors: [{third}]"));
    let first = level(&format!(", descriptors: [{second}]"));
    let text = format!("domain: {domain}\ndescriptors: [{first}]\n").into_bytes();
    Source { name: domain.to_owned(), text }
}

fn service() -> (Arc<Looking>, RlsService<Looking>, ManualClock) {
    let edge = Source { name: "edge".to_owned(), text: EDGE.as_bytes().to_vec() };
    let sources = [edge, plain("plain"), plain("plain_a")];
    let compiled = compile(&sources, &Options::default()).unwrap_or_else(|f| panic!("{f}"));
    let policy = Policy::build(compiled.domains, Secret::default());
    let store = MemoryStore::new(MAX_KEYS);
    let modes = GlobalModes { shadow: false, quota: false };
    let decider = Decider::new(Arc::new(policy), store, Arc::new(()), modes);
    let (seen, met) = (Mutex::default(), Mutex::default());
    let looking = Arc::new(Looking { decider, seen, met });
    let response_config = ResponseSettings {
        x_rate_limit: true,
        limited_by: Some("x-limited-by".to_owned()),
        retry_jitter_percent: 50,
        body: true,
        request_metadata: true,
        ..ResponseSettings::default()
    };
    let clock = ManualClock::at(Micros(1_763_596_800_000_000));
    let response_config = ResponseConfig::new(response_config).unwrap();
    let service =
        RlsService::new(Arc::clone(&looking), Clock::Manual(clock.clone()), response_config);
    (looking, service, clock)
}

fn varint(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn integer(field: u8, number: u64, into: &mut Vec<u8>) {
    into.push(field << 3);
    varint(number, into);
}

fn bytes(field: u8, bytes: &[u8], into: &mut Vec<u8>) {
    into.push(field << 3 | 2);
    varint(bytes.len() as u64, into);
    into.extend(bytes);
}

fn entry(random: &mut Random) -> Vec<u8> {
    let mut entry = Vec::new();
    bytes(1, random.pick(&KEYS).as_bytes(), &mut entry);
    let value = match random.below(8) {
        0 => random.bytes(40),
        1 => random.below(1_000).to_string().into_bytes(),
        _ => random.pick(&VALUES).as_bytes().to_vec(),
    };
    bytes(2, &value, &mut entry);
    entry
}

fn descriptor(random: &mut Random) -> Vec<u8> {
    let mut descriptor = Vec::new();
    let entries = if random.one_in(40) { 17 } else { 1 + random.below(4) };
    for _ in 0..entries {
        bytes(1, &entry(random), &mut descriptor);
    }
    if random.one_in(6) {
        let mut limit = Vec::new();
        integer(1, random.odd(), &mut limit);
        integer(2, random.below(9) as u64, &mut limit);
        if random.one_in(2) {
            let mut wrapped = Vec::new();
            integer(1, random.odd(), &mut wrapped);
            bytes(3, &wrapped, &mut limit);
        }
        bytes(2, &limit, &mut descriptor);
    }
    if random.one_in(3) {
        let mut wrapped = Vec::new();
        integer(1, random.odd(), &mut wrapped);
        bytes(3, &wrapped, &mut descriptor);
    }
    if random.one_in(6) {
        integer(4, 1, &mut descriptor);
    }
    descriptor
}

fn request(random: &mut Random) -> Vec<u8> {
    let mut request = Vec::new();
    let domain = *random.pick(&["edge", "edge", "plain", "plain_a", "plain", "nowhere", ""]);
    bytes(1, domain.as_bytes(), &mut request);
    let descriptors = if random.one_in(60) { 65 } else { random.below(5) };
    for _ in 0..descriptors {
        bytes(2, &descriptor(random), &mut request);
    }
    if random.one_in(3) {
        integer(3, random.odd(), &mut request);
    }
    request
}

#[test]
fn any_bytes_are_a_request_or_invalid_and_every_path_has_its_own_counter() {
    let target = Target { name: "requests", share: 40, words: &["edge", "plain", "a", "trial-"] };
    let (looking, service, clock) = service();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    feed(&target, Vec::new(), request, |input| {
        clock.advance(Micros(1 + input.len() as u64 * 997));
        match runtime.block_on(service.answer_encoded(input, None)) {
            Ok(answer) => {
                assert!(!answer.is_empty());
                let (found, checks, refused) = *looking.met.lock().unwrap();
                sort((found.min(6), checks.min(12), refused))
            }
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
                sort(status.message().trim_start_matches(|c: char| !c.is_ascii_digit()).len())
            }
        }
    });
}

#[test]
fn any_text_is_a_request_in_json_or_a_bad_one() {
    const SEEDS: [&str; 3] = [
        r#"{"domain":"edge","descriptors":[{"entries":[{"key":"a","value":"1"}]}]}"#,
        r#"{"domain":"edge","hitsAddend":3,"descriptors":[{"entries":[{"key":"a"}],
           "limit":{"requestsPerUnit":5,"unit":"HOUR"},"hitsAddend":"18446744073709551615",
           "isNegativeHits":true}]}"#,
        r#"{"domain":"plain","hits_addend":1e3,"descriptors":[{"entries":[{"key":"\ud800"}]}]}"#,
    ];
    let target =
        Target { name: "json", share: 4, words: &["\"", "{", "[", ":", ",", "null", "1e9"] };
    let (_, service, clock) = service();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let seeds = SEEDS.map(|seed| seed.as_bytes().to_vec()).to_vec();
    let make = |random: &mut Random| {
        let depth = random.below(300);
        [b"[".repeat(depth), random.bytes(8), b"]".repeat(depth)].concat()
    };
    feed(&target, seeds, make, |input| {
        clock.advance(Micros(1_000));
        let reply = runtime.block_on(service.answer_json(input));
        assert!(matches!(reply.status, 200 | 429 | 400), "{}", reply.status);
        sort((reply.status, reply.body.len() / 16))
    });
}
