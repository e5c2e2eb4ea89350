//! Callers with grants: each request of a batch, and each counter, is for their domains only.

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use super::messages::{CheckRequest, CountersRequest, LimitsClient, all, encoded, request};
use crate::grpc::test_server::soon;
use crate::hostile::tls_callers::{SERVER, serving};
use crate::support::certificate_authority::Authority;
use crate::support::tidegate_process::metric;

#[tokio::test]
async fn a_caller_is_limited_to_its_domains_request_by_request() {
    let ours = Authority::new();
    let arguments = ["--grpc-client-domains", "edge=gateway.test", "--counter-access", "write"];
    let (serving, _secret) = serving(&ours, &arguments);
    let identity = ours.signs("gateway.test");
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&ours.certificate))
        .identity(Identity::from_pem(&identity.certificate, &identity.key))
        .domain_name(SERVER);
    let endpoint = Endpoint::from_shared(format!("https://{}", serving.port("grpc"))).unwrap();
    let channel = soon("connecting", endpoint.tls_config(tls).unwrap().connect()).await.unwrap();
    let mut client = LimitsClient::new(channel);

    let requests = ["edge", "pay", "edge"].map(|domain| encoded(domain, "ann"));
    let answer = client.check(CheckRequest { requests: requests.to_vec() }).await.unwrap();
    assert_eq!(all(&answer.into_inner().results), ["OK", "PermissionDenied", "OK"]);

    let denied = |result: Result<(), Status>| {
        assert_eq!(result.unwrap_err().code(), Code::PermissionDenied);
    };
    let counters = || CountersRequest {
        domain: "pay".to_owned(),
        descriptor: request("pay", "client", "ann").descriptors.pop(),
    };
    denied(client.peek(request("pay", "client", "ann")).await.map(drop));
    denied(client.refund(request("pay", "client", "ann")).await.map(drop));
    denied(client.read_counters(counters()).await.map(drop));
    denied(client.reset_counters(counters()).await.map(drop));
    client.peek(request("edge", "client", "ann")).await.unwrap();
    assert_eq!(metric(&serving, "calls_denied_total"), 5);
}
