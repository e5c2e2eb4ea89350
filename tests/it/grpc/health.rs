//! Health under every service name, and reflection in both versions.

use futures_util::stream;
use tidegate::server::{HEALTH_NAMES, SERVICE_NAME};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};

use super::test_server::{Server, soon};

async fn channel(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    soon("connecting", endpoint.connect()).await.unwrap()
}

fn named(name: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: name.to_owned() }
}

#[tokio::test]
async fn health_tells_the_truth_under_every_name() {
    let server = Server::start();
    let mut client = HealthClient::new(channel(&server).await);
    for serving in [true, false, true] {
        server.health.set_serving(serving);
        for name in HEALTH_NAMES {
            let told = client.check(named(name)).await.unwrap().into_inner().status();
            assert_eq!(told == ServingStatus::Serving, serving, "{name:?}");
        }
    }
    assert_eq!(HEALTH_NAMES, ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"]);
    let unknown = client.check(named("nobody")).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    server.left().await;
}

#[tokio::test]
async fn a_watcher_hears_every_change_and_is_sent_away_when_the_server_leaves() {
    let server = Server::start();
    let mut client = HealthClient::new(channel(&server).await);
    for name in HEALTH_NAMES {
        let mut watched = client.watch(named(name)).await.unwrap().into_inner();
        for serving in [true, false, true] {
            server.health.set_serving(serving);
            let told = soon("a change", watched.message()).await.unwrap().unwrap().status();
            assert_eq!(told == ServingStatus::Serving, serving);
        }
    }
    let mut watched = client.watch(named(SERVICE_NAME)).await.unwrap().into_inner();
    let mut unknown = client.watch(named("nobody")).await.unwrap().into_inner();
    let told = soon("the first word", unknown.message()).await.unwrap().unwrap().status();
    assert_eq!(told, ServingStatus::ServiceUnknown);
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.health.shut_down();
    server.health.set_serving(true);
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(soon("the end", watched.message()).await.unwrap().is_none());
    assert!(soon("the end", unknown.message()).await.unwrap().is_none());
    assert!(!server.health.is_serving());
    assert_eq!(server.left().await, 0);
}

#[tokio::test]
async fn reflection_lists_the_services_and_shows_entries_as_strings() {
    let server = Server::start();
    let channel = channel(&server).await;
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    use v1::server_reflection_request::MessageRequest;
    use v1::server_reflection_response::MessageResponse;
    let ask = |request| {
        stream::iter([v1::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        }])
    };
    let list = ask(MessageRequest::ListServices(String::new()));
    let mut answers = client.server_reflection_info(list).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(listed) = answer else { panic!("{answer:?}") };
    let names: Vec<_> = listed.service.iter().map(|service| &*service.name).collect();
    assert!(names.contains(&SERVICE_NAME) && names.contains(&"grpc.health.v1.Health"), "{names:?}");

    let symbol = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    let symbol = ask(MessageRequest::FileContainingSymbol(symbol.to_owned()));
    let mut answers = client.server_reflection_info(symbol).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::FileDescriptorResponse(files) = answer else { panic!("{answer:?}") };
    let file: prost_types::FileDescriptorProto =
        prost::Message::decode(&*files.file_descriptor_proto[0]).unwrap();
    let entry = &file.message_type[0].nested_type[0];
    assert_eq!(entry.name(), "Entry");
    let string = prost_types::field_descriptor_proto::Type::String;
    assert!(entry.field.iter().all(|field| field.r#type() == string));

    let mut older = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let list = stream::iter([v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    }]);
    assert!(
        older
            .server_reflection_info(list)
            .await
            .unwrap()
            .into_inner()
            .message()
            .await
            .unwrap()
            .is_some()
    );
    server.left().await;
}
