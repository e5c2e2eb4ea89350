//! Modes in which calls are decided otherwise than the policy says: the log, the metrics, and the
//! debug port say so, and what would be rejected is told apart from what is.

use serde_json::{Value, json};

use crate::support::http;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{Tidegate, metric};
use crate::support::wait::until;

const TOKEN: &str = "between-friends";
const GLOBAL: &str = "global shadow mode is on: no call is rejected";
const WOULD_BE: &str = "a call would be rejected, but shadow mode let it pass";

const POLICY: &str = "
domain: edge
descriptors:
  - {key: hard, rate_limit: {name: h, unit: year, requests_per_unit: 1}}
  - {key: quiet, shadow_mode: true, rate_limit: {name: q, unit: year, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: one, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: two, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: mute, quota_mode: true, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
";

/// Serves the policy with a token and these arguments and variables.
fn serving(arguments: &[&str], variables: &[(&str, &str)]) -> Tidegate {
    let files =
        [("policy.yaml", POLICY), ("token", TOKEN), ("settings.yaml", "shadow-mode: true\n")];
    let arguments = [&["--debug-token-file", "token"], arguments].concat();
    Tidegate::with_files(&files, &arguments, variables)
}

/// Asks once with descriptors of one entry each: the status of the HTTP response.
fn ask(serving: &Tidegate, keys: &[&str]) -> u16 {
    let descriptor = |key: &&str| json!({"entries": [{"key": key, "value": "ann"}]});
    let descriptors: Vec<Value> = keys.iter().map(descriptor).collect();
    let body = json!({"domain": "edge", "descriptors": descriptors}).to_string();
    http::post(serving.port("http"), "/json", &body).status
}

fn order(serving: &Tidegate, path: &str) -> String {
    let reply = http::order(serving.port("debug"), path, TOKEN);
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    reply.body
}

fn page(serving: &Tidegate, path: &str) -> Value {
    serde_json::from_str(&http::get(serving.port("debug"), path).body).expect("JSON")
}

fn would_be_rejected(serving: &Tidegate) -> u64 {
    metric(serving, "would_be_rejected_calls_total")
}

/// Asks until `/now` has rates with these calls, and returns its rule of this key.
fn rule_now(serving: &Tidegate, key: &str) -> Value {
    let path = format!("edge.{key}");
    until("a rate of the rule", || {
        ask(serving, &[key]);
        let now = page(serving, "/now");
        now["rules"].as_array()?.iter().find(|rule| rule["rule"] == *path).cloned()
    })
}

/// The limits of `/top` whose calls were rejected, or passed in shadow mode, each with its number.
fn top(serving: &Tidegate, shadow: bool) -> Vec<(String, u64)> {
    let top = page(serving, "/top");
    let limits = top["last_day"]["limits"].as_array().expect("limits").clone();
    let listed = limits.iter().filter(|limit| limit["shadow"] == shadow);
    let pair =
        |limit: &Value| (limit["rule"].as_str().unwrap().into(), limit["count"].as_u64().unwrap());
    listed.map(pair).collect()
}

#[test]
fn global_shadow_mode_is_announced_from_whatever_source_and_counts_what_it_lets_pass() {
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let sources: [(&[&str], Variables<'_>, &str); 5] = [
        (&["--shadow-mode"], &[], "flag"),
        (&["--shadow-mode=true"], &[], "flag"),
        (&[], &[("SHADOW_MODE", "true")], "environment SHADOW_MODE"),
        (&[], &[("TIDEGATE_SHADOW_MODE", "true")], "environment TIDEGATE_SHADOW_MODE"),
        (&["--settings", "settings.yaml"], &[], "settings file settings.yaml:1"),
    ];
    for (arguments, variables, origin) in sources {
        let serving = serving(arguments, variables);
        let line = serving.logged(GLOBAL).unwrap_or_else(|| panic!("{}", serving.log()));
        assert_eq!((&line["level"], &line["origin"]), (&"WARN".into(), &origin.into()));
        assert_eq!(metric(&serving, "global_shadow_mode_enabled"), 1);
        assert_eq!([(); 4].map(|()| ask(&serving, &["hard"])), [200; 4]);
        assert_eq!(would_be_rejected(&serving), 3);
        assert_eq!(top(&serving, true), [("edge.hard".to_owned(), 3)]);
        assert_eq!(top(&serving, false), []);
        let line = serving.logged_in_time(WOULD_BE);
        assert_eq!((&line["rule"], &line["limit"]), (&"edge.hard".into(), &"h".into()), "{line}");
        let rule = rule_now(&serving, "hard");
        assert_eq!(rule["rejected_calls_per_second"], 0.0, "{rule}");
        assert!(rule["would_be_rejected_calls_per_second"].as_f64() > Some(0.0), "{rule}");
        let now = page(&serving, "/now");
        assert_eq!(now["modes"]["shadow_mode"], true);
        assert!(now["would_be_rejected_per_second"].is_f64(), "{now}");
        let tried = page(&serving, "/try?domain=edge&descriptor=hard=ann");
        assert_eq!((&tried["code"], &tried["would_be_rejected"]), (&"OK".into(), &true.into()));
    }
}

#[test]
fn modes_that_are_off_are_not_announced() {
    let serving = serving(&["--shadow-mode=false"], &[("QUOTA_MODE", "false")]);
    assert!(!serving.log().contains("mode is on"), "{}", serving.log());
    assert_eq!(
        (metric(&serving, "global_shadow_mode_enabled"), metric(&serving, "overrides")),
        (0, 0)
    );
    let modes = &page(&serving, "/now")["modes"];
    let off = json!({"shadow_mode": false, "quota_mode": false, "without_policy": false});
    assert_eq!(*modes, off);
}

#[test]
fn global_quota_mode_is_announced() {
    let serving = serving(&[], &[("QUOTA_MODE", "true")]);
    let line = serving.logged("global quota mode is on: a call passes if one descriptor passes");
    assert_eq!(line.expect("it is announced")["origin"], "environment QUOTA_MODE");
    assert_eq!(page(&serving, "/now")["modes"]["quota_mode"], true);
}

/// Each row: keys of a call, made when every counter is spent, its status, and whether only shadow
/// mode let it pass.
#[test]
fn a_call_would_be_rejected_if_only_the_shadow_mode_of_a_rule_lets_it_pass() {
    let rows: [(&[&str], u16, bool); 13] = [
        (&["hard"], 429, false),
        (&["quiet"], 200, true),
        (&["hard", "quiet"], 429, false),
        (&["quiet", "quiet"], 200, true),
        (&["quiet", "fresh"], 200, true),
        (&["quiet", "free"], 200, true),
        (&["free"], 200, false),
        (&["nobody"], 200, false),
        // A quota descriptor rejects a call only if no other one passes.
        (&["one", "two"], 429, false),
        (&["mute"], 200, true),
        (&["one", "mute"], 200, true),
        (&["mute", "one", "two"], 200, true),
        (&["mute", "quiet"], 200, true),
    ];
    let serving = serving(&[], &[]);
    for keys in [&["hard"][..], &["quiet"], &["one", "two"], &["mute"]] {
        assert_eq!(ask(&serving, keys), 200, "{keys:?}");
    }
    assert_eq!(would_be_rejected(&serving), 0);
    for (keys, status, expected) in rows {
        let before = would_be_rejected(&serving);
        assert_eq!(ask(&serving, keys), status, "{keys:?}");
        assert_eq!(would_be_rejected(&serving) - before, u64::from(expected), "{keys:?}");
    }
    let line = serving.logged_in_time(WOULD_BE);
    assert_eq!((&line["level"], &line["domain"]), (&"INFO".into(), &"edge".into()), "{line}");
    let rejected = top(&serving, false);
    assert!(rejected.iter().all(|(rule, _)| !["edge.quiet", "edge.mute"].contains(&&**rule)));
    assert_eq!(metric(&serving, "global_shadow_mode_total"), 0, "no global mode");
    for (key, modes) in
        [("quiet", json!(["shadow"])), ("free", json!(["unlimited"])), ("hard", json!([]))]
    {
        assert_eq!(rule_now(&serving, key)["modes"], modes, "{key}");
    }
}

#[test]
fn a_quota_descriptor_whose_call_another_one_admits_is_not_listed_as_rejected() {
    let serving = serving(&[], &[]);
    assert_eq!([(); 2].map(|()| ask(&serving, &["one"])), [200, 429]);
    assert_eq!(ask(&serving, &["one", "two"]), 200, "the other one has room");
    assert_eq!(top(&serving, false), [("edge.one".to_owned(), 1)]);
    assert_eq!(top(&serving, true), [("edge.one".to_owned(), 1)]);
    assert_eq!(would_be_rejected(&serving), 0, "it passes without any shadow mode, too");
}

/// Each row: target and value of a switch, what the second call gets, and whether it counts as
/// would be rejected.
#[test]
fn a_switch_is_shown_beside_the_numbers_of_its_rule_until_it_ends() {
    let rows = [
        ("edge.hard", "mode=shadow", 200, 1),
        ("edge", "mode=shadow", 200, 1),
        ("edge.hard", "mode=unlimited", 200, 0),
        ("edge.hard", "mode=deny", 429, 0),
        ("edge", "scale=20%25", 429, 0),
    ];
    for (target, to, status, counted) in rows {
        let serving = serving(&[], &[]);
        assert_eq!(ask(&serving, &["hard"]), 200);
        order(&serving, &format!("/override?target={target}&{to}&for=600"));
        let to = to.replace("%25", "%").replace("mode=", "").replace('=', " ");
        let line = serving.logged("override changed").expect("it is logged");
        assert_eq!((&line["level"], &line["change"]), (&"WARN".into(), &(*to).into()));
        assert!(line["effect"].as_str().is_some_and(|effect| effect.len() > 20), "{line}");
        assert_eq!(ask(&serving, &["hard"]), status, "{target} {to}");
        assert_eq!(would_be_rejected(&serving), counted, "{target} {to}");
        assert_eq!(metric(&serving, "overrides"), 1);
        // Its own numbers stay.
        let listed = page(&serving, "/policy?search=hard");
        let (rule, limit) = (&listed["rules"][0], &listed["rules"][0]["limits"][0]);
        assert_eq!(rule["overrides"], json!([to]));
        let own = ["name", "requests_per_unit", "unit", "algorithm"].map(|key| &limit[key]);
        assert_eq!(json!(own), json!(["h", 1, "year", "fixed_window"]));
        assert_eq!((&rule["unlimited"], &rule["shadow_mode"]), (&false.into(), &false.into()));
        let get = |path: &str| http::get(serving.port("debug"), path).body;
        let line = format!(
            "edge.hard: unit=YEAR requests_per_unit=1, shadow_mode: false, quota_mode: false, \
             override: {to}\n"
        );
        assert!(get("/rlconfig").contains(&line), "{}", get("/rlconfig"));
        for path in ["/explain", "/counter"] {
            let text = get(&format!("{path}?domain=edge&descriptor=hard=ann"));
            let rule = if target == "edge" { "" } else { " rule edge.hard" };
            let line = format!("override edge{rule}: {to}, until ");
            assert!(text.contains(&line), "{path}: {text}");
        }
        assert!(get("/counter?domain=edge&descriptor=hard=ann").contains("0 of 1 left"));
        let modes = rule_now(&serving, "hard")["modes"].clone();
        assert_eq!(modes, json!([format!("override: {to}")]));
        order(&serving, &format!("/override/delete?target={target}"));
        assert_eq!(rule_now(&serving, "hard")["modes"], json!([]));
        assert!(!get("/rlconfig").contains("override: "));
        assert_eq!((ask(&serving, &["hard"]), metric(&serving, "overrides")), (429, 0));
    }
}

#[test]
fn what_was_rejected_before_and_after_a_switch_keeps_its_own_number() {
    let serving = serving(&[], &[]);
    assert_eq!([(); 3].map(|()| ask(&serving, &["hard"])), [200, 429, 429]);
    order(&serving, "/override?target=edge.hard&mode=shadow&for=1");
    assert_eq!(ask(&serving, &["hard"]), 200);
    until("its end", || serving.log().contains("\"kind\":\"ended\"").then_some(()));
    assert_eq!(ask(&serving, &["hard"]), 429);
    assert_eq!(top(&serving, false), [("edge.hard".to_owned(), 3)]);
    assert_eq!(top(&serving, true), [("edge.hard".to_owned(), 1)]);
}

#[test]
fn a_rule_in_shadow_mode_under_global_shadow_mode_is_counted_once() {
    let serving = serving(&["--shadow-mode"], &[]);
    assert_eq!([(); 2].map(|()| ask(&serving, &["quiet"])), [200, 200]);
    assert_eq!((would_be_rejected(&serving), metric(&serving, "global_shadow_mode_total")), (1, 0));
    assert_eq!([(); 2].map(|()| ask(&serving, &["hard", "quiet"])), [200, 200]);
    assert_eq!((would_be_rejected(&serving), metric(&serving, "global_shadow_mode_total")), (3, 1));
}

/// What a rule does without Redis is a mode, too: each row is its word, the status of a call, and
/// the call is then decided by this replica.
#[test]
fn without_redis_the_page_says_that_counters_are_not_shared() {
    for (word, status) in [("local", 200), ("allow", 200), ("deny", 429), ("error", 503)] {
        let server = Server::start(&[]);
        let policy = format!(
            "domain: edge\ndescriptors:\n  - {{key: k, rate_limit: {{unit: year, \
             requests_per_unit: 5, on_store_failure: {word}}}}}\n"
        );
        let files = [("policy.yaml", &*policy), ("token", TOKEN)];
        let url = format!("127.0.0.1:{}", server.port);
        let redis = ["--redis-url", &url, "--redis-budget", "5s"];
        let arguments = [&redis[..], &["--debug-token-file", "token"]].concat();
        let serving = Tidegate::with_files(&files, &arguments, &[]);
        until("Redis to decide", || (ask(&serving, &["k"]) == 200).then_some(()));
        order(&serving, "/leave-redis");
        assert_eq!(ask(&serving, &["k"]), status, "{word}");
        let now = page(&serving, "/now");
        assert!(now["store"]["degraded"].is_string(), "{now}");
        let limit = &page(&serving, "/policy")["rules"][0]["limits"][0];
        assert_eq!(limit["on_store_failure"], *word);
    }
}
