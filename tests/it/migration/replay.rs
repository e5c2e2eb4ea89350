//! Replays the recorded calls.

#![allow(clippy::disallowed_methods, reason = "THEIRS names a running envoyproxy/ratelimit")]

use std::collections::BTreeSet;

use crate::support::grpc_client::{Client, ClientSettings};

use super::comparable_answer::{BESIDES, Whose, answer};
use super::kubernetes_manifest;
use super::recorded_calls::{recorded, rows};
use crate::support::redis_server::{PATIENCE, Server};
use crate::support::tidegate_process::{Tidegate, directory};

/// In the record: a call that envoyproxy/ratelimit does not survive.
const PROCESS_ENDS: &str = "the process ends";

#[tokio::test]
async fn the_swapped_image_answers_as_before_but_for_the_differences_on_the_page() {
    let redis = Server::start(&[]);
    let root = directory(&[]);
    let mut command =
        kubernetes_manifest::command(root.path(), &format!("127.0.0.1:{}", redis.port));
    // So long that a busy machine does not count on its own.
    command.env("TIDEGATE_REDIS_BUDGET", "10s");
    let serving = Tidegate::start(&mut command, root);
    let wrong = replay(serving.port("grpc").to_string(), Whose::Ours).await;
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), serving.log());
}

/// For whoever changes the record: `THEIRS=HOST:PORT` is an envoyproxy/ratelimit, started with the
/// manifest's environment and files and an empty Redis. It must answer what is recorded.
#[tokio::test]
async fn what_is_recorded_of_theirs_is_what_theirs_answers() {
    let Ok(target) = std::env::var("THEIRS") else { return };
    let wrong = replay(target, Whose::Theirs).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Makes the calls in order; what was answered otherwise than recorded.
async fn replay(target: String, whose: Whose) -> Vec<String> {
    let settings = ClientSettings { target, timeout: Some(PATIENCE), tls: None };
    let mut client = Client::connect(&settings).await.unwrap();
    let mut wrong = Vec::new();
    for call in recorded() {
        let expected = match whose {
            Whose::Ours => call.here.as_ref().unwrap_or(&call.there),
            // Asking would end it.
            Whose::Theirs if call.there.error.as_deref() == Some(PROCESS_ENDS) => continue,
            Whose::Theirs => &call.there,
        };
        let mut got = answer(client.send(&call.question()).await, whose);
        if expected.metadata.is_none() {
            got.metadata = None;
        }
        if got != *expected {
            wrong.push(format!("{}\n  expected {expected:?}\n  got      {got:?}", call.why));
        }
    }
    wrong
}

#[test]
fn every_difference_is_a_row_of_the_page() {
    let rows = rows();
    let listed = |row: &str| assert!(rows.iter().any(|listed| listed.starts_with(row)), "{row}");
    BESIDES.into_iter().for_each(listed);
    let mut differences = BTreeSet::new();
    for call in recorded() {
        assert_eq!(call.here.is_some(), call.row.is_some(), "{}", call.why);
        let Some((here, row)) = call.here.zip(call.row) else { continue };
        assert_ne!(here, call.there, "{}", call.why);
        listed(&row);
        differences.insert(row);
    }
    assert!(differences.len() > 5, "{differences:?}");
}
