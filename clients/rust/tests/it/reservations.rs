//! Reservations of a real Tidegate, and without one. The limit of `tokens` is 100.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tidegate_client::{
    Call, Client, Counters, Descriptor, Estimate, Failure, OnFailure, OnUnsettled, Outcome,
    Reservation,
};

use crate::support::{Certificates, PATIENCE, Tidegate, builder_at, call, free_port};

fn tokens() -> Call {
    call("tokens", "ann")
}

async fn reserve(client: &Client, hits: u64) -> Reservation {
    let budget = client.reserve(&tokens(), hits).await;
    assert_eq!(budget.decision().outcome(), Outcome::Allowed);
    budget
}

async fn fits(client: &Client, hits: u64) -> bool {
    let mut budget = client.reserve(&tokens(), hits).await;
    budget.release().await.unwrap();
    budget.decision().outcome() == Outcome::Allowed
}

/// Exactly so many tokens are available.
async fn assert_left(client: &Client, expected: u64) {
    assert!(fits(client, expected).await, "fewer than {expected} are left");
    assert!(!fits(client, expected + 1).await, "more than {expected} are left");
}

async fn until_left(client: &Client, expected: u64) {
    let start = Instant::now();
    while !fits(client, expected).await || fits(client, expected + 1).await {
        assert!(start.elapsed() < PATIENCE, "still not {expected} are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn estimates_that_do_not_fit_together_are_rejected_before_they_are_used() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let mut budgets = Vec::new();
    for estimate in [58, 80, 175, 175, 175] {
        budgets.push(client.reserve(&tokens(), estimate).await);
    }
    let outcomes: Vec<_> = budgets.iter().map(|it| it.decision().outcome()).collect();
    assert_eq!(outcomes[0], Outcome::Allowed);
    assert_eq!(outcomes[1..], [Outcome::Rejected; 4]);
    assert_eq!(client.counters(), Counters { allowed: 1, rejected: 4, failed: 0 });
    for (budget, estimate) in budgets.iter_mut().zip([58, 80, 175, 175, 175]) {
        budget.settle(estimate).await.unwrap();
    }
    assert_left(&client, 42).await;
}

#[tokio::test]
async fn what_was_not_used_is_free_again_and_a_second_settle_charges_nothing() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let mut budget = reserve(&client, 60).await;
    assert_left(&client, 40).await;
    budget.settle(25).await.unwrap();
    assert_left(&client, 75).await;
    budget.settle(70).await.unwrap();
    budget.release().await.unwrap();
    drop(budget);
    assert_left(&client, 75).await;
}

#[tokio::test]
async fn more_than_the_estimate_is_charged_even_beyond_the_limit() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    reserve(&client, 60).await.settle(130).await.unwrap();
    assert!(!fits(&client, 1).await);
}

#[tokio::test]
async fn a_drop_charges_the_estimate_or_not_by_choice() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    for (choice, left) in
        [(OnUnsettled::ChargeEstimate, 90), (OnUnsettled::Release, 90), (OnUnsettled::Keep, 80)]
    {
        let budget = client.reserve(&tokens(), Estimate::new(10).on_unsettled(choice)).await;
        assert!(budget.decision().passes());
        let failed = tokio::spawn(async move {
            let _budget = budget;
            panic!("the work failed");
        });
        assert!(failed.await.is_err());
        until_left(&client, left).await;
    }
}

#[tokio::test]
async fn a_hold_that_is_kept_ends_with_its_ttl_and_a_charged_estimate_does_not() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    for (hits, choice) in [(10, OnUnsettled::ChargeEstimate), (90, OnUnsettled::Keep)] {
        let estimate = Estimate::new(hits).ttl(Duration::from_millis(500)).on_unsettled(choice);
        assert!(client.reserve(&tokens(), estimate).await.decision().passes());
    }
    // When the hold of 90 has ended, that of 10 would have, too.
    until_left(&client, 90).await;
}

#[tokio::test]
async fn a_release_charges_nothing() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    reserve(&client, 60).await.release().await.unwrap();
    assert_left(&client, 100).await;
}

#[tokio::test]
async fn a_renewal_replaces_the_estimate_if_it_fits() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let mut budget = reserve(&client, 60).await;
    assert!(budget.renew(90).await.passes());
    assert_eq!(budget.renew(101).await.outcome(), Outcome::Rejected);
    assert_left(&client, 10).await;
    budget.settle(25).await.unwrap();
    let before = client.counters();
    assert!(budget.renew(1).await.passes(), "nothing is held, so nothing is asked");
    assert_eq!(client.counters(), before);
    assert_left(&client, 75).await;
}

#[tokio::test]
async fn a_rejected_reservation_settles_nothing() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let mut budget = client.reserve(&tokens(), 101).await;
    assert_eq!(budget.decision().outcome(), Outcome::Rejected);
    budget.settle(50).await.unwrap();
    drop(budget);
    drop(client.reserve(&tokens(), 101).await);
    assert_left(&client, 100).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_settles_is_charged() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let mut budget = reserve(&client, 60).await;
    {
        let mut settling = pin!(budget.settle(25));
        // The call waits for its channel, which no poll within this one can serve.
        let polled_once = poll_fn(|context| Poll::Ready(settling.as_mut().poll(context))).await;
        assert!(polled_once.is_pending());
    }
    drop(budget);
    until_left(&client, 75).await;
}

#[tokio::test]
async fn a_limit_without_reserve_is_charged_the_estimate() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let user = call("user", "ann");
    client.reserve(&user, 4).await.settle(1).await.unwrap();
    assert!(client.check(&user).await.passes());
    assert_eq!(client.check(&user).await.outcome(), Outcome::Rejected);
}

#[tokio::test]
async fn a_reservation_that_cannot_be_is_named() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let descriptor = || Descriptor::new([("tokens", "ann")]);
    let empty = Descriptor::new([("", ""); 0]);
    for wrong in [descriptor().hits(0), descriptor().hold(), empty] {
        let budget = client.reserve(&Call::new([wrong]), 1).await;
        let failure = budget.decision().failure().unwrap();
        assert!(failure.to_string().starts_with("INVALID_ARGUMENT: descriptors[0]"), "{failure}");
    }
    assert!(client.reserve(&Call::new([]), 1).await.decision().passes());
    assert_eq!(client.counters(), Counters { allowed: 0, rejected: 0, failed: 3 });
}

#[tokio::test]
async fn without_tidegate_the_client_decides_and_nothing_is_settled() {
    for (choice, passes) in [(OnFailure::Allow, true), (OnFailure::Deny, false)] {
        let client =
            builder_at(free_port(), &Certificates::new()).on_failure(choice).build().unwrap();
        let mut budget = client.reserve(&tokens(), 60).await;
        let decision = budget.decision();
        assert_eq!((decision.outcome(), decision.passes()), (Outcome::Failed, passes));
        // A settle that is sent fails.
        assert_eq!(budget.settle(25).await, Ok(()));
        assert_eq!(client.counters(), Counters { allowed: 0, rejected: 0, failed: 1 });
    }
}

#[tokio::test]
async fn a_settle_that_fails_says_why() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let mut budget = reserve(&client, 60).await;
    tidegate.kill();
    assert!(budget.settle(25).await.is_err_and(|failure: Failure| failure.may_pass_later()));
    assert_eq!(budget.settle(25).await, Ok(()));
}
