//! Actions of operators on a running service: read a counter, reset it, override a rule, and who
//! may.

use std::fs;
use std::net::SocketAddr;

use crate::support::http::{self, order};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, asked, run, run_with};
use crate::support::wait::until;

const TOKEN: &str = "between-friends";

fn serving(arguments: &[&str]) -> (Tidegate, String) {
    serving_policy(FIVE_A_DAY, arguments)
}

/// Serves this policy, and the path of the token's file.
fn serving_policy(policy: &str, arguments: &[&str]) -> (Tidegate, String) {
    let files = [("policy.yaml", policy), ("token", TOKEN)];
    let arguments = [&["--debug-token-file", "token"], arguments].concat();
    let serving = Tidegate::with_files(&files, &arguments, &[]);
    let token = serving.directory().join("token").display().to_string();
    (serving, token)
}

/// The overrides in force, as the command lists them.
fn listed(debug: SocketAddr) -> String {
    run(&["override", "list", "--debug", &debug.to_string()]).with_code(0).out
}

fn spent(serving: &Tidegate, client: &str) {
    for _ in 0..5 {
        assert_eq!(asked(serving, client), 200);
    }
    assert_eq!(asked(serving, client), 429);
}

#[test]
fn counter_route_reads_without_charging() {
    let (serving, _) = serving(&[]);
    assert_eq!(asked(&serving, "ann"), 200);
    for _ in 0..3 {
        let reply =
            http::get(serving.port("debug"), "/counter?domain=edge&descriptor=client%3Dann");
        assert_eq!(reply.status, 200);
        assert!(reply.body.contains("edge.client (daily): 4 of 5 left"), "{}", reply.body);
    }
    let nothing = http::get(serving.port("debug"), "/counter?domain=edge&descriptor=other=x");
    assert_eq!(nothing.status, 400);
}

#[test]
fn reset_affects_one_descriptor_only() {
    let (serving, token) = serving(&[]);
    spent(&serving, "ann");
    spent(&serving, "bob");
    let debug = serving.port("debug").to_string();
    let side = ["--debug", &debug, "--debug-token-file", &token];
    let ran = run(&[&["reset", "edge", "client=ann"][..], &side].concat()).with_code(0);
    assert!(ran.out.contains("5 of 5 left"), "{}", ran.out);
    assert_eq!(asked(&serving, "ann"), 200);
    assert_eq!(asked(&serving, "bob"), 429);
}

#[test]
fn a_write_without_the_token_is_rejected() {
    let (with, _) = serving(&[]);
    let without = Tidegate::policy(FIVE_A_DAY, &[]);
    for path in ["/reset?domain=edge&descriptor=client=a", "/override?target=edge&mode=deny&for=9"]
    {
        assert_eq!(http::post(with.port("debug"), path, "").status, 401, "{path}");
        assert_eq!(order(with.port("debug"), path, "wrong").status, 401, "{path}");
        assert_eq!(order(without.port("debug"), path, TOKEN).status, 403, "{path}");
        assert_eq!(http::get(with.port("debug"), path).status, 405, "{path}");
    }
    let debug = with.port("debug").to_string();
    let side = ["--debug", &debug, "--debug-token-file", "token"];
    run_with(&[("token", "wrong")], &[&["reset", "edge", "client=a"], &side[..]].concat())
        .with_code(69);
    assert_eq!(asked(&with, "a"), 200);
}

#[test]
fn a_switch_overrides_a_rule_until_it_is_undone() {
    let (serving, token) = serving(&[]);
    let debug = serving.port("debug");
    let to = |to: &str| {
        let side = ["--debug", &debug.to_string(), "--debug-token-file", &token];
        run(&[&["switch", "edge.client", to][..], &side].concat()).with_code(0)
    };
    to("deny");
    assert_eq!(asked(&serving, "ann"), 429);
    to("delete");
    spent(&serving, "ann");
    to("shadow");
    assert_eq!(asked(&serving, "ann"), 200);
    to("allow");
    assert_eq!(asked(&serving, "ann"), 200);
    to("20%");
    assert_eq!(asked(&serving, "bob"), 200);
    assert_eq!(asked(&serving, "bob"), 429);
    assert!(listed(debug).contains("edge rule edge.client: scale 20%"));
    to("delete");
    assert_eq!(asked(&serving, "bob"), 200);
    assert_eq!(asked(&serving, "ann"), 429, "what was counted before stays counted");
    assert!(listed(debug).starts_with("no override is set"));
    for wrong in ["edgy&mode=deny&for=9", "edge&scale=101%25&for=9", "edge&mode=deny&for=-1"] {
        let path = format!("/override?target={wrong}");
        assert_eq!(order(debug, &path, TOKEN).status, 400, "{wrong}");
    }
}

#[test]
fn a_change_with_an_unknown_empty_or_missing_parameter_is_rejected() {
    let (serving, _) = serving(&[]);
    let debug = serving.port("debug");
    let status = |path: &str| order(debug, path, TOKEN).status;
    for bad in ["", "mode=deny&for=9", "target=edge&mode=deny&fro=1", "target=edge&mode=deny&for=0"]
    {
        assert_eq!(status(&format!("/override?{bad}")), 400, "{bad}");
    }
    for bad in
        ["mode=deny&permanent=yes", "limit=1&limit=2&for=9", "mode=deny&for=", "limit=x&for=9"]
    {
        assert_eq!(status(&format!("/override?target=edge&{bad}")), 400, "{bad}");
    }
    for bad in ["", "descriptor=a=b", "kind=mode&descriptor=a=b", "target=&kind=mode"] {
        assert_eq!(status(&format!("/override/delete?{bad}")), 400, "{bad}");
    }
    for bad in ["/leave-redis?for=", "/leave-redis?to=1", "/log-level", "/log-level?to=debug&for="]
    {
        assert_eq!(status(bad), 400, "{bad}");
    }
    let empty = order(debug, "/override?target=edge&mode=deny&for=", TOKEN);
    assert!(empty.body.starts_with("for= is empty; usage: target="), "{}", empty.body);
    assert!(listed(debug).starts_with("no override is set"));
}

#[test]
fn the_numbers_in_force_are_explained_shown_and_used_by_a_reset() {
    let (serving, token) = serving(&[]);
    let debug = serving.port("debug");
    spent(&serving, "ann");
    let path = "/override?target=edge&descriptor=client%3Dann&limit=2&permanent=true&reason=T-1";
    assert_eq!(order(debug, path, TOKEN).status, 200);
    let line = "override edge client=ann: limit 2, permanent: T-1";
    let get = |path: &str| http::get(debug, &format!("{path}?domain=edge&descriptor=client=ann"));
    let counter = get("/counter").body;
    assert!(counter.starts_with("edge.client (daily): 0 of 2 left, 2 per 1 year"), "{counter}");
    assert!(counter.contains(line), "{counter}");
    for path in ["/explain", "/try"] {
        let body = get(path).body;
        assert!(body.contains(line) && body.contains("requests_per_unit=2"), "{path}: {body}");
    }
    let side = ["--debug", &debug.to_string(), "--debug-token-file", &token];
    let ran = run(&[&["reset", "edge", "client=ann"][..], &side].concat()).with_code(0);
    assert!(ran.out.starts_with("edge.client (daily): 2 of 2 left"), "{}", ran.out);
    let other = http::get(debug, "/counter?domain=edge&descriptor=client=bob").body;
    assert!(other.contains("5 of 5 left") && !other.contains("override"), "{other}");
}

#[test]
fn a_switch_says_what_it_did_and_expires() {
    let (serving, token) = serving(&[]);
    let debug = serving.port("debug");
    let side = ["--debug", &debug.to_string(), "--debug-token-file", &token];
    let switch = |arguments: &[&str]| run(&[&["switch", "edge"], arguments, &side].concat());
    let out = switch(&["deny", "--for", "1"]).with_code(0).out;
    assert!(out.starts_with("edge: deny, until 2") && out.contains("; in force on this"), "{out}");
    assert_eq!(asked(&serving, "ann"), 429);
    until("the switch to expire", || (asked(&serving, "ann") == 200).then_some(()));
    let out = switch(&["deny"]).with_code(0).out;
    assert!(out.starts_with("edge: deny, permanent; in force on this replica"), "{out}");
    assert!(switch(&["delete"]).with_code(0).out.starts_with("1 deleted"));
    assert!(switch(&["delete"]).with_code(69).err.contains("no such override is set on edge"));
    assert!(switch(&["delete", "--for", "5"]).with_code(64).err.contains("--for"));
}

#[test]
fn a_reload_keeps_overrides_and_lists_those_without_a_target_as_unmatched() {
    let (serving, _) = serving(&[]);
    let debug = serving.port("debug");
    for target in ["edge", "edge.client"] {
        let path = format!("/override?target={target}&mode=deny&permanent=true");
        assert_eq!(order(debug, &path, TOKEN).status, 200);
    }
    let policy = serving.directory().join("policy.yaml");
    fs::write(&policy, FIVE_A_DAY.replace("requests_per_unit: 5", "requests_per_unit: 6")).unwrap();
    let limits = || http::get(debug, "/rlconfig").body;
    until("the new policy", || limits().contains("requests_per_unit=6").then_some(()));
    let lines = || -> Vec<String> {
        let text = listed(debug);
        text.lines().skip(1).map(str::to_owned).collect()
    };
    let listed = ["edge rule edge.client: deny, permanent", "edge: deny, permanent"];
    assert_eq!(lines(), listed);
    assert_eq!(asked(&serving, "ann"), 429);
    fs::write(&policy, FIVE_A_DAY.replace("key: client", "key: customer")).unwrap();
    until("the rule to be gone", || {
        let listed = lines();
        (listed[0].ends_with("(unmatched: the policy lacks the target)")
            && !listed[1].contains("unmatched"))
        .then_some(())
    });
    assert!(serving.log().contains("\"kind\":\"unmatched\""), "{}", serving.log());
}

const EVERY_KIND: &str = "
domain: edge
descriptors:
  - {key: client, rate_limit: {name: daily, unit: year, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: slots, rate_limit: {name: open, algorithm: concurrency, requests_per_unit: 3}}
  - key: endpoint
    descriptors: [{key: path, rate_limit: {unit: year, requests_per_unit: 5}}]
  - key: plan
    rate_limit:
      unit: year
      requests_per_unit: 5
      algorithm: token_bucket
      tiers: {method: separate, default: none, classes: {gold: {share: 50%}}}
";

/// Each row: domain and descriptor of a reset, its exit code, and what it says.
#[test]
fn a_reset_that_changes_nothing_says_so_in_the_log_the_answer_and_the_command() {
    let (serving, token) = serving_policy(EVERY_KIND, &[]);
    let debug = serving.port("debug").to_string();
    let side = ["--debug", &debug, "--debug-token-file", &token];
    let reset =
        |domain: &str, descriptor: &str| run(&[&["reset", domain, descriptor][..], &side].concat());
    let resets = |message: &str| serving.log().matches(&format!("\"{message}\"")).count();
    let rows = [
        ("edgy", "client=ann", 69, "the policy has no such domain"),
        ("edge", "customer=ann", 69, "/explain says where matching ends"),
        ("edge", "endpoint=login", 69, "/explain says where matching ends"),
        ("edge", "client=ann,path=/", 69, "/explain says where matching ends"),
        ("edge", "free=ann", 69, "its rule is unlimited"),
        ("edge", "plan=iron", 69, "its value belongs to no consumer class"),
        ("edge", "client=anne", 0, "nothing to reset: no hits were counted for these values"),
        ("edge", "slots=ann", 0, "nothing was reset: concurrency slots are held until released"),
    ];
    let slot = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"slots","value":"ann"}]}]}"#;
    assert_eq!(http::post(serving.port("http"), "/json", slot).status, 200);
    for (at, (domain, descriptor, code, text)) in rows.into_iter().enumerate() {
        let ran = reset(domain, descriptor).with_code(code);
        assert!(format!("{}{}", ran.out, ran.err).contains(text), "{} {}", ran.out, ran.err);
        assert_eq!(resets("nothing to reset"), at + 1, "{descriptor}: {}", serving.log());
        assert_eq!(resets("counters reset by hand"), 0, "{descriptor}");
    }
    assert!(!serving.log().contains("ann"), "the log has no values of descriptors");
    assert_eq!(asked(&serving, "ann"), 200);
    // A switch hides neither the counter nor what a reset does to it.
    for to in ["mode=deny", "mode=unlimited", "scale=100%25", "mode=shadow"] {
        let path = format!("/override?target=edge.client&{to}&permanent=true");
        assert_eq!(order(serving.port("debug"), &path, TOKEN).status, 200);
    }
    let ran = reset("edge", "client=ann").with_code(0);
    assert!(ran.out.starts_with("edge.client (daily): 5 of 5 left"), "{}", ran.out);
    assert!(ran.out.contains("override edge rule edge.client: shadow, permanent"), "{}", ran.out);
    assert!(!ran.out.contains("nothing"), "{}", ran.out);
    let line = serving.logged("counters reset by hand").expect("it is logged");
    assert_eq!((&line["rule"], &line["counters"]), (&"edge.client".into(), &1.into()));
}

#[test]
fn the_token_scheme_is_case_insensitive_and_a_missing_token_file_says_so() {
    let (serving, token) = serving(&[]);
    let debug = serving.port("debug");
    for scheme in ["bearer", "BEARER"] {
        let head = "Host: x\r\nConnection: close\r\nContent-Length: 0";
        let line = format!(
            "POST /override/delete?kind=mode HTTP/1.1\r\n{head}\r\nAuthorization: {scheme} {TOKEN}\r\n\r\n"
        );
        assert_eq!(http::send(debug, &line).status, 200, "{scheme}");
    }
    fs::remove_file(&token).unwrap();
    serving.logged_in_time("cannot read the debug token file");
    let reply = order(debug, "/override/delete?kind=mode", TOKEN);
    assert_eq!(reply.status, 503);
    assert!(reply.body.contains("--debug-token-file"), "{}", reply.body);
}

#[test]
fn debug_logs_are_ours_and_not_those_of_libraries() {
    let (serving, token) = serving(&["--log-level", "debug"]);
    serving.ask("ann");
    assert_eq!(order(serving.port("debug"), "/log-level?to=debug&for=60", TOKEN).status, 200);
    serving.ask("ann");
    for library in ["frame", "FramedRead", "h2", "hyper"] {
        assert!(!serving.log().contains(library), "{}", serving.log());
    }
    drop(token);
}

#[test]
fn a_switch_that_is_set_again_replaces_the_former_one() {
    let (serving, _) = serving(&[]);
    let debug = serving.port("debug");
    // A second one beside it would come back into force when the later one expires.
    for to in ["mode=deny&permanent=true", "mode=unlimited&for=1"] {
        let reply = order(debug, &format!("/override?target=edge.client&{to}"), TOKEN);
        assert_eq!(reply.status, 200, "{to}");
    }
    until("the switch to expire", || listed(debug).starts_with("no override is set").then_some(()));
    assert_eq!(asked(&serving, "ann"), 200);
}
