//! Slots of concurrency limits, and who releases them.

use tidegate_client::{Call, Descriptor, Outcome};

use crate::support::{Tidegate, until_passes};

fn export() -> Call {
    Call::new([Descriptor::new([("export", "ann")]).hold()])
}

#[tokio::test]
async fn a_slot_is_released_when_its_guard_is_dropped() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let (decision, hold) = client.hold(&export()).await;
    assert!(decision.passes());
    let hold = hold.expect("a slot");
    let (second, none) = client.hold(&export()).await;
    assert_eq!(second.outcome(), Outcome::Rejected);
    assert!(none.is_none());
    drop(hold);
    until_passes(&client, &export()).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_asks_leaves_no_slot_behind() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    for _ in 0..20 {
        let (asking, call) = (client.clone(), export());
        let asked = tokio::spawn(async move { asking.hold(&call).await });
        tokio::task::yield_now().await;
        asked.abort();
    }
    until_passes(&client, &export()).await;
}

#[tokio::test]
async fn a_refund_leaves_slots_alone() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let (_, hold) = client.hold(&export()).await;
    let _hold = hold.expect("a slot");
    client.refund(&export()).await.unwrap();
    assert_eq!(client.hold(&export()).await.0.outcome(), Outcome::Rejected);
}
