//! The quota service of Envoy AI Gateway: plain text, an argument that nobody parses, and no port
//! before the first policy.
//!
//! Not here: how quotas are decided (`decisions`), the manifest that the chart renders (`tests/chart`).

use std::process::Command;

use super::messages::{RateLimitDescriptor, resource, yearly};
use super::plane::ControlPlane;
use super::served::{enforces, ratelimit};
use crate::support::http::post;
use crate::support::redis_server::Server as RedisServer;
use crate::support::tidegate_process::{Tidegate, directory};

const DOMAIN: &str = "ai-gateway-quota";

/// One backend with a quota for one model, and nested as AI Gateway nests them.
fn quota(requests_per_unit: u32) -> RateLimitDescriptor {
    let limit = RateLimitDescriptor {
        value: "small".to_owned(),
        quota_mode: true,
        ..yearly("model_name_override", requests_per_unit)
    };
    RateLimitDescriptor {
        key: "backend_name".to_owned(),
        value: "default/one".to_owned(),
        descriptors: vec![limit],
        ..Default::default()
    }
}

fn started(plane: &ControlPlane, redis: &RedisServer) -> Tidegate {
    let files = directory(&[]);
    let mut command: Command = ratelimit(&files);
    command.arg("--quotaRateLimitServiceAddr=envoy-ai-gateway-ratelimit:8081").envs([
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ai-gateway-ratelimit"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("TIDEGATE_REDIS_BUDGET", "10s"),
    ]);
    command.env("CONFIG_GRPC_XDS_SERVER_URL", plane.address.to_string());
    command.env("REDIS_URL", format!("127.0.0.1:{}", redis.port));
    Tidegate::start(&mut command, files)
}

fn ask(serving: &Tidegate) -> u16 {
    let entries = r#"{"key":"backend_name","value":"default/one"},
                     {"key":"model_name_override","value":"small"}"#;
    let body = format!(r#"{{"domain":"{DOMAIN}","descriptors":[{{"entries":[{entries}]}}]}}"#);
    post(serving.port("http"), "/json", &body).status
}

#[test]
fn with_the_argument_of_ai_gateways_manifest_it_serves_the_quotas_of_its_control_plane() {
    let (plane, redis) =
        (ControlPlane::start("envoy-ai-gateway-ratelimit", None), RedisServer::start(&[]));
    plane.set("1", vec![resource(DOMAIN, vec![quota(2)])]);
    let serving = started(&plane, &redis);
    plane.acknowledged("1");
    let path = format!("{DOMAIN}.backend_name_default/one.model_name_override_small");
    enforces(&serving, &[(&path, 2)]);
    assert_eq!([ask(&serving), ask(&serving), ask(&serving)], [200, 200, 429]);
    let ignored = "\"--quotaRateLimitServiceAddr\"";
    assert_eq!(serving.log().matches(ignored).count(), 1, "{}", serving.log());
}
