//! `--policy-defaults`, and the keys in `metadata` that override them.

use std::collections::BTreeMap;
use std::fs;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use prost_types::value::Kind;
use prost_types::{Struct, Value as PbValue};
use serde_json::Value;

use super::messages::{RateLimitDescriptor, RateLimitPolicy, RateLimitUnit, resource, yearly};
use super::plane::ControlPlane;
use super::served::plain;
use crate::support::http::{get, post};
use crate::support::redis_server::Server as RedisServer;
use crate::support::tidegate_process::{Tidegate, directory, run, run_with};
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
        ("domains: [{domain: a, cost: 3}]", "domains[0].cost: unknown key \"cost\"; use one of: "),
        ("domains: [{burst: 3}]", "domains[0]: an entry must have `domain: NAME`"),
        ("domain: [a]", "a defaults file must have exactly one key, the list `domains`"),
        (
            "domains: [{domain: a, hash_tag: client}]",
            "domains[0].hash_tag: `hash_tag` must be a list",
        ),
        ("domains: [{domain: a, body: {text: '{x}'}}]", "domains[0].body"),
        (
            "domains: [{domain: a, anchor: 32}]",
            "domains[0].anchor: `anchor` of a month must be a day, 1 to 31",
        ),
        (
            "domains: [{domain: a, anchor: 02-30}]",
            "domains[0].anchor: `anchor` of a year must be a date, such as 04-01",
        ),
        (
            "domains: [{domain: a, align: calendar, time_zone: Europe/Atlantis, burst: 2}]",
            "domains[0].time_zone: unknown time zone \"Europe/Atlantis\"",
        ),
        ("domains: [{domain: a, align: moon}]", "domains[0].align: "),
        ("domains: [{domain: a, rule: 5}]", "domains[0]: `rule` must be the path of a rule"),
        (
            "domains: [{domain: a, rule: a.b, hash_tag: [c]}]",
            "domains[0].hash_tag: unknown key \"hash_tag\" in an entry with `rule`; use one of: \
             algorithm, burst, align, time_zone, anchor",
        ),
    ] {
        let arguments =
            ["serve", "--config-type", "grpc_xds_sotw", "--policy-defaults", "defaults.yaml"];
        let ended = run_with(&[("defaults.yaml", text)], &arguments).with_code(65);
        assert!(ended.err.contains(expected), "{text}: {}", ended.err);
    }
    let policy = ["serve", "--policy", "x.yaml", "--policy-defaults", "y.yaml"];
    assert!(
        run(&policy).with_code(64).err.contains("--policy-defaults"),
        "only for domains of xDS"
    );
}

const CALENDAR: &str = "
domains:
  - domain: edge
    rule: edge.tenant_a*.client
    anchor: 20
  - domain: edge
    rule: edge.bucket
    algorithm: token_bucket
    burst: 7
  - domain: '*'
    align: calendar
    time_zone: Europe/Berlin
    anchor: 15
";

fn limited(key: &str, unit: RateLimitUnit, requests_per_unit: u32) -> RateLimitDescriptor {
    let unit = unit.into();
    RateLimitDescriptor {
        key: key.to_owned(),
        rate_limit: Some(RateLimitPolicy { unit, requests_per_unit, ..Default::default() }),
        ..Default::default()
    }
}

fn below(value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: "tenant".to_owned(),
        value: value.to_owned(),
        descriptors: vec![limited("client", RateLimitUnit::Month, 3)],
        ..Default::default()
    }
}

#[test]
fn calendar_keys_apply_by_domain_and_path_where_they_are_allowed() {
    let plane = ControlPlane::start("test", None);
    let text = |text: &str| Kind::StringValue(text.to_owned());
    let month = |key| limited(key, RateLimitUnit::Month, 3);
    let descriptors = vec![
        month("month"),
        limited("year", RateLimitUnit::Year, 3),
        limited("week", RateLimitUnit::Week, 3),
        limited("minute", RateLimitUnit::Minute, 3),
        month("bucket"),
        below("acme"),
        below("other"),
        with_metadata(month("own"), &[("anchor", Kind::NumberValue(5.0))]),
        with_metadata(month("epoch"), &[("align", text("epoch"))]),
        with_metadata(month("log"), &[("algorithm", text("sliding_window"))]),
    ];
    plane.set("1", vec![resource("edge", descriptors)]);
    let files = directory(&[("defaults.yaml", CALENDAR)]);
    let argument = files.path().join("defaults.yaml").display().to_string();
    let serving = plain(&plane.address.to_string(), &[], &["--policy-defaults", &argument]);
    until("the policy", || {
        let listing = get(serving.port("debug"), "/rlconfig").body;
        listing.contains("edge.log").then_some(())
    });
    let listing = get(serving.port("debug"), "/rlconfig").body;
    let berlin = ", align: calendar, time_zone: Europe/Berlin";
    for (path, expected) in [
        ("month", format!("{berlin}, anchor: 15")),
        ("year", berlin.to_owned()),
        ("week", berlin.to_owned()),
        ("minute", String::new()),
        ("bucket", ", algorithm: token_bucket, burst: 7".to_owned()),
        ("tenant_acme.client", format!("{berlin}, anchor: 20")),
        ("tenant_other.client", format!("{berlin}, anchor: 15")),
        ("own", format!("{berlin}, anchor: 5")),
        ("epoch", String::new()),
        ("log", ", algorithm: sliding_window".to_owned()),
    ] {
        let start = format!("edge.{path}: ");
        let line = listing.lines().find_map(|line| line.strip_prefix(&start));
        let line = line.unwrap_or_else(|| panic!("no {path} in\n{listing}"));
        let more = line.split_once("quota_mode: false").map(|(_, more)| more);
        assert_eq!(more, Some(&*expected), "{path}");
    }
    assert_eq!(limit(&serving, "edge")["anchor"], "15");
}

/// Seconds until the next day 15 in Berlin begins, rounded up, with the day.
fn until_the_15th(now: Timestamp) -> (i64, Date) {
    let zone = TimeZone::get("Europe/Berlin").expect("bundled");
    let today = zone.to_datetime(now).date();
    let of_this_month = today.with().day(15).build().expect("every month has it");
    let next = match today.day() < 15 {
        true => of_this_month,
        false => of_this_month.checked_add(1.month()).expect("in range"),
    };
    let left = next.to_zoned(zone).expect("in range").timestamp().duration_since(now);
    (left.as_secs() + i64::from(left.subsec_nanos() > 0), next)
}

#[test]
fn a_month_of_a_control_plane_ends_to_the_second_when_the_billing_period_does() {
    let plane = ControlPlane::start("test", None);
    plane.set("1", vec![resource("edge", vec![limited("client", RateLimitUnit::Month, 1)])]);
    let files = directory(&[("defaults.yaml", CALENDAR)]);
    let argument = files.path().join("defaults.yaml").display().to_string();
    let redis = RedisServer::start(&[]);
    let url = format!("127.0.0.1:{}", redis.port);
    for store in [&[][..], &["--redis-url", &url, "--redis-budget", "10s"]] {
        let arguments = [&["--policy-defaults", &argument], store].concat();
        let serving = plain(&plane.address.to_string(), &[], &arguments);
        limit(&serving, "edge");
        // Again if a period ended during the calls.
        until("a period that lasts longer than the calls", || {
            let client = format!("client-{}", Timestamp::now());
            let (before, period) = until_the_15th(Timestamp::now());
            let body = format!(
                r#"{{"domain":"edge","descriptors":[{{"entries":[{{"key":"client","value":"{client}"}}]}}]}}"#
            );
            let replies = [(), ()].map(|()| post(serving.port("http"), "/json", &body));
            let (after, same) = until_the_15th(Timestamp::now());
            (period == same).then(|| {
                assert_eq!(replies.each_ref().map(|reply| reply.status), [200, 429], "{store:?}");
                for reply in &replies {
                    let body: Value = serde_json::from_str(&reply.body).expect("JSON");
                    let duration = body["statuses"][0]["durationUntilReset"].as_str();
                    let seconds = duration.and_then(|text| text.strip_suffix('s')).expect("set");
                    let seconds: i64 = seconds.parse().expect("whole seconds");
                    assert!((after..=before).contains(&seconds), "{after} {seconds} {before}");
                }
            })
        });
    }
}
