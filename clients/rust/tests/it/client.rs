//! Decisions of a real Tidegate.

use std::time::Duration;

use tidegate_client::{Call, Counters, Descriptor, Outcome};

use crate::support::{PATIENCE, Tidegate, call};

/// A year and a bit: the longest wait that the policy can ask for.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

#[tokio::test]
async fn the_sixth_of_five_is_rejected_with_the_time_to_wait() {
    let tidegate = Tidegate::serve(&["--headers", "x-ratelimit"]);
    let client = tidegate.client();
    for _ in 0..5 {
        let decision = client.check(&call("user", "ann")).await;
        assert_eq!(decision.outcome(), Outcome::Allowed, "{decision:?}");
        assert!(decision.passes());
        assert_eq!(decision.retry_after(), None);
    }
    let decision = client.check(&call("user", "ann")).await;
    assert_eq!(decision.outcome(), Outcome::Rejected);
    assert!(!decision.passes());
    let wait = decision.retry_after().expect("Retry-After");
    assert!((Duration::from_secs(1)..=YEAR).contains(&wait), "{wait:?}");
    let names: Vec<&str> = decision.headers().iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"retry-after") && names.contains(&"x-ratelimit-limit"), "{names:?}");
    assert_eq!(client.counters(), Counters { allowed: 5, rejected: 1, failed: 0 });
    assert_eq!(client.check(&call("user", "ben")).await.outcome(), Outcome::Allowed);
}

#[tokio::test]
async fn a_call_near_a_soft_limit_and_over_it_passes_with_marks() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    for expected in ["near", "over", "over"] {
        let decision = client.check(&call("soft", "ann")).await;
        assert_eq!(decision.outcome(), Outcome::Allowed);
        let marks: Vec<_> =
            decision.marks().iter().map(|(name, value)| (name.as_str(), value)).collect();
        assert_eq!(marks, [("x-quota", &expected.parse().unwrap())]);
    }
    let both =
        Call::new([Descriptor::new([("soft", "ann")]), Descriptor::new([("banned", "ann")])]);
    let decision = client.check(&both).await;
    assert_eq!((decision.outcome(), decision.marks().len()), (Outcome::Rejected, 0));
}

#[tokio::test]
async fn a_date_is_read_like_seconds() {
    let tidegate = Tidegate::serve(&["--retry-after", "date"]);
    let client = tidegate.client();
    let all = Call::new([Descriptor::new([("user", "ann")])]).hits(5);
    assert!(client.check(&all).await.passes());
    let wait = client.check(&all).await.retry_after().expect("Retry-After");
    assert!((Duration::from_secs(1)..=YEAR).contains(&wait), "{wait:?}");
}

#[tokio::test]
async fn hits_are_charged_and_refunded() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let three = call("user", "ann").hits(3);
    assert!(client.check(&three).await.passes());
    assert_eq!(client.check(&three).await.outcome(), Outcome::Rejected);
    client.refund(&three).await.unwrap();
    assert!(client.check(&three).await.passes());
    let peek = Call::new([Descriptor::new([("user", "ann")]).hits(0)]);
    for _ in 0..10 {
        assert!(client.check(&peek).await.passes(), "a peek charges nothing");
    }
}

#[tokio::test]
async fn values_that_are_not_text_are_counted() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let stray = Call::new([Descriptor::new([(b"user".as_slice(), b"a\xffb".as_slice())])]);
    assert!(client.check(&stray.clone().hits(5)).await.passes());
    assert_eq!(client.check(&stray).await.outcome(), Outcome::Rejected);
}

#[tokio::test]
async fn the_body_of_the_policy_arrives() {
    let tidegate = Tidegate::serve(&[]);
    let decision = tidegate.client().check(&call("spoken", "x")).await;
    assert_eq!(decision.outcome(), Outcome::Rejected);
    let body: serde_json::Value = serde_json::from_slice(decision.body()).unwrap();
    assert_eq!(body["error"], "slow down");
}

#[tokio::test]
async fn a_call_without_descriptors_passes_without_asking() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    assert!(client.check(&Call::new([])).await.passes());
    assert_eq!(client.counters(), Counters::default());
}

#[tokio::test]
async fn waiting_honours_retry_after_until_the_call_passes() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    for _ in 0..2 {
        assert!(client.wait(&call("paced", "job"), PATIENCE).await.passes());
    }
    let counters = client.counters();
    assert_eq!(counters.allowed, 2);
    assert!(
        (1..=2).contains(&counters.rejected),
        "told to wait once, and not polling: {counters:?}"
    );
}

#[tokio::test]
async fn waiting_gives_up_at_once_where_it_cannot_help() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    // Never allowed: there is no Retry-After.
    let decision = client.wait(&call("banned", "job"), YEAR).await;
    assert_eq!((decision.outcome(), decision.retry_after()), (Outcome::Rejected, None));
    // Allowed again next year, which is later than the patience ends.
    assert!(client.check(&call("user", "ann").hits(5)).await.passes());
    let decision = client.wait(&call("user", "ann"), Duration::ZERO).await;
    assert_eq!(decision.outcome(), Outcome::Rejected);
    assert_eq!(client.counters(), Counters { allowed: 1, rejected: 2, failed: 0 });
}

#[tokio::test]
async fn a_batch_has_a_decision_for_each_call() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let mut calls = vec![call("user", "ann"); 6];
    calls.push(Call::new([]));
    calls.push(call("", "an entry without a key"));
    calls.push(call("user", "ben"));
    let outcomes: Vec<Outcome> =
        client.check_many(&calls).await.iter().map(tidegate_client::Decision::outcome).collect();
    let of_ann = outcomes[..6].iter().filter(|it| **it == Outcome::Rejected).count();
    assert_eq!(of_ann, 1, "{outcomes:?}");
    assert_eq!(outcomes[6..], [Outcome::Allowed, Outcome::Failed, Outcome::Allowed]);
    assert_eq!(client.counters(), Counters { allowed: 6, rejected: 1, failed: 1 });
    assert!(client.check_many(&[]).await.is_empty());
}

#[tokio::test]
async fn a_batch_beyond_the_bound_fails_as_a_whole() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let calls = vec![call("user", "ann"); 1_025];
    let decisions = client.check_many(&calls).await;
    assert_eq!(decisions.len(), 1_025);
    assert!(decisions.iter().all(|it| it.outcome() == Outcome::Failed && it.passes()));
    // The largest batch, each with a rejection.
    let decisions = client.check_many(&calls[1..]).await;
    assert_eq!(decisions.iter().filter(|it| it.outcome() == Outcome::Rejected).count(), 1_019);
}
