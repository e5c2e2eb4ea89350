//! The layer around axum and tonic.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Extension};
use axum::routing::get;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tidegate_client::{Admission, Client, Mapping, OnFailure, PeerAddr};
use tonic::Code;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceExt as _;

use crate::support::{Certificates, Tidegate, builder_at, call, free_port, until_passes};

const BY_USER: &str = r#"{"descriptors": [
    {"entries": [{"key": "user", "header": "x-user"}]},
    {"entries": [{"key": "spoken", "header": "x-spoken"}]},
    {"entries": [{"key": "export", "path_prefix": "/export"}], "hold": true}
]}"#;
const BY_ADDRESS: &str =
    r#"{"descriptors": [{"entries": [{"key": "remote_address", "client_address": true}]}]}"#;

async fn fails(Extension(admission): Extension<Admission>) -> StatusCode {
    admission.refund().await.unwrap();
    StatusCode::INTERNAL_SERVER_ERROR
}

fn app(client: &Client, mapping: &str) -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/export", get(|| async { "everything" }))
        .route("/fails", get(fails))
        .layer(client.layer(Mapping::from_json(mapping).unwrap()))
}

fn request(path: &str, header: (&str, &str)) -> Request<Body> {
    Request::get(path).header(header.0, header.1).body(Body::empty()).unwrap()
}

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn axum_answers_the_sixth_request_with_429_and_retry_after() {
    let tidegate = Tidegate::serve(&["--headers", "x-ratelimit"]);
    let app = app(&tidegate.client(), BY_USER);
    for left in (0..5).rev() {
        let response = app.clone().oneshot(request("/", ("x-user", "ann"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["x-ratelimit-remaining"], left.to_string());
        assert_eq!(text(response).await, "hello");
    }
    let response = app.clone().oneshot(request("/", ("x-user", "ann"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(wait > 0);
    assert_eq!(response.headers().get_all("retry-after").iter().count(), 1);
    let response = app.clone().oneshot(request("/", ("x-spoken", "x"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(text(response).await, r#"{"error":"slow down"}"#);
    // No descriptor, no limit.
    assert_eq!(app.oneshot(request("/", ("a", "b"))).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn axum_without_a_decision_passes_or_answers_503() {
    for (choice, status) in
        [(OnFailure::Allow, StatusCode::OK), (OnFailure::Deny, StatusCode::SERVICE_UNAVAILABLE)]
    {
        let client = builder_at(free_port(), &Certificates::new()).on_failure(choice).build();
        let response = app(&client.unwrap(), BY_USER).oneshot(request("/", ("x-user", "ann")));
        assert_eq!(response.await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn a_failed_request_can_be_refunded_by_its_handler() {
    let tidegate = Tidegate::serve(&[]);
    let app = app(&tidegate.client(), BY_USER);
    for _ in 0..10 {
        let response = app.clone().oneshot(request("/fails", ("x-user", "ann"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_ends() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let app = app(&client, BY_USER);
    let first = app.clone().oneshot(request("/export", ("a", "b"))).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let second = app.clone().oneshot(request("/export", ("a", "b"))).await.unwrap();
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text(first).await, "everything");
    let export = tidegate_client::Descriptor::new([("export", "/export")]).hold();
    until_passes(&client, &tidegate_client::Call::new([export])).await;
}

#[tokio::test]
async fn the_address_comes_from_whoever_accepted_the_connection() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let app = app(&client, BY_ADDRESS);
    let address: SocketAddr = "198.51.100.7:4711".parse().unwrap();
    let mut statuses = Vec::new();
    for number in 0..6 {
        let mut request = request("/", ("x-forwarded-for", "1.1.1.1"));
        if number % 2 == 0 {
            request.extensions_mut().insert(ConnectInfo(address));
        } else {
            request.extensions_mut().insert(PeerAddr(address));
        }
        statuses.push(app.clone().oneshot(request).await.unwrap().status());
    }
    assert_eq!(statuses[..5], [StatusCode::OK; 5]);
    assert_eq!(statuses[5], StatusCode::TOO_MANY_REQUESTS);
}

/// A gRPC server behind the layer, and a client of it.
async fn grpc(client: &Client, mapping: &str) -> HealthClient<Channel> {
    let layer = client.layer(Mapping::from_json(mapping).unwrap());
    let (_, health) = tonic_health::server::health_reporter();
    let port = free_port();
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    tokio::spawn(async move {
        Server::builder().layer(layer).add_service(health).serve(address).await.unwrap();
    });
    let endpoint = Channel::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    loop {
        if let Ok(channel) = endpoint.connect().await {
            return HealthClient::new(channel);
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn tonic_answers_the_sixth_call_with_resource_exhausted_and_retry_after() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    for (mapping, key, value) in
        [(BY_USER, "user", "ann"), (BY_ADDRESS, "remote_address", "127.0.0.1")]
    {
        let mut service = grpc(&client, mapping).await;
        for _ in 0..5 {
            let mut request = tonic::Request::new(HealthCheckRequest::default());
            request.metadata_mut().insert("x-user", "ann".parse().unwrap());
            service.check(request).await.unwrap();
        }
        let mut request = tonic::Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-user", "ann".parse().unwrap());
        let status = service.check(request).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert_eq!(status.message(), "rate limit exceeded");
        let wait: u64 =
            status.metadata().get("retry-after").unwrap().to_str().unwrap().parse().unwrap();
        assert!(wait > 0);
        // The same counter as that of the client itself.
        assert!(!client.check(&call(key, value)).await.passes());
    }
}

#[tokio::test]
async fn tonic_without_a_decision_passes_or_answers_unavailable() {
    for (choice, code) in [(OnFailure::Allow, None), (OnFailure::Deny, Some(Code::Unavailable))] {
        let client = builder_at(free_port(), &Certificates::new()).on_failure(choice).build();
        let mut service = grpc(&client.unwrap(), BY_ADDRESS).await;
        let answer = service.check(HealthCheckRequest::default()).await;
        assert_eq!(answer.err().map(|status| status.code()), code);
    }
}
