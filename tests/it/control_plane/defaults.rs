//! `--policy-defaults`, and the keys in `metadata` that override them.

use std::collections::BTreeMap;
use std::fs;

use prost_types::value::Kind;
use prost_types::{Struct, Value as PbValue};
use serde_json::Value;

use super::messages::{RateLimitDescriptor, resource, yearly};
use super::plane::ControlPlane;
use super::served::plain;
use crate::support::http::get;
use crate::support::tidegate_process::{Tidegate, directory, run};
use crate::support::wait::until;

const DEFAULTS: &str = "
domains:
  - domain: team/*
    algorithm: token_bucket
    burst: 20
    on_store_failure: deny
  - domain: '*'
    on_store_failure: allow
    algorithm: sliding_window
";

/// The first limit of a domain, as `/policy` shows it.
fn limit(serving: &Tidegate, domain: &str) -> Value {
    until(&format!("the domain {domain}"), || {
        let policy: Value =
            serde_json::from_str(&get(serving.port("debug"), "/policy").body).expect("JSON");
        let rules = policy["rules"].as_array()?.clone();
        rules
            .into_iter()
            .find(|rule| rule["domain"] == domain)
            .map(|rule| rule["limits"][0].clone())
    })
}

fn with_metadata(descriptor: RateLimitDescriptor, fields: &[(&str, Kind)]) -> RateLimitDescriptor {
    let field =
        |(name, kind): &(&str, Kind)| ((*name).to_owned(), PbValue { kind: Some(kind.clone()) });
    let fields: BTreeMap<_, _> = fields.iter().map(field).collect();
    RateLimitDescriptor { metadata: Some(Struct { fields }), ..descriptor }
}

#[test]
fn a_domain_has_the_defaults_of_the_first_entry_that_matches_and_metadata_wins() {
    let plane = ControlPlane::start("test", None);
    let text = |text: &str| Kind::StringValue(text.to_owned());
    let own = with_metadata(
        yearly("client", 10),
        &[("burst", Kind::NumberValue(30.0)), ("on_store_failure", text("error"))],
    );
    plane.set(
        "1",
        vec![
            resource("team/a", vec![yearly("client", 10)]),
            resource("team/own", vec![own]),
            resource("other", vec![yearly("client", 10)]),
        ],
    );
    let files = directory(&[("defaults.yaml", DEFAULTS)]);
    let path = files.path().join("defaults.yaml");
    let argument = path.display().to_string();
    let serving = plain(&plane.address.to_string(), &[], &["--policy-defaults", &argument]);
    let of = |domain| {
        let limit = limit(&serving, domain);
        let text = |key: &str| limit[key].as_str().unwrap_or_default().to_owned();
        (text("algorithm"), limit["capacity"].as_u64(), text("on_store_failure"))
    };
    let named = |algorithm: &str, capacity, failure: &str| {
        (algorithm.to_owned(), Some(capacity), failure.to_owned())
    };
    assert_eq!(of("team/a"), named("token_bucket", 20, "deny"));
    assert_eq!(of("team/own"), named("token_bucket", 30, "error"));
    assert_eq!(of("other"), named("sliding_window", 10, "allow"));
    // A changed file takes effect, although no resource has changed.
    fs::write(&path, DEFAULTS.replace("burst: 20", "burst: 25")).expect("writable");
    until("the new burst", || (of("team/a") == named("token_bucket", 25, "deny")).then_some(()));
    // An invalid one does not.
    fs::write(&path, DEFAULTS.replace("burst: 20", "burst: many")).expect("writable");
    serving.logged_in_time("policy defaults not reloaded, the last good ones stay in force");
    assert_eq!(of("team/a"), named("token_bucket", 25, "deny"));
}

#[test]
fn an_invalid_file_of_defaults_ends_the_start_with_code_65_and_every_place() {
    for (text, expected) in [
        ("domains: [{domain: a, burst: 0}]", "domains[0].burst: `burst` must be at least 1"),
        ("domains: [{domain: a, cost: 3}]", "domains[0].cost: unknown key \"cost\"; there are"),
        ("domains: [{burst: 3}]", "domains[0]: an entry needs `domain: NAME`"),
        ("domain: [a]", "a defaults file has one key, the list `domains`"),
        (
            "domains: [{domain: a, hash_tag: client}]",
            "domains[0].hash_tag: `hash_tag` must be a list",
        ),
        ("domains: [{domain: a, body: {text: '{x}'}}]", "domains[0].body"),
    ] {
        let files = directory(&[("defaults.yaml", text)]);
        let path = files.path().join("defaults.yaml").display().to_string();
        let arguments =
            ["serve", "--config-type", "grpc_xds_sotw", "--policy-defaults", path.as_str()];
        let ended = run(&arguments).with_code(65);
        assert!(ended.err.contains(expected), "{text}: {}", ended.err);
    }
    let policy = ["serve", "--policy", "x.yaml", "--policy-defaults", "y.yaml"];
    assert!(
        run(&policy).with_code(64).err.contains("--policy-defaults"),
        "only for domains of xDS"
    );
}
