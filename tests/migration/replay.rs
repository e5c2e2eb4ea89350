//! The replay.

use std::collections::BTreeSet;

use tidegate::wire::client::{Client, ClientSettings};

use crate::answer::{BESIDES, answer};
use crate::calls::{recorded, rows};
use crate::manifest;
use crate::process::{Serving, directory};
use crate::support::process::{PATIENCE, Server};

#[tokio::test]
async fn the_swapped_image_answers_as_before_but_for_the_differences_on_the_page() {
    let redis = Server::start(&[]);
    let root = directory(&[]);
    let mut command = manifest::command(root.path(), &format!("127.0.0.1:{}", redis.port));
    // So long that a busy machine does not count on its own.
    command.env("TIDEGATE_STORE_BUDGET", "10s");
    let serving = Serving::start(&mut command, root);
    let target = serving.port("grpc").to_string();
    let settings = ClientSettings { target, timeout: Some(PATIENCE), tls: None };
    let mut client = Client::connect(&settings).await.unwrap();
    let mut wrong = Vec::new();
    for call in recorded() {
        let mut got = answer(client.ask(&call.question()).await);
        if call.expected().metadata.is_none() {
            got.metadata = None;
        }
        if got != *call.expected() {
            wrong.push(format!(
                "{}\n  expected {:?}\n  got      {got:?}",
                call.why,
                call.expected()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), serving.log());
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
