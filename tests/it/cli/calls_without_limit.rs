//! Calls to which no limit applies: the log, the metrics, and the live page name the mistake.

use serde_json::{Value, json};

use crate::support::http::{get, post};
use crate::support::tidegate_process::{Tidegate, metric};
use crate::support::wait::until;

const UNKNOWN_DOMAIN: &str = "unknown_domain";
const UNKNOWN_KEYS: &str = "unknown_keys";

/// Domains as users have them: one level, two levels, a listed value, and several rules.
const POLICY: &str = "
domain: edge
descriptors:
  - key: remote_address
    descriptors:
      - key: path
        rate_limit: {unit: minute, requests_per_unit: 5}
---
domain: api_gateway
descriptors:
  - key: user_id
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: generic_key
    value: checkout
    rate_limit: {unit: minute, requests_per_unit: 5}
---
domain: mail
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 5}
        descriptors:
          - key: method
            value: POST
            rate_limit: {unit: minute, requests_per_unit: 5}
---
domain: empty
descriptors: []
";

/// Sends a call with these keys, separated by commas, in each descriptor.
fn call(serving: &Tidegate, domain: &str, descriptors: &[&str]) {
    let entry = |key: &str| json!({"key": key, "value": "s3cret"});
    let descriptor =
        |keys: &&str| json!({"entries": keys.split(',').map(entry).collect::<Vec<_>>()});
    let descriptors: Vec<Value> = descriptors.iter().map(descriptor).collect();
    let body = json!({"domain": domain, "descriptors": descriptors}).to_string();
    let reply = post(serving.port("http"), "/json", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

/// The lines of the summaries, in order.
fn lines(serving: &Tidegate) -> Vec<Value> {
    let log = serving.log();
    let parsed = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|line| line["message"] == "calls admitted because no limit applies").collect()
}

/// Waits until the lines count this number of calls. On a busy machine, the calls of a test may be
/// in two summaries.
fn summaries(serving: &Tidegate, calls: u64) -> Vec<Value> {
    let sum = |line: &Value| {
        ["calls", "others"].iter().filter_map(|field| line[field].as_u64()).sum::<u64>()
    };
    until("the summary", || {
        let lines = lines(serving);
        (lines.iter().map(sum).sum::<u64>() == calls).then_some(lines)
    })
}

/// The mistake: domain, descriptors, and what the advice says.
type Mistake<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

/// Makes each mistake thrice on one server, and expects a line that counts it and has the advice.
fn assert_advice(reason: &str, mistakes: &[Mistake<'_>]) {
    let serving = Tidegate::domains(POLICY, &[]);
    for (domain, descriptors, _) in mistakes.iter().cycle().take(3 * mistakes.len()) {
        call(&serving, domain, descriptors);
    }
    let lines = summaries(&serving, 3 * mistakes.len() as u64);
    for (domain, descriptors, advice) in mistakes {
        let keys = descriptors.join(" | ").replace(',', ", ");
        let about = |line: &&Value| line["domain"] == *domain && line["keys"] == keys;
        let line =
            lines.iter().find(about).unwrap_or_else(|| panic!("{domain} {keys}: {lines:#?}"));
        let calls = lines.iter().filter(about).filter_map(|line| line["calls"].as_u64());
        assert_eq!(calls.sum::<u64>(), 3, "{lines:#?}");
        assert_eq!((&line["level"], &line["reason"]), (&json!("WARN"), &json!(reason)), "{line}");
        let text = line["advice"].as_str().expect("advice");
        for part in *advice {
            assert!(text.contains(part), "{domain} {descriptors:?}: {part} is not in {text}");
        }
    }
    assert!(!serving.log().contains("s3cret"), "a value is in the log");
}

#[test]
fn a_wrong_domain_is_logged_with_the_domain_that_was_meant() {
    let fields =
        "set the domain edge in the caller (with Envoy, `domain` of its rate limit filter)";
    let all = "does not have this domain, but edge; api_gateway; mail; and 1 more: set one of them in the caller";
    assert_advice(
        UNKNOWN_DOMAIN,
        &[
            ("egde", &["remote_address,path"], &["did you mean edge?", fields]),
            ("Edge", &["remote_address"], &["did you mean edge?"]),
            ("edges", &["x"], &["did you mean edge?"]),
            (" edge", &["x"], &["did you mean edge?"]),
            ("api-gateway", &["user_id"], &["did you mean api_gateway?"]),
            ("apiGateway", &["user_id"], &["did you mean api_gateway?"]),
            ("api", &["user_id"], &["did you mean api_gateway?"]),
            ("mial", &["tenant", "user"], &["did you mean mail?"]),
            ("production", &["user_id"], &[all]),
            ("rate_limit_service", &["user_id"], &[all]),
        ],
    );
}

#[test]
fn wrong_keys_are_logged_with_the_keys_that_are_nearest() {
    let pair = "the policy has remote_address, path";
    assert_advice(
        UNKNOWN_KEYS,
        &[
            ("edge", &["remote_address"], &[pair, "the descriptor is too short: send path in it"]),
            ("edge", &["path,remote_address"], &[pair, "in another order"]),
            ("edge", &["remote_address,path,method"], &[pair, "too long: leave out method"]),
            (
                "edge",
                &["remote-address,path"],
                &[pair, "did you mean remote_address? it was sent as remote-address"],
            ),
            (
                "edge",
                &["Remote_Address,Path"],
                &["did you mean remote_address?", "did you mean path?"],
            ),
            (
                "edge",
                &["remote_adress,path"],
                &["did you mean remote_address? it was sent as remote_adress"],
            ),
            (
                "edge",
                &["remote_address", "path"],
                &["the descriptor is too short: send path in it"],
            ),
            (
                "edge",
                &["user"],
                &["no rule has one of these keys: the policy has remote_address, path; send"],
            ),
            (
                "api_gateway",
                &["user_id,path"],
                &["the policy has user_id;", "leave out path, or add a rule with path"],
            ),
            ("api_gateway", &["tenant"], &["the policy has generic_key; user_id; send such keys"]),
        ],
    );
    assert_advice(
        UNKNOWN_KEYS,
        &[
            ("mail", &["user,tenant"], &["the policy has tenant, user, in another order"]),
            (
                "mail",
                &["tenant,usr"],
                &["the policy has tenant, user; did you mean user? it was sent as usr"],
            ),
            ("mail", &["tenant,method"], &["the policy has tenant"]),
            (
                "mail",
                &["Method,user,tenant"],
                &["tenant, user, method, in another order", "it was sent as Method"],
            ),
            (
                "mail",
                &["tenant,user,method,path"],
                &["the policy has tenant, user, method;", "leave out path"],
            ),
            ("mail", &[":path"], &["the policy has tenant; tenant, user; tenant, user, method"]),
            ("api_gateway", &["userId"], &["did you mean user_id?"]),
            ("api_gateway", &["generic_kye"], &["did you mean generic_key?"]),
            ("empty", &["user_id"], &["the policy has no limit in this domain: add one"]),
        ],
    );
}

fn without_limit(serving: &Tidegate, domain: &str, reason: &str) -> Option<u64> {
    let text = get(serving.port("http"), "/metrics").body;
    let name = "tidegate_calls_without_limit_total";
    let series = format!("{name}{{domain=\"{domain}\",reason=\"{reason}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

#[test]
fn a_value_that_is_not_listed_is_counted_but_never_warned_of() {
    let serving = Tidegate::domains(POLICY, &[]);
    // The keys are those of a rule, alone or beside keys that no rule has.
    let normal: [(&str, &[&str]); 3] = [
        ("api_gateway", &["generic_key"]),
        ("api_gateway", &["generic_key", "tenant"]),
        ("mail", &["tenant,user,method"]),
    ];
    for (domain, descriptors) in normal {
        call(&serving, domain, descriptors);
    }
    // Calls that meet a limit are not counted, not even with another descriptor that meets none.
    call(&serving, "api_gateway", &["user_id"]);
    call(&serving, "api_gateway", &["user_id", "nonsense"]);
    call(&serving, "egde", &["user_id"]);
    let lines = summaries(&serving, 1);
    assert_eq!((lines.len(), &lines[0]["domain"]), (1, &json!("egde")), "{lines:#?}");
    let count = |domain, reason| without_limit(&serving, domain, reason);
    assert_eq!(count("api_gateway", "unlisted_value"), Some(2));
    assert_eq!(count("mail", "unlisted_value"), Some(1));
    assert_eq!(count("api_gateway", "unknown_keys"), None);
    assert_eq!(count("egde", "unknown_domain"), Some(1));
    assert_eq!(metric(&serving, "domain_not_found_total"), 1);
}

#[test]
fn foreign_text_is_cut_and_escaped_and_names_in_metrics_are_bounded() {
    let serving = Tidegate::domains(POLICY, &[]);
    let forged = "edge\nWARN forged\u{202e}";
    (0..5).for_each(|_| call(&serving, forged, &["a\tb\u{1b}[31m"]));
    (0..4).for_each(|_| call(&serving, &"x".repeat(65), &[&"y".repeat(100)]));
    (0..3).for_each(|_| call(&serving, "empty", &[&"k,".repeat(150)[..299]]));
    for other in 0..100 {
        call(&serving, &format!("other-{other}"), &["a"]);
    }
    let lines = summaries(&serving, 112);
    let of = |domain: &str, keys: &str| {
        let of = |line: &&Value| line["domain"] == domain && line["keys"] == keys;
        assert!(lines.iter().any(|line| of(&line)), "{domain} {keys}: {lines:#?}");
    };
    of(r"edge\nWARN forged\u{202e}", r"a\tb\u{1b}[31m");
    let cut = |letter: &str| format!("{}…", letter.repeat(64));
    of(&cut("x"), &cut("y"));
    let keys = lines.iter().find(|line| line["domain"] == "empty").map(|line| &line["keys"]);
    assert!(keys.and_then(Value::as_str).is_some_and(|keys| keys.len() < 800), "{keys:?}");
    assert_eq!(without_limit(&serving, "(other)", "unknown_domain"), Some(38));
    assert_eq!(metric(&serving, "domain_not_found_total"), 109);
}

#[test]
fn at_debug_a_sampled_line_says_what_was_sent_and_how_far_it_matched() {
    let serving = Tidegate::domains(POLICY, &["--log-level", "debug"]);
    let sampled = |domain: &str, descriptors: &[&str]| {
        until("a sampled line", || {
            call(&serving, domain, descriptors);
            let log = serving.log();
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let line = lines.find(|line| {
                line["message"] == "no limit applies to a call" && line["domain"] == domain
            })?;
            Some(line["descriptors"].as_str().expect("text").to_owned())
        })
    };
    for (domain, descriptors, expected) in [
        ("egde", &["remote_address"][..], "-> no limit: the policy has no such domain"),
        ("edge", &["remote_address"], " (default) -> no limit: this rule has none; longer"),
        ("mail", &["user"], " (no match: no such key here; there are: tenant) -> "),
        ("api_gateway", &["generic_key"], " (no match: neither this value, nor a pattern"),
        ("empty", &["a", "b"], "; b=#"),
    ] {
        let text = sampled(domain, descriptors);
        assert!(text.contains(expected), "{domain} {descriptors:?}: {expected} is not in {text}");
        assert!(text.starts_with(&format!("{}=#", descriptors[0])), "{text}");
    }
    assert!(!serving.log().contains("s3cret"), "a value is in the log");
}

#[test]
fn the_page_is_told_the_calls_of_each_domain_and_the_advice_of_the_log() {
    let serving = Tidegate::domains(POLICY, &[]);
    let debug = serving.port("debug");
    let rows = until("rows with advice", || {
        call(&serving, "egde", &["remote_address"]);
        call(&serving, "api_gateway", &["generic_key"]);
        let now: Value = serde_json::from_str(&get(debug, "/now").body).expect("JSON");
        let rows = now["without_limit"].as_array().expect("a list").clone();
        (rows.iter().any(|row| row["advice"] != "") && rows.len() == 2).then_some(rows)
    });
    let row = |domain: &str| rows.iter().find(|row| row["domain"] == domain).expect("a row");
    assert_eq!(row("egde")["reason"], "unknown_domain");
    assert!(row("egde")["advice"].as_str().is_some_and(|text| text.contains("did you mean edge?")));
    assert!(row("egde")["calls"].as_u64() >= Some(1), "{rows:?}");
    assert_eq!(
        (&row("api_gateway")["reason"], &row("api_gateway")["advice"]),
        (&json!("unlisted_value"), &json!(""))
    );
}

#[test]
fn a_reload_ends_the_warning() {
    let serving = Tidegate::domains(POLICY, &[]);
    call(&serving, "egde", &["remote_address"]);
    assert_eq!(summaries(&serving, 1).len(), 1);
    let policy = POLICY.replace("domain: edge", "domain: egde");
    Tidegate::write_domains(serving.directory(), &policy);
    // A reload is logged before the policy is in force.
    let listed = || get(serving.port("debug"), "/rlconfig").body;
    until("the new policy", || listed().contains("egde.").then_some(()));
    call(&serving, "egde", &["remote_address,path"]);
    assert_eq!(without_limit(&serving, "egde", "unknown_domain"), Some(1));
}
