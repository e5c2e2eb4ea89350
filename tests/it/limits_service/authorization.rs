//! Callers with grants: each request of a batch, and each counter, is for their domains only.

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use super::messages::{CheckRequest, CountersRequest, LimitsClient, all, encoded, request};
use crate::grpc::test_server::soon;
use crate::hostile::tls_callers::{SERVER, serving};
use crate::support::certificate_authority::Authority;
use crate::support::tidegate_process::{Tidegate, metric};

/// A client that shows a certificate for `name`.
pub(super) async fn limits_client(
    serving: &Tidegate,
    authority: &Authority,
    name: &str,
) -> LimitsClient<Channel> {
    let identity = authority.signs(name);
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&authority.certificate))
        .identity(Identity::from_pem(&identity.certificate, &identity.key))
        .domain_name(SERVER);
    let endpoint = Endpoint::from_shared(format!("https://{}", serving.port("grpc"))).unwrap();
    let channel = soon("connecting", endpoint.tls_config(tls).unwrap().connect()).await.unwrap();
    LimitsClient::new(channel)
}

pub(super) fn counters(domain: &str) -> CountersRequest {
    let descriptor = request(domain, "client", "ann").descriptors.pop();
    CountersRequest { domain: domain.to_owned(), descriptor }
}

#[tokio::test]
async fn a_caller_is_limited_to_its_domains_request_by_request() {
    let ours = Authority::new();
    let grants = "edge=gateway.test:peek";
    let arguments = ["--grpc-client-domains", grants, "--counter-access", "write"];
    let (serving, _secret) = serving(&ours, &arguments);
    let mut client = limits_client(&serving, &ours, "gateway.test").await;

    let requests = ["edge", "pay", "edge"].map(|domain| encoded(domain, "ann"));
    let answer = client.check(CheckRequest { requests: requests.to_vec() }).await.unwrap();
    assert_eq!(all(&answer.into_inner().results), ["OK", "PermissionDenied", "OK"]);

    let denied = |result: Result<(), Status>| {
        assert_eq!(result.unwrap_err().code(), Code::PermissionDenied);
    };
    denied(client.peek(request("pay", "client", "ann")).await.map(drop));
    denied(client.refund(request("pay", "client", "ann")).await.map(drop));
    denied(client.read_counters(counters("pay")).await.map(drop));
    denied(client.reset_counters(counters("pay")).await.map(drop));
    client.peek(request("edge", "client", "ann")).await.unwrap();
    assert_eq!(metric(&serving, "calls_denied_total"), 5);
}
