//! Many requests at once, before Envoy knows how many calls a connection may have in flight.

use super::http_client::get;
use super::stack::Stack;
use crate::support::wait;

/// Four times the default of `--streams`. Envoy starts up to 1,024 calls on a new connection, and its
/// circuit breaker allows as many.
const REQUESTS: usize = 1_000;

const POLICY: &str = "{domain: edge, descriptors: [{key: plan, rate_limit: {unit: year, \
                      requests_per_unit: 100000}}]}";
const RATE_LIMITS: &str =
    "[{actions: [{generic_key: {descriptor_key: plan, descriptor_value: all}}]}]";

#[test]
fn no_request_of_a_burst_on_a_new_connection_fails() {
    let stack = Stack::of(POLICY, RATE_LIMITS);
    // Frozen, Tidegate cannot send its settings before Envoy has sent the calls.
    stack.tidegate.freeze();
    let requests: Vec<_> = (0..REQUESTS).map(|_| get("/").begin(stack.address)).collect();
    wait::until("Envoy's calls", || {
        (stack.counter("cluster.tidegate.upstream_rq_active") == REQUESTS as u64).then_some(())
    });
    stack.tidegate.thaw();
    let statuses = requests.into_iter().map(|request| request.finish().status);
    let failed = statuses.filter(|status| *status != 200).count();
    assert_eq!(failed, 0, "of {REQUESTS} requests");
}
