//! A policy as a resource of a control plane: the keys that its messages have, read from YAML.

use prost::Message;
use serde_yaml::Value;
use tidegate::control_plane::{LastGood, RawResource};
use tidegate::policy::compiled_policy::DomainSpec;
use tidegate::policy::{Options, PolicyDefaults};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

#[derive(Clone, PartialEq, Message)]
struct Config {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(message, repeated, tag = "3")]
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<Policy>,
    #[prost(message, repeated, tag = "4")]
    descriptors: Vec<Descriptor>,
    #[prost(bool, tag = "5")]
    shadow_mode: bool,
    #[prost(bool, tag = "7")]
    quota_mode: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Policy {
    #[prost(int32, tag = "1")]
    unit: i32,
    #[prost(uint32, tag = "2")]
    requests_per_unit: u32,
}

const UNITS: [&str; 5] = ["unknown", "second", "minute", "hour", "day"];

/// Sends the policy as a control plane does, and returns the domain in force.
pub fn received(yaml: &str) -> DomainSpec {
    let policy: Value = serde_yaml::from_str(yaml).expect("YAML");
    let domain = text(&policy, "domain");
    let descriptors = descriptors(&policy);
    let config = Config { name: domain.clone(), domain, descriptors };
    let raw = RawResource { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec().into() };
    let mut last_good = LastGood::new(Options::default(), PolicyDefaults::default());
    let update = last_good.apply(vec![raw]);
    assert_eq!(update.rejections, []);
    let [domain] = &last_good.domains()[..] else { panic!("one domain") };
    DomainSpec::clone(domain)
}

fn descriptors(of: &Value) -> Vec<Descriptor> {
    let list = of.get("descriptors").and_then(Value::as_sequence);
    list.into_iter().flatten().map(descriptor).collect()
}

fn descriptor(of: &Value) -> Descriptor {
    let flag = |key: &str| of.get(key).and_then(Value::as_bool).unwrap_or_default();
    Descriptor {
        key: text(of, "key"),
        value: text(of, "value"),
        rate_limit: of.get("rate_limit").map(|limit| {
            let unit = text(limit, "unit");
            let unit = UNITS.iter().position(|known| *known == unit).expect("a unit");
            let requests = limit["requests_per_unit"].as_u64().expect("a number");
            Policy {
                unit: i32::try_from(unit).expect("small"),
                requests_per_unit: u32::try_from(requests).expect("32 bits"),
            }
        }),
        descriptors: descriptors(of),
        shadow_mode: flag("shadow_mode"),
        quota_mode: flag("quota_mode"),
    }
}

fn text(of: &Value, key: &str) -> String {
    of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}
