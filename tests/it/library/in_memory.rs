//! A limiter with counters in memory.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{CheckError, ConfigError, Decision, Descriptor, Limiter};

use crate::support::tidegate_process::FIVE_A_DAY;

/// The result of a future that never suspends.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the limiter suspended"),
    }
}

fn limiter(policy: &str) -> Limiter {
    Limiter::from_yaml(policy).unwrap()
}

fn client(name: &str) -> [Descriptor<'_>; 1] {
    [Descriptor::new([("client", name)])]
}

fn check(limiter: &Limiter, descriptors: &[Descriptor<'_>]) -> Decision {
    at_once(limiter.check("edge", descriptors)).unwrap()
}

const BUCKET: &str = "
domain: edge
descriptors:
  - key: client
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 60, burst: 5}
";

#[test]
fn the_sixth_call_is_rejected_without_an_async_runtime() {
    let limiter = limiter(BUCKET);
    for left in (0..5).rev() {
        let decision = check(&limiter, &client("ann"));
        assert!(decision.is_admitted());
        assert_eq!((decision.retry_after(), decision.limited_by()), (None, None));
        let status = decision.descriptors()[0];
        assert!(status.is_within_limit());
        assert_eq!((status.limit(), status.remaining()), (Some(60), Some(left)));
    }
    let sixth = check(&limiter, &client("ann"));
    assert!(!sixth.is_admitted() && sixth.is_retry_after_exact());
    assert_eq!((sixth.limited_by(), sixth.source()), (Some("edge.client"), "memory"));
    let wait = sixth.retry_after().unwrap();
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(60), "{wait:?}");
    assert_eq!(sixth.retry_after_secs(), Some(wait.as_micros().div_ceil(1_000_000) as u64));
    let status = sixth.descriptors()[0];
    assert!(!status.is_within_limit());
    assert_eq!((status.remaining(), status.reset_after()), (Some(0), Some(wait)));
    assert!(check(&limiter, &client("bob")).is_admitted(), "another counter");
}

#[test]
fn a_rejected_call_charges_nothing_and_waiting_may_not_help() {
    let limiter = limiter(BUCKET);
    let [two] = client("ann");
    let too_much = check(&limiter, &[two.clone().hits(6)]);
    assert_eq!((too_much.is_admitted(), too_much.retry_after_secs()), (false, None));
    let both = [client("bob")[0].clone().hits(5), two.hits(6)];
    assert!(!check(&limiter, &both).is_admitted());
    assert_eq!(check(&limiter, &client("bob")).descriptors()[0].remaining(), Some(4));
}

#[test]
fn a_peek_and_zero_hits_charge_nothing() {
    let limiter = limiter(BUCKET);
    let peek = |descriptors: &[Descriptor<'_>]| at_once(limiter.peek("edge", descriptors)).unwrap();
    for _ in 0..9 {
        assert!(peek(&client("ann")).is_admitted());
        assert!(check(&limiter, &[client("ann")[0].clone().hits(0)]).is_admitted());
    }
    check(&limiter, &[client("ann")[0].clone().hits(5)]);
    let rejected = peek(&client("ann"));
    assert!(!rejected.is_admitted() && rejected.retry_after_secs().is_some());
    assert!(!check(&limiter, &[client("ann")[0].clone().hits(0)]).is_admitted());
}

#[test]
fn a_refund_returns_hits_up_to_the_limit() {
    let limiter = limiter(BUCKET);
    let refund = |hits| at_once(limiter.refund("edge", &[client("ann")[0].clone().hits(hits)]));
    check(&limiter, &[client("ann")[0].clone().hits(5)]);
    refund(2).unwrap();
    assert_eq!(check(&limiter, &client("ann")).descriptors()[0].remaining(), Some(1));
    refund(100).unwrap();
    assert_eq!(check(&limiter, &client("ann")).descriptors()[0].remaining(), Some(4));
}

#[test]
fn slots_are_released_by_their_holder() {
    let limiter = limiter(
        "{domain: edge, descriptors: [{key: client, rate_limit: {algorithm: concurrency, \
         requests_per_unit: 1}}]}",
    );
    let release =
        |holder: &str| at_once(limiter.refund("edge", &[client("ann")[0].clone().holder(holder)]));
    let running = check(&limiter, &client("ann"));
    let holder = running.holder().unwrap();
    assert!(!check(&limiter, &client("ann")).is_admitted());
    release("somebody else").unwrap();
    assert!(!check(&limiter, &client("ann")).is_admitted());
    release(holder).unwrap();
    let named = check(&limiter, &[client("ann")[0].clone().holder("job 7")]);
    assert_eq!((named.is_admitted(), named.holder()), (true, None));
    release("job 7").unwrap();
    assert!(check(&limiter, &client("ann")).is_admitted());
}

#[test]
fn clones_share_counters_and_what_has_no_limit_passes() {
    let limiter = limiter(FIVE_A_DAY);
    let clone = limiter.clone();
    let passed = (0..6).filter(|call| {
        let limiter = if call % 2 == 0 { &limiter } else { &clone };
        check(limiter, &client("ann")).is_admitted()
    });
    assert_eq!(passed.count(), 5);
    let unmatched = check(&limiter, &[Descriptor::new([("stranger", "x")])]);
    assert!(unmatched.is_admitted() && unmatched.is_domain_known());
    assert_eq!((unmatched.source(), unmatched.descriptors()[0].remaining()), ("policy", None));
    let unknown = at_once(limiter.check("typo", &client("ann"))).unwrap();
    assert!(unknown.is_admitted() && !unknown.is_domain_known());
}

#[test]
fn a_new_policy_keeps_the_counters_and_an_invalid_one_changes_nothing() {
    let limiter = limiter(FIVE_A_DAY);
    check(&limiter, &[client("ann")[0].clone().hits(5)]);
    let invalid = limiter.replace_policy([("new.yaml", "domain: edge\ndescriptors: {}\n")]);
    let Err(ConfigError::Policy(text)) = invalid else { panic!("{invalid:?}") };
    assert!(text.starts_with("new.yaml:2:"), "{text}");
    assert!(!check(&limiter, &client("ann")).is_admitted());
    let seven = FIVE_A_DAY.replace("requests_per_unit: 5", "requests_per_unit: 7");
    limiter.replace_policy([("new.yaml", seven)]).unwrap();
    assert_eq!(check(&limiter, &client("ann")).descriptors()[0].remaining(), Some(1));
}

#[test]
fn a_call_beyond_a_bound_is_an_error_that_names_it() {
    let limiter = limiter(FIVE_A_DAY);
    let error = |domain: &str, descriptors: &[Descriptor<'_>]| {
        let errors = [
            at_once(limiter.check(domain, descriptors)).unwrap_err(),
            at_once(limiter.peek(domain, descriptors)).unwrap_err(),
            at_once(limiter.refund(domain, descriptors)).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        match &errors[0] {
            CheckError::Invalid(reason) => reason.clone(),
            other => panic!("{other}"),
        }
    };
    let one = client("ann");
    assert_eq!(error("", &one), "the domain must not be empty");
    assert_eq!(error("edge", &[]), "a call needs at least one descriptor");
    let many = vec![one[0].clone(); 2_049];
    assert_eq!(error("edge", &many), "at most 2048 descriptors in one call");
    let long = [one[0].clone(), Descriptor::new(vec![("k", "v"); 161])];
    assert_eq!(error("edge", &long), "descriptors[1]: at most 160 entries");
    let nameless = [Descriptor::new([("", "v")])];
    assert_eq!(error("edge", &nameless), "descriptors[0]: a key must not be empty");
    let value = "x".repeat(1024 * 1024);
    assert_eq!(
        error("edge", &client(&value)),
        "the descriptors of a call may have at most 1048576 bytes together"
    );
    let all = check(&limiter, &many[..2_048]);
    assert!(!all.is_admitted(), "the largest call is decided");
}

#[test]
fn a_builder_takes_several_files_and_rejects_options_out_of_range() {
    let jobs = FIVE_A_DAY.replace("edge", "jobs");
    let builder = Limiter::builder().policy("a.yaml", FIVE_A_DAY).policy("b.yaml", jobs);
    let limiter = builder.clone().max_counters(1_024).build().unwrap();
    for domain in ["edge", "jobs"] {
        let five = [client("ann")[0].clone().hits(5)];
        assert!(at_once(limiter.check(domain, &five)).unwrap().is_admitted());
    }
    for counters in [1_023, 1_000_000_001] {
        let error = builder.clone().max_counters(counters).build().unwrap_err();
        assert!(matches!(error, ConfigError::Option(text) if text.starts_with("max_counters: ")));
    }
    assert!(matches!(Limiter::builder().build(), Err(ConfigError::Policy(_))), "no file");
}

#[test]
fn a_flood_of_keys_stays_within_the_bound_and_sweeps_never_forget_a_live_counter() {
    let limiter =
        Limiter::builder().policy("a.yaml", FIVE_A_DAY).max_counters(1_024).build().unwrap();
    check(&limiter, &[client("ann")[0].clone().hits(5)]);
    for number in 0..5_000 {
        check(&limiter, &client(&number.to_string()));
        limiter.sweep();
    }
    assert!(!check(&limiter, &client("ann")).is_admitted());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_together_never_pass_more_than_the_limit() {
    let limiter = limiter(FIVE_A_DAY);
    let calls = (0..64).map(|_| {
        let limiter = limiter.clone();
        // Spawning needs a future that is `Send`.
        tokio::spawn(async move { limiter.check("edge", &client("ann")).await })
    });
    let mut passed = 0;
    for call in calls.collect::<Vec<_>>() {
        passed += usize::from(call.await.unwrap().unwrap().is_admitted());
    }
    assert_eq!(passed, 5);
}
