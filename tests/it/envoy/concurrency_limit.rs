//! Concurrency limit on exports, `config/examples/in-flight`: never more in flight than the limit,
//! no slot released twice, and a slot that nobody releases is free again after its lease.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tempfile::{NamedTempFile, TempDir};

use super::admission_bounds::now;
use super::bootstrap::repository;
use super::envoy_process::Envoy;
use super::http_client::{PendingRequest, get};
use super::slow_backend::{End, SlowBackend};
use super::stack::{example, written};
use super::tidegate_behind_envoy::Tidegate;
use crate::support::environment::number;
use crate::support::random::Random;
use crate::support::redis_server::Server;
use crate::support::wait;

/// As the example states them.
const LIMIT: usize = 3;
const LEASE: &str = "lease: 60";

/// Ways for an export to end that the client lives to see, and the status that it sees.
const ENDS: [(End, u16); 4] =
    [(End::Answer(200), 200), (End::Answer(500), 500), (End::Answer(404), 404), (End::Closed, 503)];

/// The example behind one or more Envoys. Calls that fail let their request pass.
struct Stack {
    edges: Vec<Envoy>,
    exports: SlowBackend,
    tidegate: Tidegate,
    _directories: Vec<TempDir>,
    _policy: NamedTempFile,
}

impl Stack {
    fn new(edges: usize, lease: &str) -> Stack {
        Stack::with_settings(edges, lease, &[])
    }

    /// With settings for Tidegate's environment.
    fn with_settings(edges: usize, lease: &str, settings: &[(&str, &str)]) -> Stack {
        let policy = repository("config/examples/in-flight/policy.yaml");
        let policy = fs::read_to_string(policy).expect("the example");
        assert!(policy.contains(LEASE), "{policy}");
        let policy = written(&policy.replace(LEASE, lease));
        let (exports, tidegate) =
            (SlowBackend::start("/export/"), Tidegate::start(policy.path(), settings));
        let bootstrap = || {
            example("in-flight")
                .with_undecided("/undecided")
                .aimed_at(exports.address, &[tidegate.grpc])
                .with_filter("failure_mode_deny", false)
        };
        let directories: Vec<TempDir> =
            (0..edges).map(|_| TempDir::new().expect("a temporary directory")).collect();
        let edges = directories.iter().map(|at| Envoy::start(&bootstrap(), at.path(), 1)).collect();
        Stack { edges, exports, tidegate, _directories: directories, _policy: policy }
    }

    /// Begins an export that is expected to pass.
    fn begin(&self, path: &str) -> PendingRequest {
        let begun = get(path).begin(self.edges[0].address);
        wait::until(path, || self.exports.has(path).then_some(()));
        begun
    }

    /// How many slots nobody holds, in Tidegate's eyes.
    fn free(&self) -> usize {
        let left = self.tidegate.left("edge", "endpoint=export,remote_address=127.0.0.1");
        left["exports-in-flight"] as usize
    }

    /// Envoy does not wait for the return of a slot, so the test does.
    fn wait_for_free(&self, free: usize) {
        wait::until(&format!("{free} free slots"), || (self.free() == free).then_some(()));
    }

    /// Asks what takes no slot: an export that is refused, and a request that passes although nobody
    /// decided it. Then refused once more: Envoy sends its calls over one connection, so that by then
    /// the ends of the others were told.
    fn disturb(&self) {
        let edge = &self.edges[0];
        let allowed = || edge.counter("cluster.backend.ratelimit.failure_mode_allowed");
        let before = allowed();
        for path in ["/export/refused", "/undecided", "/export/refused", "/export/refused"] {
            let reply = edge.ask(&get(path));
            let expected = if path == "/undecided" { 200 } else { 429 };
            assert_eq!(reply.status, expected, "{reply:?}");
        }
        assert_eq!(allowed(), before + 1);
    }
}

#[test]
fn a_slot_comes_back_however_its_export_ends_and_no_other_request_returns_one() {
    slots_come_back(&Stack::new(1, LEASE));
}

#[test]
fn in_redis_too_a_slot_comes_back_however_its_export_ends() {
    let redis = Server::start(&[]);
    let url = format!("127.0.0.1:{}", redis.port);
    // Redis' answer is waited for, however busy the machine is.
    let settings = [("REDIS_URL", &*url), ("TIDEGATE_REDIS_BUDGET", "20s")];
    slots_come_back(&Stack::with_settings(1, LEASE, &settings));
}

fn slots_come_back(stack: &Stack) {
    let mut begun: Vec<PendingRequest> =
        (0..LIMIT).map(|nth| stack.begin(&format!("/export/{nth}"))).collect();
    for (end, status) in ENDS {
        stack.disturb();
        assert_eq!(stack.free(), 0);
        stack.exports.end_first(end).expect("an export");
        assert_eq!(begun.remove(0).finish().status, status);
        stack.wait_for_free(1);
        begun.push(stack.begin(&format!("/export/after-{end:?}")));
    }
    // A client that gives up.
    stack.disturb();
    drop(begun.remove(0));
    stack.wait_for_free(1);
    begun.push(stack.begin("/export/after-giving-up"));
    stack.disturb();
    assert_eq!(stack.exports.now(), LIMIT);
    assert_eq!(stack.exports.most(), LIMIT);
    while stack.exports.end_first(End::Answer(200)).is_some() {}
    assert!(begun.into_iter().all(|begun| begun.finish().status == 200));
    stack.wait_for_free(LIMIT);
}

#[test]
fn never_more_than_the_limit_are_in_flight_in_any_mix_of_ends() {
    const CLIENTS: usize = 6;
    const EXPORTS_PER_CLIENT: usize = 25;
    let stack = Stack::new(1, LEASE);
    let running = AtomicUsize::new(CLIENTS);
    let refused = AtomicUsize::new(0);
    let mut random = Random::seeded(number("TIDEGATE_SEED").unwrap_or(1));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let random = Random::seeded(random.next());
            let (stack, running, refused) = (&stack, &running, &refused);
            scope.spawn(move || {
                let refusals = export_again_and_again(stack, client, EXPORTS_PER_CLIENT, random);
                refused.fetch_add(refusals, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        // Ends exports as long as there are clients: one whenever no slot is free, or everybody waits.
        while running.load(Ordering::SeqCst) > 0 {
            let waiting = LIMIT.min(running.load(Ordering::SeqCst));
            if stack.exports.now() >= waiting {
                let (end, _) = ENDS[random.below(ENDS.len() as u64) as usize];
                stack.exports.end_first(end);
            } else {
                thread::yield_now();
            }
        }
    });
    assert_eq!(stack.exports.most(), LIMIT);
    assert!(refused.into_inner() > 0, "nobody was refused");
    stack.wait_for_free(LIMIT);
}

/// So many exports of one client, one after another, some of which it gives up; and requests between
/// them that nobody decides. Returns how often it was refused before it got them.
fn export_again_and_again(
    stack: &Stack,
    client: usize,
    exports: usize,
    mut random: Random,
) -> usize {
    let edge = stack.edges[0].address;
    let (mut admitted, mut refused) = (0, 0);
    while admitted < exports {
        if random.below(4) == 0 {
            assert_eq!(get("/undecided").send(edge).status, 200);
        }
        let path = format!("/export/{client}-{admitted}");
        let begun = get(&path).begin(edge);
        if random.below(3) == 0 {
            let arrived = || stack.exports.has(&path) || begun.is_answered();
            wait::until(&path, || arrived().then_some(()));
            if !begun.is_answered() {
                drop(begun);
                admitted += 1;
                continue;
            }
        }
        match begun.finish().status {
            429 => refused += 1,
            200 | 500 | 404 | 503 => admitted += 1,
            other => panic!("{path}: {other}"),
        }
    }
    refused
}

#[test]
fn what_a_killed_envoy_held_comes_back_after_the_lease() {
    const LEASE_SECONDS: u64 = 2;
    let mut stack = Stack::new(2, &format!("lease: {LEASE_SECONDS}"));
    let taken_after = now();
    let begun: Vec<PendingRequest> =
        (0..LIMIT).map(|nth| stack.begin(&format!("/export/{nth}"))).collect();
    drop(stack.edges.remove(0));
    drop(begun);
    let reply = stack.edges[0].ask(&get("/export/refused"));
    // A machine that was too slow for the lease has nothing to show here.
    if now() < taken_after + Duration::from_secs(LEASE_SECONDS) {
        assert_eq!(reply.status, 429, "{reply:?}");
        assert!((1..=LEASE_SECONDS).contains(&reply.number("retry-after")), "{reply:?}");
        stack.wait_for_free(LIMIT);
        assert!(now() >= taken_after + Duration::from_secs(LEASE_SECONDS), "before the lease");
    }
    stack.wait_for_free(LIMIT);
    let _begun = stack.begin("/export/again");
}
