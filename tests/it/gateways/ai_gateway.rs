//! Quotas as Envoy AI Gateway writes them, on every store: a limit for a tenant and one for all, for
//! each model of a backend. One request asks about each model that may serve it.

use std::time::Duration;

use crate::support::grpc_client::{
    CallDescriptor, CallRequest, CallResponse, Client, ClientSettings,
};
use serde_json::{Value, json};

use crate::support::acl;
use crate::support::heavy;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{Tidegate, metric};

const DOMAIN: &str = "ai-gateway-quota";
const BACKEND: &str = "default/openai";
/// More than the store's budget, which must not be what ends a call.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a refund, which nobody waits for, has until the next call must find it.
const SETTLED_WITHIN: Duration = Duration::from_millis(100);

const TENANT: &str = "rule-0-x-tenant-match-0";
const DEFAULT: &str = "rule-1-match--1";

/// The tree for these models. A year instead of an hour, so that no window ends during the test.
fn policy(models: &[&str]) -> String {
    let model = |model: &&str| {
        format!(
            "
      - key: model_name_override
        value: {model}
        descriptors:
          - key: {TENANT}
            quota_mode: true
            rate_limit: {{unit: year, requests_per_unit: 3}}
            metadata: {{candidates: {{{model}: {{tenant: 3}}}}}}
          - key: {DEFAULT}
            value: {DEFAULT}
            quota_mode: true
            rate_limit: {{unit: year, requests_per_unit: 100}}
            metadata: {{candidates: {{{model}: {{default: 100}}}}}}"
        )
    };
    let models: String = models.iter().map(model).collect();
    format!(
        "domain: {DOMAIN}\ndescriptors:\n  - key: backend_name\n    value: {BACKEND}\n    \
         descriptors:{models}\n"
    )
}

struct Gateway {
    client: Client,
    serving: Tidegate,
}

impl Gateway {
    async fn start(arguments: &[&str]) -> Gateway {
        let arguments = [&["--response-dynamic-metadata", "true"], arguments].concat();
        let serving = Tidegate::policy(&policy(&["small", "large"]), &arguments);
        let target = serving.port("grpc").to_string();
        let settings = ClientSettings { target, timeout: Some(PATIENCE), tls: None };
        let client = Client::connect(&settings).await.expect("it serves");
        Gateway { client, serving }
    }

    /// Asks whether one of these models may serve a request.
    async fn ask(&mut self, models: &[&str]) -> CallResponse {
        let descriptor = |model: &str, (bucket, value): (&str, &str)| {
            let entries = [("backend_name", BACKEND), ("model_name_override", model)];
            let entries = entries.into_iter().chain([(bucket, value)]);
            let bytes = |(key, value): (&str, &str)| (key.into(), value.into());
            CallDescriptor { entries: entries.map(bytes).collect(), ..CallDescriptor::default() }
        };
        let buckets = [(TENANT, "acme"), (DEFAULT, DEFAULT)];
        let each = models.iter().flat_map(|model| buckets.map(|bucket| descriptor(model, bucket)));
        let descriptors = each.collect();
        let request = CallRequest { domain: DOMAIN.to_owned(), descriptors, hits: 0 };
        let response = self.client.send(&request).await.expect("every call is decided");
        tokio::time::sleep(SETTLED_WITHIN).await;
        response
    }
}

fn codes(response: &CallResponse) -> Vec<bool> {
    response.statuses.iter().map(|status| status.refused).collect()
}

fn metadata(response: &CallResponse) -> Option<&Value> {
    response.metadata.as_ref().expect("it is on").get("metadata")
}

async fn quotas_hold(arguments: &[&str], source: &str) -> Tidegate {
    let mut gateway = Gateway::start(arguments).await;
    let whole = |model: &str| json!({model: {"tenant": 3, "default": 100}});
    for call in 1..=3 {
        let response = gateway.ask(&["small"]).await;
        assert!(!response.refused, "call {call}");
        assert_eq!(metadata(&response), Some(&json!({"candidates": whole("small")})));
    }
    let fourth = gateway.ask(&["small"]).await;
    assert!(fourth.refused, "the default does not outvote the tenant's quota");
    assert_eq!(codes(&fourth), [true, false]);
    assert_eq!(metadata(&fourth), None);
    assert_eq!(fourth.metadata.as_ref().unwrap()["tidegate"]["source"], source);
    for call in 1..=3 {
        let response = gateway.ask(&["small", "large"]).await;
        assert!(!response.refused, "call {call}: the other model has room");
        assert_eq!(codes(&response), [true, false, false, false]);
        assert_eq!(metadata(&response), Some(&json!({"candidates": whole("large")})));
        let listed = response.metadata.as_ref().unwrap()["descriptors"].as_array().unwrap();
        assert_eq!(listed.len(), 4);
        assert_eq!(listed[3]["entries"][1], "model_name_override=large");
    }
    let both = gateway.ask(&["large", "small"]).await;
    assert!(both.refused, "neither has room");
    assert_eq!(metadata(&both), None);
    gateway.serving
}

fn redis<'a>(kind: &'a str, url: &'a str, auth: &'a str) -> Vec<&'a str> {
    let pairs = [
        ["--redis-type", kind],
        ["--redis-url", url],
        ["--redis-auth", auth],
        ["--redis-budget", "2s"],
        // A remembered refusal would not have come from Redis.
        ["--rejection-cache", "false"],
        ["--require-redis", "true"],
    ];
    pairs.into_iter().flatten().collect()
}

fn auth() -> String {
    format!("{}:{}", acl::USER, acl::PASSWORD)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_of_models_hold_in_memory() {
    quotas_hold(&[], "memory").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_of_models_hold_in_redis() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let url = format!("127.0.0.1:{}", server.port);
    quotas_hold(&redis("single", &url, &auth()), "redis").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_of_models_hold_in_a_cluster_whose_slots_part_the_groups() {
    let _turn = heavy::turn().await;
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let url = format!("127.0.0.1:{}", cluster.nodes[2].port);
    let serving = quotas_hold(&redis("cluster", &url, &auth()), "redis").await;
    let calls = metric(&serving, "redis_split_calls_total");
    assert_eq!(calls, 8, "every call is over several slots");
}
