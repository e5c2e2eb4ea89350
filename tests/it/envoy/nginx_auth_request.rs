//! NGINX asks Tidegate over HTTP, with `config/layers/nginx-asks.conf` and no Envoy: refusals,
//! admitted requests, and an unreachable Tidegate.

use super::backend::Backend;
use super::forward_auth::{LIMIT, policy};
use super::http_client::get;
use super::nginx_process::Nginx;
use super::stack::written;
use super::tidegate_behind_envoy::Tidegate;

/// The example's patience is Envoy's; on a busy machine an answer may take longer.
const PATIENT: [(&str, &str); 2] = [
    ("proxy_connect_timeout 20ms", "proxy_connect_timeout 20s"),
    ("proxy_read_timeout 20ms", "proxy_read_timeout 20s"),
];

/// The limit headers that the example passes on.
const HEADERS: [(&str, &str); 1] = [("TIDEGATE_HEADERS", "x-ratelimit")];

fn asking(tidegate: &Tidegate, backend: &Backend) -> Nginx {
    let (asked, served) = (tidegate.http.to_string(), backend.address.to_string());
    let ours = [("127.0.0.1:8080", &*asked), ("127.0.0.1:8000", &*served)];
    Nginx::of("nginx-asks.conf", &[&ours[..], &PATIENT].concat())
}

#[test]
fn nginx_refuses_what_tidegate_refuses_and_passes_what_nobody_decides() {
    let file = written(&policy());
    let (backend, mut tidegate) = (Backend::start(), Tidegate::start(file.path(), &HEADERS));
    let nginx = asking(&tidegate, &backend);
    let of = |token: &str| get("/?a=1").with("x-api-token", token).send(nginx.address);
    for left in (0..LIMIT).rev() {
        let passed = of("one");
        assert_eq!(passed.status, 200);
        assert_eq!(passed.header("x-ratelimit-remaining"), Some(&*left.to_string()));
    }
    let refusal = of("one");
    assert_eq!((refusal.status, refusal.header("content-type")), (429, Some("application/json")));
    assert_eq!(refusal.header("x-ratelimit-remaining"), Some("0"));
    let wait = refusal.header("retry-after").expect("how long to wait");
    assert!(wait.parse::<u64>().is_ok_and(|seconds| seconds > 60), "{wait}");
    assert_eq!(of("two").status, 200, "another token");
    assert_eq!(backend.served(), LIMIT as u64 + 1);
    tidegate.kill();
    assert_eq!(of("one").status, 200, "nobody decides");
}

#[test]
fn a_client_cannot_choose_the_counter_of_somebody_else() {
    let file = written(&policy());
    let (backend, tidegate) = (Backend::start(), Tidegate::start(file.path(), &[]));
    let nginx = asking(&tidegate, &backend);
    let forged = r#"x"}]}, {"entries": [{"key": "api_token", "value": "victim"#;
    let sent = |token: &str| get("/").with("x-api-token", token).send(nginx.address).status;
    assert!((0..LIMIT).all(|_| sent(forged) == 200));
    assert_eq!(sent(forged), 429, "an odd token is a token like any other");
    assert_eq!(sent("a b"), 200);
    let left = tidegate.left("edge", "api_token=victim");
    assert_eq!(left.into_values().collect::<Vec<_>>(), [LIMIT as u64]);

    let elsewhere = || get("/").with("x-forwarded-for", "192.0.2.1").send(nginx.address);
    assert_eq!(elsewhere().status, 200);
    let left = tidegate.left("edge", "remote_address=192.0.2.1");
    assert_eq!(left.into_values().collect::<Vec<_>>(), [600], "not the client's word");
}

#[test]
fn a_client_cannot_escape_its_limit_with_long_headers() {
    let file = written(&policy());
    let (backend, tidegate) = (Backend::start(), Tidegate::start(file.path(), &[]));
    let nginx = asking(&tidegate, &backend);
    // Headers that NGINX accepts, and that together are longer than Tidegate reads.
    let long = "x".repeat(8_000);
    let padded = get("/").with("x-api-token", "one").with("x-more", &long).with("x-most", &long);
    let padded = || padded.clone().with("x-last", &long).send(nginx.address).status;
    assert!((0..LIMIT).all(|_| padded() == 200));
    assert_eq!(padded(), 429);
}

#[test]
fn another_spelling_of_a_path_does_not_leave_its_limit() {
    let policy = "
domain: edge
http:
  descriptors: [{entries: [{key: host, request: host}, {key: path, request: path}]}]
descriptors:
  - key: host
    value: localhost
    descriptors:
      - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 0}}
";
    let file = written(policy);
    let (backend, tidegate) = (Backend::start(), Tidegate::start(file.path(), &[]));
    let (asked, served) = (tidegate.http.to_string(), backend.address.to_string());
    let sent = "proxy_set_header X-Forwarded-For $remote_addr;";
    let path = "proxy_set_header X-Forwarded-Uri $request_uri; \
                proxy_set_header X-Forwarded-Host $http_host.:443;";
    let ours = [("127.0.0.1:8080", &*asked), ("127.0.0.1:8000", &*served), (sent, path)];
    let nginx = Nginx::of("nginx-asks.conf", &[&ours[..], &PATIENT].concat());
    let status = |path: &str| get(path).send(nginx.address).status;
    for spelling in [
        "/login",
        "/a/../login",
        "/login;x",
        "/./login",
        "//login",
        "/%6cogin",
        "/login?next=/",
        "/login;a=1;b",
        "/a/..;/login",
        "/a/%2e%2E/login",
        "/a\\..\\login",
        "http://example.org/login",
    ] {
        assert_eq!(status(spelling), 429, "{spelling}");
    }
    // NGINX itself rejects them.
    for invalid in ["/login%00", "/../login"] {
        assert_eq!(status(invalid), 400, "{invalid}");
    }
    assert_eq!(backend.served(), 0);
    for other in ["/", "/login/", "/LOGIN", "/login%2Fx", "/loginx", "/login/x", "/%256cogin"] {
        assert_eq!(status(other), 200, "{other}");
    }
}

#[test]
fn the_marks_of_a_soft_limit_replace_the_header_of_a_client() {
    let marked =
        format!("requests_per_unit: {LIMIT}, mark: {{near: {{x-quota: near}}, near_at: 50%}}}}");
    let policy = policy().replace(&format!("requests_per_unit: {LIMIT}}}"), &marked);
    let file = written(&policy);
    let (backend, tidegate) = (Backend::start(), Tidegate::start(file.path(), &[]));
    let (asked, served) = (tidegate.http.to_string(), backend.address.to_string());
    let ours = [
        ("127.0.0.1:8080", &*asked),
        ("127.0.0.1:8000", &*served),
        (
            "auth_request_set $retry_after",
            "auth_request_set $quota $upstream_http_x_quota; auth_request_set $retry_after",
        ),
        (
            "proxy_set_header Host $host;",
            "proxy_set_header Host $host; proxy_set_header X-Quota $quota;",
        ),
    ];
    let nginx = Nginx::of("nginx-asks.conf", &[&ours[..], &PATIENT].concat());
    let ask = || get("/").with("x-api-token", "one").with("x-quota", "free").send(nginx.address);
    for seen in [&[][..], &["near"]] {
        assert_eq!(ask().status, 200);
        let values = [backend.last_values("x-quota"), backend.last_values("X-Quota")].concat();
        assert_eq!(values, seen);
    }
}
