//! Waits of calls beside something else, compared with the waits just before it.

#![allow(clippy::disallowed_methods, reason = "measures how long calls wait")]

use std::time::{Duration, Instant};

use super::grpc_client::{CallDescriptor, CallRequest, Client, ClientSettings};

use super::tidegate_process::Tidegate;

/// Pairs of measurements.
pub(crate) const PAIRS: usize = 5;

/// Callers that send at the same time, each one call after the other with a pause of a millisecond.
const CALLERS: usize = 4;

/// Connects with a deadline that no call reaches on a busy machine.
pub(crate) async fn connect(serving: &Tidegate) -> Client {
    let target = serving.port("grpc").to_string();
    let settings = ClientSettings { target, timeout: Some(Duration::from_secs(20)), tls: None };
    Client::connect(&settings).await.expect("it serves")
}

/// Sends small calls to `domain` for as long as it `lasts`. Returns their 99th percentile.
///
/// # Panics
///
/// Panics if a call is not admitted.
pub(crate) async fn p99_of_calls(serving: &Tidegate, domain: &str, lasts: Duration) -> Duration {
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let mut client = connect(serving).await;
        let entries = vec![(b"client".to_vec(), caller.to_string().into_bytes())];
        let descriptors = vec![CallDescriptor { entries, ..CallDescriptor::default() }];
        let request = CallRequest { domain: domain.to_owned(), descriptors, hits: 0 };
        callers.spawn(async move {
            let mut waits = Vec::new();
            while began.elapsed() < lasts {
                let from = Instant::now();
                let response = client.send(&request).await.expect("the call is decided");
                assert!(!response.refused, "the limit is high");
                waits.push(from.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            waits
        });
    }
    let mut waits: Vec<Duration> = callers.join_all().await.into_iter().flatten().collect();
    waits.sort_unstable();
    waits[waits.len() * 99 / 100]
}

/// Prints the pairs, and returns the median of the first and of the second figures.
pub(crate) fn medians(what: &str, pairs: &[(Duration, Duration)]) -> (Duration, Duration) {
    let median = |mut each: Vec<Duration>| {
        each.sort_unstable();
        each[each.len() / 2]
    };
    let before = median(pairs.iter().map(|pair| pair.0).collect());
    let beside = median(pairs.iter().map(|pair| pair.1).collect());
    let ratio = beside.as_secs_f64() / before.as_secs_f64();
    println!(
        "{what}: median p99 {before:?} before, {beside:?} beside, {ratio:.2} times: {pairs:?}"
    );
    (before, beside)
}
