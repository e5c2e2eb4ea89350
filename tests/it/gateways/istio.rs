//! The filter of docs/INTEGRATIONS.md in a real Envoy, with each kind of cluster that Istio generates for the Service:
//! EDS for a gateway, whatever the Service, and for a sidecar in front of a cluster IP; ORIGINAL_DST for a sidecar in front
//! of a headless Service. Envoy reads endpoints alike from EDS and from a STATIC cluster.

use crate::envoy::bootstrap::Bootstrap;
use crate::envoy::http_client::get;
use crate::envoy::stack::{Stack, written};

const POLICY: &str = "domain: edge\ndescriptors:\n  - key: remote_address\n    \
                      rate_limit: {unit: year, requests_per_unit: 2}\n";
const DESCRIPTORS: &str = "[{actions: [{remote_address: {}}]}]";

fn bootstrap() -> Bootstrap {
    Bootstrap::shipped().with_rate_limits(DESCRIPTORS)
}

#[test]
fn a_cluster_with_endpoints_reaches_tidegate() {
    let policy = written(POLICY);
    let stack = Stack::new(bootstrap(), policy.path());
    assert_eq!([0; 3].map(|_| stack.ask(&get("/")).status), [200, 200, 429]);
}

#[test]
fn an_envoy_cannot_call_a_headless_service_through_the_cluster_of_a_sidecar() {
    let policy = written(POLICY);
    let stack = Stack::new(bootstrap().with_original_destination(), policy.path());
    // An undecided request is an error in the tests' Envoy.
    assert_eq!([0; 3].map(|_| stack.ask(&get("/")).status), [500, 500, 500]);
    assert_eq!(stack.backend.served(), 0);
}
