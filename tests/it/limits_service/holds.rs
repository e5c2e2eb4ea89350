//! Holds: `Reserve`, `Settle`, and `Release`, which every caller may use, and the entries of a request.

use prost::Message as _;
use prost_types::value::Kind;
use tonic::Code;
use tonic::transport::Channel;

use super::messages::{CheckRequest, CountersRequest, LimitsClient, check_result, client, request};
use crate::support::messages::tidegate::v1::{ReleaseRequest, ReserveRequest, SettleRequest};
use crate::support::messages::{RateLimitRequest, RateLimitResponse};
use crate::support::tidegate_process::Tidegate;

const BUDGET: &str = "domain: edge\ndescriptors:\n  - {key: client, rate_limit: {unit: day, \
                      requests_per_unit: 100, reserve: {ttl: 60}}}\n";

fn reserve(amount: u64) -> ReserveRequest {
    let (domain, descriptors) = ("edge".to_owned(), request("edge", "client", "ann").descriptors);
    ReserveRequest { domain, descriptors, amount, ..ReserveRequest::default() }
}

fn settle(id: &str, amount: u64) -> SettleRequest {
    let (domain, descriptors) = ("edge".to_owned(), request("edge", "client", "ann").descriptors);
    SettleRequest { domain, descriptors, amount, id: id.to_owned() }
}

fn release(id: &str) -> ReleaseRequest {
    let (domain, descriptors) = ("edge".to_owned(), request("edge", "client", "ann").descriptors);
    ReleaseRequest { domain, descriptors, id: id.to_owned() }
}

/// The hits available and held.
async fn read(client: &mut LimitsClient<Channel>) -> (u64, u64) {
    let descriptor = request("edge", "client", "ann").descriptors.pop();
    let counters = CountersRequest { domain: "edge".to_owned(), descriptor };
    let answer = client.read_counters(counters).await.unwrap().into_inner();
    (answer.counters[0].available.unwrap(), answer.counters[0].held)
}

#[tokio::test]
async fn a_caller_reserves_settles_and_releases() {
    let server = Tidegate::policy(BUDGET, &["--counter-access", "write"]);
    let mut client = client(server.port("grpc")).await;
    let first = client.reserve(reserve(60)).await.unwrap().into_inner();
    let response = first.response.unwrap();
    assert_eq!(response.overall_code().as_str_name(), "OK");
    assert_eq!((first.id.len(), response.statuses[0].limit_remaining), (32, 40));
    assert_eq!(read(&mut client).await, (40, 60));

    let rejected = client.reserve(reserve(41)).await.unwrap().into_inner();
    assert_eq!(rejected.id, "");
    assert_eq!(rejected.response.unwrap().overall_code().as_str_name(), "OVER_LIMIT");
    let renewed = ReserveRequest { id: first.id.clone(), ..reserve(90) };
    assert_eq!(client.reserve(renewed).await.unwrap().into_inner().id, first.id);
    assert_eq!(read(&mut client).await, (10, 90));

    for _ in 0..2 {
        let settled = client.settle(settle(&first.id, 25)).await.unwrap().into_inner();
        assert_eq!(settled.overall_code().as_str_name(), "OK");
        assert_eq!(read(&mut client).await, (75, 0));
    }
    let second = client.reserve(reserve(75)).await.unwrap().into_inner();
    client.release(release(&second.id)).await.unwrap();
    assert_eq!(read(&mut client).await, (75, 0));

    client.reserve(reserve(50)).await.unwrap();
    let descriptor = request("edge", "client", "ann").descriptors.pop();
    let counters = CountersRequest { domain: "edge".to_owned(), descriptor };
    client.reset_counters(counters).await.unwrap();
    assert_eq!(read(&mut client).await, (100, 0));
}

#[tokio::test]
async fn a_shorter_ttl_ends_a_hold_sooner() {
    let server = Tidegate::policy(BUDGET, &["--counter-access", "read"]);
    let mut client = client(server.port("grpc")).await;
    let ttl = Some(prost_types::Duration { seconds: 0, nanos: 1 });
    let held = client.reserve(ReserveRequest { ttl, ..reserve(60) }).await.unwrap().into_inner();
    assert_ne!(held.id, "");
    let refused = client.reserve(reserve(60)).await.unwrap().into_inner().response.unwrap();
    if refused.overall_code().as_str_name() == "OVER_LIMIT" {
        let wait = refused.statuses[0].duration_until_reset.unwrap();
        assert_eq!(wait.seconds, 1, "not the 60 of the policy");
    }
    while read(&mut client).await != (100, 0) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn entries_hold_and_settle_and_the_id_is_metadata() {
    let server = Tidegate::policy(BUDGET, &["--counter-access", "read"]);
    let mut client = client(server.port("grpc")).await;
    let asked = |key: &str, id: &str, hits| {
        let mut asked = request("edge", "client", "ann");
        let entry = request("edge", key, id).descriptors.remove(0).entries.remove(0);
        asked.descriptors[0].entries.insert(0, entry);
        asked.descriptors[0].hits_addend = Some(hits);
        asked
    };
    let hold_of = |response: &RateLimitResponse| {
        let field = response.dynamic_metadata.as_ref()?.fields.get("hold")?;
        match field.kind.as_ref()? {
            Kind::StringValue(id) => Some(id.clone()),
            other => panic!("{other:?}"),
        }
    };
    let mut decide = async |request: RateLimitRequest| {
        let batch = CheckRequest { requests: vec![request.encode_to_vec().into()] };
        let mut answer = client.check(batch).await.unwrap().into_inner();
        match answer.results.remove(0).result.unwrap() {
            check_result::Result::Response(response) => Ok(response),
            check_result::Result::Error(status) => Err(status.message),
        }
    };
    let mine = decide(asked("tidegate.hold", "mine", 60)).await.unwrap();
    assert_eq!(hold_of(&mine).as_deref(), Some("mine"));
    let rejected = decide(asked("tidegate.hold", "yours", 60)).await.unwrap();
    assert_eq!(hold_of(&rejected), None);
    let settled = decide(asked("tidegate.settle", "mine", 5)).await.unwrap();
    assert_eq!((hold_of(&settled), settled.statuses[0].limit_remaining), (None, 95));
    let made = decide(asked("tidegate.hold", "", 95)).await.unwrap();
    let id = hold_of(&made).unwrap();
    assert_eq!(id.len(), 32);
    decide(asked("tidegate.settle", &id, 0)).await.unwrap();

    let mut both = asked("tidegate.hold", "a", 1);
    both.descriptors[0]
        .entries
        .extend(asked("tidegate.settle", "a", 1).descriptors[0].entries.first().cloned());
    let mut negative = asked("tidegate.settle", "a", 1);
    negative.descriptors[0].is_negative_hits = true;
    for invalid in [both, negative] {
        let error = decide(invalid).await.unwrap_err();
        assert!(
            error.starts_with("descriptors[0]: tidegate.hold, tidegate.settle, and"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_is_no_hold_is_an_invalid_argument() {
    let server = Tidegate::policy(BUDGET, &[]);
    let mut client = client(server.port("grpc")).await;
    let mut negative = reserve(1);
    negative.descriptors[0].is_negative_hits = true;
    let without_descriptors = ReserveRequest { descriptors: Vec::new(), ..reserve(1) };
    for (asked, message) in [
        (negative, "descriptors[0]: tidegate.hold"),
        (without_descriptors, "descriptors must not be empty"),
    ] {
        let status = client.reserve(asked).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(message), "{status:?}");
    }
}
