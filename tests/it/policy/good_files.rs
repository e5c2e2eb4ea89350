//! Valid files: their meaning, one line per rule.

use std::fmt::Write;

use tidegate::domain::{Algorithm, Charge, Hybrid, Limit, Mark, OnStoreFailure, Refill, Window};
use tidegate::policy::compiled_policy::{
    HttpEntry, HttpMapping, HttpSource, LimitSpec, NodeSpec, RuleSpec, ValueSpec,
};
use tidegate::policy::{CompiledPolicy, Options, Source, compile};

use crate::support::policy_cases::{self, PolicyFile};

/// A policy as text: one line per node with a rule or without children.
pub fn told(compiled: &CompiledPolicy) -> String {
    let mut text = String::new();
    for domain in &compiled.domains {
        let groups = match domain.quota_group.join(",") {
            keys if keys.is_empty() => keys,
            keys => format!(" quota_group {keys}"),
        };
        writeln!(text, "[{}] {:?}{groups}", domain.name, domain.accounting).unwrap();
        if let Some(http) = &domain.http {
            let HttpMapping { trusted_hops, ipv6_prefix, empty_segments, .. } = &**http;
            let kept = format!("IPv6 prefix {ipv6_prefix}, empty segments {empty_segments:?}");
            writeln!(text, "http, {trusted_hops} trusted hops, {kept}").unwrap();
            for entries in &http.descriptors {
                let entry = |it: &HttpEntry| match &it.source {
                    HttpSource::Request(part) => format!("{}: {part:?}", it.key),
                    source => format!("{}: {source:?}", it.key),
                };
                let entries: Vec<String> = entries.iter().map(entry).collect();
                writeln!(text, "- {}", entries.join(", ")).unwrap();
            }
        }
        domain.nodes.iter().for_each(|node| tell(node, "", &mut text));
    }
    text
}

fn tell(node: &NodeSpec, above: &str, text: &mut String) {
    let value = match &node.value {
        ValueSpec::Any => String::new(),
        ValueSpec::Exact(value) => format!("={value}"),
        ValueSpec::Pattern(value) => format!("~{value}"),
    };
    let path = format!("{above}{}{value}", node.key);
    let marks = [(node.share_threshold, " shared"), (node.value_to_metric, " value_to_metric")];
    let marks: String = marks.iter().filter(|(on, _)| *on).map(|(_, mark)| *mark).collect();
    match &node.rule {
        Some(rule) => writeln!(text, "{path}: {}{marks}", rule_told(rule)).unwrap(),
        None if node.children.is_empty() => writeln!(text, "{path}: allowed{marks}").unwrap(),
        None if marks.is_empty() => {}
        None => writeln!(text, "{path}:{marks}").unwrap(),
    }
    node.children.iter().for_each(|child| tell(child, &format!("{path} > "), text));
}

fn rule_told(rule: &RuleSpec) -> String {
    let mut told = match &*rule.limits {
        [] => "unlimited".to_owned(),
        [limit] if !limit.in_list => limit_told(limit),
        list => list.iter().map(listed_told).collect::<Vec<_>>().join(" + "),
    };
    let single = rule.limits.first().filter(|limit| !limit.in_list);
    if let Some(name) = rule.name.as_deref().or(single.and_then(|l| l.name.as_deref())) {
        write!(told, " named {name}").unwrap();
    }
    for replaced in &rule.replaces {
        write!(told, " replaces {replaced}").unwrap();
    }
    for (on, mark) in [
        (rule.shadow_mode, " shadow"),
        (rule.quota_mode, " quota"),
        (rule.detailed_metric, " detailed"),
        (rule.body.is_some(), " body"),
    ] {
        told.push_str(if on { mark } else { "" });
    }
    if let Some(metadata) = &rule.metadata {
        write!(told, " {}", serde_json::to_string(&**metadata).unwrap()).unwrap();
    }
    told
}

fn listed_told(spec: &LimitSpec) -> String {
    let mut told = format!("{}: {}", spec.name.as_deref().unwrap(), limit_told(spec));
    if let Some(per) = &spec.per {
        write!(told, " per {per:?}").unwrap();
    }
    told
}

/// What is counted, in a few words.
fn counting_told(limit: &Limit) -> String {
    match &limit.algorithm {
        Algorithm::FixedWindow(fixed) => match &fixed.window {
            Window::Epoch { .. } => String::new(),
            Window::Calendar(calendar) => format!(", {calendar:?}"),
        },
        Algorithm::SlidingWindow(_) => ", sliding".to_owned(),
        Algorithm::SlidingLog(_) => ", log".to_owned(),
        Algorithm::Bucket(bucket) => {
            let kind = match bucket.refill {
                Refill::Arrival { .. } => "arrival",
                Refill::Credits { .. } => "credits",
            };
            let leaky = if bucket.leaky { ", leaky" } else { "" };
            let floor = match bucket.floor.0 {
                0 => String::new(),
                floor => format!(", floor {floor}"),
            };
            format!(", burst {} as {kind}{leaky}{floor}", bucket.burst)
        }
        Algorithm::Hybrid(hybrid) => {
            let Hybrid { burst, shares, class, floor_percent, .. } = hybrid;
            format!(", burst {burst} shares {shares:?} class {class} floor {floor_percent}%")
        }
        Algorithm::Concurrency(slots) => format!(", in flight for {} s", slots.lease.ceil_secs()),
    }
}

fn limit_told(spec: &LimitSpec) -> String {
    let rate = spec.limit.rate;
    let unit = rate.unit.map_or("-", |unit| unit.as_str());
    let mut told = format!("{} per {} {unit}", rate.requests_per_unit, rate.unit_multiplier);
    told.push_str(&counting_told(&spec.limit));
    if let Some(tiers) = &spec.tiers {
        let default = tiers.default.map_or("none", |at| &tiers.classes[at].name);
        write!(told, ", {} (else {default}):", format!("{:?}", tiers.method).to_lowercase())
            .unwrap();
        for class in &tiers.classes {
            let rate = class.limit.rate.requests_per_unit;
            let counting = counting_told(&class.limit);
            write!(told, " [{} {rate}{counting}]", class.name).unwrap();
        }
    }
    if spec.cost != 1 {
        write!(told, ", cost {}", spec.cost).unwrap();
    }
    match spec.limit.charge {
        Charge::Admitted => {}
        Charge::Billed => told.push_str(", bills charged"),
        Charge::Always => told.push_str(", always charged"),
    }
    if spec.limit.prepay {
        told.push_str(", prepaid");
    }
    if let Some(soft) = &spec.soft {
        let each = |marks: &[Mark]| {
            let pairs: Vec<_> = marks.iter().map(|m| format!("{}={}", m.name, m.value)).collect();
            pairs.join(" ")
        };
        let (near, over, log) = (each(&soft.near), each(&soft.over), soft.log_near);
        write!(told, ", near at {} [{near}] over [{over}] log {log}", soft.near_at).unwrap();
    }
    if let Some(seconds) = spec.limit.block_seconds {
        write!(told, ", blocks {seconds} s").unwrap();
    }
    if let Some(reserve) = spec.limit.reserve {
        write!(told, ", held up to {} s", reserve.ttl_secs()).unwrap();
    }
    if spec.limit.on_store_failure != OnStoreFailure::Local {
        write!(told, ", on failure {:?}", spec.limit.on_store_failure).unwrap();
    }
    told
}

#[test]
fn every_good_file_means_what_stands_beside_it() {
    let cases = policy_cases::read("good");
    assert!(cases.len() >= 39, "only {} cases", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let [PolicyFile { name, text, expected }] = &case.files[..] else {
            panic!("{} has several files", case.name);
        };
        let source = Source { name: name.clone(), text: text.clone() };
        let compiled = match compile(&[source], &Options::default()) {
            Ok(compiled) => told(&compiled),
            Err(faults) => faults.to_string(),
        };
        if compiled.trim_end() != expected {
            wrong.push(format!("== {}\n{compiled}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
