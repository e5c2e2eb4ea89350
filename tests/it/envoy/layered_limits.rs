//! NGINX and Envoy's local limit in front of Tidegate, as docs/LAYERS.md describes: each refuses at
//! its own number, counts by itself, and what it refuses never reaches the next layer.

use std::fs;

use tempfile::{NamedTempFile, TempDir};

use super::backend::Backend;
use super::bootstrap::{Bootstrap, repository};
use super::envoy_process::Envoy;
use super::http_client::{Reply, Request, get};
use super::nginx_process::Nginx;
use super::stack::written;
use super::tidegate_behind_envoy::Tidegate;

/// What the examples admit at once: the peak, and the one that fits into the rate.
const CALLER: usize = 21;
const ADDRESS: usize = 101;
const LOCAL: usize = 1000;

/// What Tidegate admits here.
const SHARED: usize = 150;

/// The rates of the examples, and ones at which nothing comes back while a test runs.
const NGINX_RATES: [(&str, &str); 2] = [("rate=10r/s", "rate=1r/m"), ("rate=50r/s", "rate=1r/m")];
const LOCAL_RATE: (&str, &str) = ("fill_interval: 1s", "fill_interval: 36000s");

/// A backend, a Tidegate and Envoys in front of it that limit by themselves, too.
struct Stack {
    edges: Vec<Envoy>,
    backend: Backend,
    _tidegate: Tidegate,
    _policy: NamedTempFile,
    _directories: Vec<TempDir>,
}

impl Stack {
    fn new(edges: usize) -> Stack {
        let policy = written(&format!(
            "{{domain: edge, descriptors: [{{key: remote_address, rate_limit: {{name: shared, \
             unit: year, requests_per_unit: {SHARED}}}}}]}}"
        ));
        let filter = fs::read_to_string(repository("config/layers/local-rate-limit.yaml"))
            .expect("the example");
        assert!(filter.contains(LOCAL_RATE.0));
        let filter = filter.replace(LOCAL_RATE.0, LOCAL_RATE.1);
        let (backend, tidegate) = (Backend::start(), Tidegate::start(policy.path(), &[]));
        let bootstrap = Bootstrap::shipped()
            .with_rate_limits("[{actions: [{remote_address: {}}]}]")
            .aimed_at(backend.address, &[tidegate.grpc])
            .behind_a_load_balancer()
            .with_first_filter(&filter);
        let directories: Vec<TempDir> =
            (0..edges).map(|_| TempDir::new().expect("a temporary directory")).collect();
        let edges = directories.iter().map(|at| Envoy::start(&bootstrap, at.path(), 1)).collect();
        Stack { edges, backend, _tidegate: tidegate, _policy: policy, _directories: directories }
    }

    /// Calls that the first Envoy made to Tidegate.
    fn calls(&self) -> u64 {
        self.edges[0].counter("cluster.tidegate.upstream_rq_total")
    }
}

/// How many of so many requests pass, and the last of the others.
fn admitted(count: usize, mut send: impl FnMut(usize) -> Reply) -> (usize, Option<Reply>) {
    let (mut admitted, mut refusal) = (0, None);
    for nth in 0..count {
        let reply = send(nth);
        match reply.status {
            200 => admitted += 1,
            429 => refusal = Some(reply),
            other => panic!("{other}: {reply:?}"),
        }
    }
    (admitted, refusal)
}

fn with_key(key: &str) -> Request {
    get("/").with("x-api-key", key)
}

#[test]
fn nginx_counts_by_key_else_by_address_each_for_itself_and_its_refusals_reach_nobody() {
    let stack = Stack::new(1);
    let nginx = Nginx::start(stack.edges[0].address, &NGINX_RATES);
    let (passed, refusal) = admitted(CALLER + 5, |_| with_key("one").send(nginx.address));
    assert_eq!(passed, CALLER);
    let refusal = refusal.expect("a refusal");
    assert_eq!(refusal.number("retry-after"), 1);
    assert_eq!(refusal.header("content-type"), Some("application/json"));
    assert_eq!(refusal.header("x-envoy-ratelimited"), None);
    assert_eq!((stack.calls(), stack.backend.served()), (CALLER as u64, CALLER as u64));
    let (passed, _) = admitted(CALLER + 5, |_| with_key("two").send(nginx.address));
    assert_eq!(passed, CALLER, "another key");
    let (passed, _) = admitted(CALLER + 5, |_| get("/").from(2).send(nginx.address));
    assert_eq!(passed, CALLER, "no key");
    assert_eq!(get("/").from(3).send(nginx.address).status, 200, "another address");
    let another = Nginx::start(stack.edges[0].address, &NGINX_RATES);
    let (passed, _) = admitted(CALLER + 5, |_| with_key("one").from(4).send(another.address));
    assert_eq!(passed, CALLER, "another NGINX");
}

#[test]
fn invented_keys_get_no_further_than_an_address_may() {
    let stack = Stack::new(1);
    let nginx = Nginx::start(stack.edges[0].address, &NGINX_RATES);
    let invented = |nth: usize| with_key(&format!("key-{nth}")).send(nginx.address);
    assert_eq!(admitted(ADDRESS + 5, invented).0, ADDRESS);
}

#[test]
fn a_refusal_of_tidegate_passes_nginx_as_it_is_and_counts_the_address_that_nginx_saw() {
    let stack = Stack::new(1);
    let nginx = Nginx::start(
        stack.edges[0].address,
        &[
            ("rate=10r/s", "rate=1000r/s"),
            ("rate=50r/s", "rate=1000r/s"),
            ("burst=20", "burst=1000"),
            ("burst=100", "burst=1000"),
        ],
    );
    let forged = |nth: usize| {
        get("/").with("x-forwarded-for", format!("198.51.100.{nth}")).from(2).send(nginx.address)
    };
    let (passed, refusal) = admitted(SHARED + 5, forged);
    assert_eq!(passed, SHARED);
    let refusal = refusal.expect("a refusal");
    assert_eq!(refusal.header("x-envoy-ratelimited"), Some("true"));
    assert!(refusal.number("retry-after") > 1, "{refusal:?}");
    assert_eq!(get("/").from(3).send(nginx.address).status, 200, "another address");
}

#[test]
fn envoys_own_limit_makes_no_call_and_counts_in_each_envoy_while_tidegate_counts_over_all() {
    let stack = Stack::new(2);
    let ask = |nth: usize| stack.edges[0].ask(&from_client(nth / SHARED));
    let (passed, refusal) = admitted(LOCAL + 5, ask);
    assert_eq!(passed, LOCAL);
    let refusal = refusal.expect("a refusal");
    assert_eq!(refusal.number("retry-after"), 1);
    assert_eq!(refusal.header("x-ratelimit-limit"), None, "{refusal:?}");
    assert_eq!(stack.calls(), LOCAL as u64);
    // The first client has used up what Tidegate gives it, whichever Envoy it comes to next.
    let reply = stack.edges[1].ask(&from_client(0));
    assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"), "{reply:?}");
    assert_eq!(reply.status, 429);
    let (passed, _) =
        admitted(LOCAL - 1, |nth| stack.edges[1].ask(&from_client(10 + nth / SHARED)));
    assert_eq!(passed, LOCAL - 1, "the other Envoy has a bucket of its own");
}

fn from_client(client: usize) -> Request {
    get("/").with("x-forwarded-for", format!("203.0.113.{client}"))
}
