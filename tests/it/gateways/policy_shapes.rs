//! Every shape of descriptors that Envoy Gateway and Envoy AI Gateway write, as a file and as a
//! resource of a control plane: both answer alike, and as envoyproxy/ratelimit does, except that the
//! quotas of AI Gateway are grouped.

use std::sync::Arc;

use tidegate::decide::{Decider, GlobalModes};
use tidegate::domain::{Code, Descriptor, Entry, Micros, Request};
use tidegate::policy::compiled_policy::DomainSpec;
use tidegate::policy::{Options, Policy, Secret, Source, compile};
use tidegate::store::memory::MemoryStore;

use super::resource_encoding::received;
use crate::support::policy_specs;

/// In the middle of an hour.
const NOW: Micros = Micros(1_800_014_417_300_000);

/// A policy, and calls with their codes. A call is a list of descriptors, and a descriptor its
/// entries: `key=value > key`, where a key without a value has itself as its value.
struct Shape {
    name: &'static str,
    policy: &'static str,
    calls: &'static [(&'static [&'static str], Code)],
}

use Code::{Ok, OverLimit};

const SHAPES: &[Shape] = &[
    Shape {
        name: "a distinct header",
        policy: "
domain: default/eg/http
descriptors:
  - key: route-a
    value: route-a
    descriptors:
      - {key: rule-0-match-0, rate_limit: {unit: hour, requests_per_unit: 1}}
",
        calls: &[
            (&["route-a > rule-0-match-0=alice"], Ok),
            (&["route-a > rule-0-match-0=alice"], OverLimit),
            (&["route-a > rule-0-match-0=bob"], Ok),
            (&["route-b > rule-0-match-0=alice"], Ok),
        ],
    },
    Shape {
        name: "exact headers in a chain, with method, path and a query parameter",
        policy: "
domain: default/eg/http
descriptors:
  - key: route-a
    value: route-a
    descriptors:
      - key: rule-0-match-0
        value: rule-0-match-0
        descriptors:
          - key: rule-0-match-1
            value: rule-0-match-1
            descriptors:
              - key: rule-0-method
                value: rule-0-method
                descriptors:
                  - key: rule-0-path
                    value: rule-0-path
                    rate_limit: {unit: minute, requests_per_unit: 1}
",
        calls: &[
            (&["route-a > rule-0-match-0"], Ok),
            (&["route-a > rule-0-match-0 > rule-0-match-1 > rule-0-method > rule-0-path"], Ok),
            (
                &["route-a > rule-0-match-0 > rule-0-match-1 > rule-0-method > rule-0-path"],
                OverLimit,
            ),
        ],
    },
    Shape {
        name: "addresses: a network, all but a network, and each address in one",
        policy: "
domain: default/eg/http
descriptors:
  - key: route-a
    value: route-a
    descriptors:
      - key: masked_remote_address
        value: 10.0.0.0/8
        rate_limit: {unit: hour, requests_per_unit: 1}
        descriptors:
          - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1}}
      - key: masked_remote_address
        value: invert:192.168.0.0/16
        rate_limit: {unit: hour, requests_per_unit: 0}
",
        calls: &[
            (&["route-a > masked_remote_address=10.0.0.0/8"], Ok),
            (&["route-a > masked_remote_address=10.0.0.0/8"], OverLimit),
            (&["route-a > masked_remote_address=192.168.0.0/16"], Ok),
            (&["route-a > masked_remote_address=invert:192.168.0.0/16"], OverLimit),
            (&["route-a > masked_remote_address=10.0.0.0/8 > remote_address=10.0.0.1"], Ok),
            (&["route-a > masked_remote_address=10.0.0.0/8 > remote_address=10.0.0.1"], OverLimit),
            (&["route-a > masked_remote_address=10.0.0.0/8 > remote_address=10.0.0.2"], Ok),
        ],
    },
    Shape {
        name: "a shared policy, with rules without a match: the tightest rejects",
        policy: "
domain: default/policy
descriptors:
  - key: default/policy/rule/0
    value: default/policy/rule/0
    descriptors:
      - key: rule-0-match--1
        value: rule-0-match--1
        rate_limit: {unit: hour, requests_per_unit: 21}
  - key: default/policy/rule/1
    value: default/policy/rule/1
    descriptors:
      - key: rule-1-match--1
        value: rule-1-match--1
        rate_limit: {unit: second, requests_per_unit: 1}
",
        calls: &[
            (
                &[
                    "default/policy/rule/0 > rule-0-match--1",
                    "default/policy/rule/1 > rule-1-match--1",
                ],
                Ok,
            ),
            (
                &[
                    "default/policy/rule/0 > rule-0-match--1",
                    "default/policy/rule/1 > rule-1-match--1",
                ],
                OverLimit,
            ),
        ],
    },
    Shape {
        name: "shadow mode on every link, also on those without a limit",
        policy: "
domain: default/eg/http
descriptors:
  - key: route-a
    value: route-a
    descriptors:
      - key: rule-0-match-0
        shadow_mode: true
        descriptors:
          - {key: rule-0-match-1, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
",
        calls: &[(&["route-a > rule-0-match-0=a > rule-0-match-1=b"], Ok)],
    },
    Shape {
        name: "a quota on a model",
        policy: "
domain: ai-gateway-quota
descriptors:
  - key: backend_name
    value: default/openai
    descriptors:
      - key: model_name_override
        value: small
        quota_mode: true
        rate_limit: {unit: day, requests_per_unit: 1}
      - key: model_name_override
        value: large
        quota_mode: true
        rate_limit: {unit: day, requests_per_unit: 2}
",
        calls: &[
            (&["backend_name=default/openai > model_name_override=small"], Ok),
            (&["backend_name=default/openai > model_name_override=small"], OverLimit),
            (
                &[
                    "backend_name=default/openai > model_name_override=small",
                    "backend_name=default/openai > model_name_override=large",
                ],
                Ok,
            ),
            (&["backend_name=default/openai > model_name_override=large"], Ok),
            (
                &[
                    "backend_name=default/openai > model_name_override=small",
                    "backend_name=default/openai > model_name_override=large",
                ],
                OverLimit,
            ),
            (&["backend_name=default/other > model_name_override=small"], Ok),
        ],
    },
    Shape {
        name: "quotas of a model by header and value, with a default bucket",
        policy: "
domain: ai-gateway-quota
descriptors:
  - key: backend_name
    value: default/openai
    descriptors:
      - key: model_name_override
        value: small
        descriptors:
          - key: rule-0-x-tenant|acme-match-0
            value: rule-0-x-tenant|acme-match-0
            quota_mode: true
            rate_limit: {unit: hour, requests_per_unit: 1}
          - key: rule-1-x-user-match-0
            quota_mode: true
            rate_limit: {unit: hour, requests_per_unit: 2}
          - key: rule-2-match--1
            value: rule-2-match--1
            quota_mode: true
            rate_limit: {unit: hour, requests_per_unit: 100}
",
        calls: &[
            (
                &[
                    "backend_name=default/openai > model_name_override=small > rule-0-x-tenant|acme-match-0",
                    "backend_name=default/openai > model_name_override=small > rule-2-match--1",
                ],
                Ok,
            ),
            (
                &[
                    "backend_name=default/openai > model_name_override=small > rule-0-x-tenant|acme-match-0",
                    "backend_name=default/openai > model_name_override=small > rule-2-match--1",
                ],
                OverLimit,
            ),
            (
                &[
                    "backend_name=default/openai > model_name_override=small > rule-1-x-user-match-0=bob",
                    "backend_name=default/openai > model_name_override=small > rule-2-match--1",
                ],
                Ok,
            ),
        ],
    },
];

fn from_file(yaml: &str) -> DomainSpec {
    let source = Source { name: "policy.yaml".to_owned(), text: yaml.as_bytes().to_vec() };
    let compiled = compile(&[source], &Options::default());
    compiled.unwrap_or_else(|errors| panic!("{errors}")).domains.remove(0)
}

async fn answers(domain: DomainSpec, shape: &Shape, origin: &str) {
    let name = domain.name.clone();
    let policy = Arc::new(Policy::build(vec![domain], Secret([7; 32])));
    let store = MemoryStore::new(10_000);
    let decider = Decider::new(Arc::clone(&policy), store, Arc::new(()), GlobalModes::default());
    for (at, (descriptors, expected)) in shape.calls.iter().enumerate() {
        let entry = |text: &'static str| {
            let (key, value) = text.split_once('=').unwrap_or((text, text));
            policy_specs::entry(key, value)
        };
        let entries: Vec<Vec<Entry<'_>>> =
            descriptors.iter().map(|path| path.split(" > ").map(entry).collect()).collect();
        let descriptors: Vec<Descriptor<'_>> =
            entries.iter().map(|entries| policy_specs::descriptor(entries)).collect();
        let request = Request { domain: &name, descriptors: &descriptors };
        let code = decider.decide(&policy, &request, NOW).await.unwrap().code;
        assert_eq!(code, *expected, "{}, {origin}, call {at}", shape.name);
    }
}

#[tokio::test]
async fn every_shape_answers_as_ratelimit_does_from_a_file_and_from_a_control_plane() {
    for shape in SHAPES {
        answers(from_file(shape.policy), shape, "file").await;
        answers(received(shape.policy), shape, "resource").await;
    }
}
