//! NGINX asks Tidegate over HTTP, with `config/layers/nginx-asks.conf` and no Envoy: refusals,
//! admitted requests, and an unreachable Tidegate.

use super::backend::Backend;
use super::http_client::get;
use super::nginx_process::Nginx;
use super::stack::written;
use super::tidegate_behind_envoy::Tidegate;

/// A token's limit here, with a window that no test outlasts.
const LIMIT: usize = 3;
/// The example's patience is Envoy's; on a busy machine an answer may take longer.
const PATIENT: [(&str, &str); 2] = [
    ("proxy_connect_timeout 20ms", "proxy_connect_timeout 20s"),
    ("proxy_read_timeout 20ms", "proxy_read_timeout 20s"),
];

fn policy() -> String {
    format!(
        "{{domain: edge, descriptors: [{{key: api_token, rate_limit: {{name: token, unit: year, \
         requests_per_unit: {LIMIT}}}}}]}}"
    )
}

fn asking(tidegate: &Tidegate, backend: &Backend) -> Nginx {
    let (asked, served) = (tidegate.http.to_string(), backend.address.to_string());
    let ours = [("127.0.0.1:8080", &*asked), ("127.0.0.1:8000", &*served)];
    Nginx::of("nginx-asks.conf", &[&ours[..], &PATIENT].concat())
}

#[test]
fn nginx_refuses_what_tidegate_refuses_and_passes_what_nobody_decides() {
    let file = written(&policy());
    let (backend, mut tidegate) = (Backend::start(), Tidegate::start(file.path(), &[]));
    let nginx = asking(&tidegate, &backend);
    let of = |token: &str| get("/?a=1").with("x-api-token", token).send(nginx.address);
    assert!((0..LIMIT).all(|_| of("one").status == 200));
    let refusal = of("one");
    assert_eq!((refusal.status, refusal.header("content-type")), (429, Some("application/json")));
    assert_eq!(of("two").status, 200, "another token");
    assert_eq!(backend.served(), LIMIT as u64 + 1);
    tidegate.kill();
    assert_eq!(of("one").status, 200, "nobody decides");
}

#[test]
fn a_token_that_would_forge_the_question_is_counted_as_none() {
    let file = written(&policy());
    let (backend, tidegate) = (Backend::start(), Tidegate::start(file.path(), &[]));
    let nginx = asking(&tidegate, &backend);
    let forged = r#"x"}]}, {"entries": [{"key": "api_token", "value": "victim"#;
    let sent = |token: &str| get("/").with("x-api-token", token).send(nginx.address).status;
    assert!((0..LIMIT).all(|_| sent(forged) == 200));
    assert_eq!(sent("a b"), 429, "all odd tokens are one");
    let left = tidegate.left("edge", "api_token=victim");
    assert_eq!(left.into_values().collect::<Vec<_>>(), [LIMIT as u64]);
}
