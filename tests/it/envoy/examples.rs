//! Every example of `config/examples/` limits at exactly the numbers that it states.

use std::fs;

use tempfile::TempDir;

use super::admission_bounds::{RequestSeries, StatedLimit, assert_limited};
use super::bootstrap::{Bootstrap, repository};
use super::envoy_process::validate;
use super::http_client::{Request, get, post};
use super::stack::{Stack, example};

/// A window of minutes.
const fn in_minutes(minutes: u64, hits: u64) -> StatedLimit {
    StatedLimit::Window { hits, seconds: minutes * 60 }
}

const EXAMPLES: [&str; 14] = [
    "api-key-else-ip",
    "failed-logins",
    "failed-logins-refunded",
    "in-flight",
    "ip-user-endpoint",
    "ipv6-prefix",
    "llm-budgets",
    "organisation-over-tokens",
    "public-api",
    "roles",
    "several-at-once",
    "soft-limit",
    "steady-and-peaks",
    "thirty-per-ten-seconds",
];

#[test]
fn there_is_a_test_of_every_example() {
    let directory = fs::read_dir(repository("config/examples")).expect("the examples");
    let mut found: Vec<_> = directory
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    found.sort();
    assert_eq!(found, EXAMPLES);
}

#[test]
fn envoy_accepts_the_bootstrap_that_ships() {
    let output = validate(&repository("config/envoy.yaml"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn envoy_accepts_the_routes_of_every_example() {
    let directory = TempDir::new().expect("a temporary directory");
    for name in EXAMPLES {
        let file = directory.path().join(name).with_extension("json");
        example(name).write(&file);
        let output = validate(&file);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn first_policy_limits_clients_searches_and_tokens() {
    let stack = Stack::new(Bootstrap::shipped(), &repository("config/first.yaml"));
    let client = StatedLimit::Bucket { burst: 100, per_second: 50.0 };
    assert_limited(&stack, &get("/"), client);
    assert_limited(&stack, &get("/search?q=tide").from(2), in_minutes(1, 30));
    let token = StatedLimit::Bucket { burst: 5, per_second: 5.0 / 60.0 };
    assert_limited(&stack, &get("/").with("x-api-token", "demo").from(3), token);
}

#[test]
fn public_api_limits_each_endpoint_at_its_own_number() {
    let stack = Stack::of_example("public-api");
    let endpoints = [
        (post("/login"), in_minutes(15, 5), "login"),
        (post("/register"), in_minutes(60, 3), "register"),
        (get("/search?q=tide"), in_minutes(1, 30), "search"),
        (get("/data/7?fields=all"), in_minutes(1, 100), "data"),
        (post("/upload"), in_minutes(60, 10), "upload"),
        (get("/anything/else"), in_minutes(1, 100), "other"),
    ];
    for (request, limit, name) in endpoints {
        let refusal = assert_limited(&stack, &request, limit);
        let shown = refusal.header("x-ratelimit-limit").expect("the limit");
        assert!(shown.contains(&format!("name=\"{name}\"")), "{shown}");
    }
}

#[test]
fn public_api_counts_another_method_and_another_client_elsewhere() {
    let stack = Stack::of_example("public-api");
    assert_limited(&stack, &post("/login"), in_minutes(15, 5));
    assert_eq!(stack.ask(&get("/login")).status, 200);
    assert_eq!(stack.ask(&post("/login").from(2)).status, 200);
}

#[test]
fn every_client_has_five_a_second_with_peaks_to_twenty() {
    let stack = Stack::of_example("steady-and-peaks");
    assert_limited(&stack, &get("/"), StatedLimit::Bucket { burst: 20, per_second: 5.0 });
    let report = post("/report").from(2);
    assert_limited(&stack, &report, StatedLimit::Bucket { burst: 5, per_second: 1.0 });
}

#[test]
fn a_key_is_counted_by_itself_and_a_client_without_one_by_its_address() {
    let stack = Stack::of_example("api-key-else-ip");
    assert_limited(&stack, &get("/").with("x-api-key", "first"), in_minutes(1, 60));
    assert_limited(&stack, &get("/").from(2), in_minutes(1, 10));
    assert_eq!(stack.ask(&get("/").with("x-api-key", "second").from(2)).status, 200);
}

#[test]
fn invented_keys_get_no_further_than_the_cap_of_their_address() {
    let stack = Stack::of_example("api-key-else-ip");
    let row =
        RequestSeries::of(&stack, (0..103).map(|n| get("/").with("x-api-key", format!("key-{n}"))));
    row.assert_limited_by(in_minutes(1, 100));
}

#[test]
fn address_user_and_endpoint_make_one_counter_and_the_query_makes_none() {
    let stack = Stack::of_example("ip-user-endpoint");
    let order = |n: usize| get(&format!("/orders/7?try={n}")).with("x-user", "zoe");
    let row = RequestSeries::of(&stack, (0..23).map(order));
    row.assert_limited_by(in_minutes(1, 20));
    for other in [
        get("/orders/7").with("x-user", "ann"),
        get("/orders/8").with("x-user", "zoe"),
        post("/orders/7").with("x-user", "zoe"),
        order(0).from(2),
    ] {
        assert_eq!(stack.ask(&other).status, 200, "{other:?}");
    }
}

#[test]
fn an_organisation_is_limited_over_its_tokens_and_each_token_below_that() {
    let stack = Stack::of_example("organisation-over-tokens");
    let by = |token: &str| get("/").with("x-organisation", "acme").with("x-token-id", token);
    assert_limited(&stack, &by("t1"), in_minutes(1, 40));
    let rest = ["t2", "t3", "t4"].into_iter().flat_map(|token| (0..40).map(move |_| by(token)));
    // 40 are used by now, and what t1 was refused was charged to nobody.
    RequestSeries::of(&stack, rest).assert_limited_by(in_minutes(1, 60));
    let elsewhere = get("/").with("x-organisation", "globex").with("x-token-id", "t1");
    assert_eq!(stack.ask(&elsewhere).status, 200);
}

#[test]
fn anonymous_callers_have_less_than_users_and_administrators_no_limit() {
    let stack = Stack::of_example("roles");
    let signed_in = |role: &str| get("/").with("x-role", role).with("x-user", "zoe");
    assert_limited(&stack, &get("/"), in_minutes(1, 10));
    assert_limited(&stack, &signed_in("user"), in_minutes(1, 50));
    assert_limited(&stack, &signed_in("visitor"), in_minutes(1, 10));
    assert_limited(&stack, &get("/").with("x-user", "ann"), in_minutes(1, 10));
    let row = RequestSeries::of(&stack, (0..120).map(|_| signed_in("admin")));
    assert_eq!(row.admitted(), 120);
}

#[test]
fn thirty_pass_in_ten_seconds() {
    let stack = Stack::of_example("thirty-per-ten-seconds");
    let refusal = assert_limited(&stack, &get("/"), StatedLimit::Window { hits: 30, seconds: 10 });
    assert_eq!(refusal.header("x-ratelimit-limit"), Some("30, 30;w=10;name=\"per-client\""));
}

#[test]
fn an_ipv6_network_is_limited_beside_its_addresses() {
    let policy = repository("config/examples/ipv6-prefix/policy.yaml");
    let stack = Stack::new(example("ipv6-prefix").behind_a_load_balancer(), &policy);
    let from = |address: String| get("/").with("x-forwarded-for", address);
    assert_limited(&stack, &from("2001:db8:1:1::7".to_owned()), in_minutes(1, 20));
    assert_limited(&stack, &from("203.0.113.10".to_owned()), in_minutes(1, 20));
    let neighbours = |network: u16| (0..53).map(move |n| from_network(network, n));
    RequestSeries::of(&stack, neighbours(2)).assert_limited_by(in_minutes(1, 50));
    assert_eq!(stack.ask(&from_network(3, 0)).status, 200);
}

fn from_network(network: u16, host: u16) -> Request {
    get("/").with("x-forwarded-for", format!("2001:db8:1:{network:x}::{host:x}"))
}
