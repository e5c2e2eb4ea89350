//! `/authz`: answers a proxy by the mapping of the policy; and the headers of `/json`.

use std::net::SocketAddr;

use crate::support::http::{self, Reply};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};

/// Two a year for each tenant, and for each path of a client, with a body of its own.
const POLICY: &str = "
domain: web
body: {text: '{\"limit\": \"{name}\"}'}
http:
  descriptors:
    - entries: [{key: tenant, header: X-Tenant}]
    - entries:
        - {key: remote_address, request: remote_address}
        - {key: path, request: path}
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 2}
  - key: remote_address
    descriptors:
      - key: path
        rate_limit: {name: path, unit: year, requests_per_unit: 3}
";

/// The headers of a proxy for a path of one client.
const PROXY: &str = "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Uri: /a?q\r\n";

fn authz(address: SocketAddr, query: &str, headers: &str) -> Reply {
    let head = format!("GET /authz?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}");
    http::send(address, &format!("{head}\r\n"))
}

#[test]
fn a_proxy_gets_200_or_429_with_headers_and_the_body_of_the_policy() {
    let server = Tidegate::policy(POLICY, &["--headers", "x-ratelimit"]);
    let ask = |query: &str, tenant: &str| {
        authz(server.port("http"), query, &format!("{PROXY}X-Tenant: {tenant}\r\n"))
    };
    let passed = ask("domain=web", "a");
    assert_eq!((passed.status, &*passed.body), (200, ""));
    assert!(passed.head.contains("\r\nx-ratelimit-remaining: 1\r\n"), "{}", passed.head);
    assert_eq!(ask("domain=web", "a").status, 200);
    let denied = ask("domain=web", "a");
    assert_eq!((denied.status, &*denied.body), (429, "{\"limit\": \"tenant\"}"));
    for header in
        ["retry-after: ", "x-ratelimit-limit: 2\r\n", "content-type: application/json\r\n"]
    {
        assert!(denied.head.contains(header), "{header} in {}", denied.head);
    }
    assert_eq!(ask("domain=web&denied_status=403", "a").status, 403);
    assert_eq!(ask("domain=web&denied_status=403", "b").status, 200, "another tenant");
    assert_eq!(ask("domain=web", "c").status, 429, "the path has had three");
}

#[test]
fn a_descriptor_without_its_header_is_left_out() {
    let server = Tidegate::policy(POLICY, &[]);
    let address = server.port("http");
    let status = |headers: &str| authz(address, "domain=web", headers).status;
    assert!((0..3).all(|_| status(PROXY) == 200), "only the path counts");
    assert_eq!(status(PROXY), 429);

    let only_tenant = POLICY.replace("request: remote_address", "header: x-none");
    let server = Tidegate::policy(&only_tenant.replace("request: path", "header: x-none"), &[]);
    let status = |headers: &str| authz(server.port("http"), "domain=web", headers).status;
    assert!((0..10).all(|_| status("") == 200), "no descriptor is left");
}

#[test]
fn spellings_of_a_path_and_addresses_of_a_network_share_a_counter() {
    let server = Tidegate::policy(POLICY, &[]);
    let address = server.port("http");
    let status = |host: u8, path: &str| {
        let from = format!("X-Forwarded-For: 2001:db8:1:2:{host}::{host}\r\n");
        let headers = format!("{from}X-Forwarded-Uri: {path}\r\n");
        authz(address, "domain=web", &headers).status
    };
    assert_eq!([status(1, "/a/../login"), status(2, "/login;x"), status(3, "/login%00")], [200; 3]);
    for (host, spelling) in (4..).zip(["/login", "//login", "/%6Cogin", "/./login?q", "\\login"]) {
        assert_eq!(status(host, spelling), 429, "{spelling}");
    }
    assert_eq!(status(1, "/login/"), 200, "another path");
}

#[test]
fn a_wrong_question_is_an_error_and_never_passes() {
    let server = Tidegate::policy(POLICY, &[]);
    let told = |query: &str, headers: &str| {
        let Reply { status, body, .. } = authz(server.port("http"), query, headers);
        (status, body.trim_end().to_owned())
    };
    let says = |status: u16, text: &str| (status, text.to_owned());
    let usage = says(400, "usage: domain=D, optionally &denied_status=403");
    assert_eq!(told("", PROXY), usage);
    assert_eq!(told("domain=web&domain=b", PROXY), usage);
    assert_eq!(told("domain=web&x=1", PROXY), usage);
    let status = says(400, "denied_status= must be 429 or 403");
    assert_eq!(told("domain=web&denied_status=200", PROXY), status);
    let unknown = says(400, "the policy has no `http` for domain \"other\"");
    assert_eq!(told("domain=other", PROXY), unknown);
    let missing = says(400, "the proxy sent no valid x-forwarded-for");
    assert_eq!(told("domain=web", "X-Forwarded-Uri: /a\r\n"), missing);
    let nonsense = "X-Forwarded-For: unknown\r\nX-Forwarded-Uri: /a\r\n";
    assert_eq!(told("domain=web", nonsense), missing);
    let metrics = http::get(server.port("http"), "/metrics").body;
    for (reason, count) in [("domain", 1), ("malformed", 2)] {
        let line = format!("tidegate_invalid_calls_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.lines().any(|it| it == line), "{line}");
    }
}

#[test]
fn headers_beyond_the_bound_are_rejected() {
    let server = Tidegate::policy(POLICY, &[]);
    let long = |bytes: usize| {
        let headers = format!("{PROXY}X-Tenant: {}\r\n", "x".repeat(bytes));
        authz(server.port("http"), "domain=web", &headers).status
    };
    assert_eq!(long(8_000), 200);
    assert_eq!(long(20_000), 431);
}

#[test]
fn without_the_store_the_rule_decides() {
    let policy = POLICY.replace("http:\n", "on_store_failure: error\nhttp:\n");
    // Nobody listens there.
    let redis = ["--redis-url", "127.0.0.1:1"];
    let server = Tidegate::policy(&policy, &redis);
    let reply = authz(server.port("http"), "domain=web", PROXY);
    assert_eq!((reply.status, reply.body.trim_end()), (503, "Redis did not answer in time"));
}

#[test]
fn authz_is_closed_with_json() {
    let server = Tidegate::policy(POLICY, &["--json", "off"]);
    let reply = authz(server.port("http"), "domain=web", PROXY);
    assert_eq!(reply.status, 404);
    assert!(reply.body.starts_with("/json and /authz are off"), "{}", reply.body);
}

#[test]
fn a_429_of_json_has_the_headers_that_envoy_would_get() {
    let server = Tidegate::policy(FIVE_A_DAY, &["--headers", "x-ratelimit"]);
    let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"client","value":"ann"}]}]}"#;
    let ask = || http::post(server.port("http"), "/json", body);
    let passed = ask();
    assert!(passed.head.contains("\r\nx-ratelimit-remaining: 4\r\n"), "{}", passed.head);
    assert!(!passed.head.contains("retry-after"), "{}", passed.head);
    (0..4).for_each(|_| drop(ask()));
    let refused = ask();
    assert_eq!(refused.status, 429);
    for header in ["retry-after: ", "x-ratelimit-limit: 5", "content-type: application/json"] {
        assert!(refused.head.contains(&format!("\r\n{header}")), "{header} in {}", refused.head);
    }
}
