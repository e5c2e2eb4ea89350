//! A gRPC call with headers of the test's choice, as a traced Envoy sends it.

use std::net::SocketAddr;

use bytes::{BufMut as _, BytesMut};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct CallRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
}

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Asks for a client in the domain `edge`, once, with these headers; the gRPC status.
pub fn ask(address: SocketAddr, client: &str, headers: &[(&str, &str)]) -> String {
    let entry = Entry { key: "client".to_owned(), value: client.to_owned() };
    let descriptors = vec![Descriptor { entries: vec![entry] }];
    let question = CallRequest { domain: "edge".to_owned(), descriptors };
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(u32::try_from(question.encoded_len()).unwrap());
    question.encode(&mut body).unwrap();
    let mut request = ::http::Request::post(format!("http://{address}{PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut sender = sender.ready().await.unwrap();
        let (answer, mut stream) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        stream.send_data(body.freeze(), true).unwrap();
        let answer = answer.await.unwrap();
        if let Some(status) = answer.headers().get("grpc-status") {
            return status.to_str().unwrap().to_owned();
        }
        let mut body = answer.into_body();
        while let Some(chunk) = body.data().await {
            body.flow_control().release_capacity(chunk.unwrap().len()).unwrap();
        }
        let trailers = body.trailers().await.unwrap().unwrap();
        trailers["grpc-status"].to_str().unwrap().to_owned()
    })
}
