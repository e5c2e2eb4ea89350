//! Client that sends metrics and traces to a collector, over gRPC or HTTP.
//!
//! Not here: the messages (`telemetry::otlp_metrics`, `trace_export`).

use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Extensions, Request};
use tonic_prost::ProstCodec;

use super::OtlpTarget;
use super::http_sender::HttpSender;
use crate::domain::OtlpProtocol;

/// Client of one collector for one signal, metrics or traces.
#[derive(Debug)]
pub(crate) enum OtlpClient {
    Grpc { channel: Channel, metadata: MetadataMap },
    Http(Box<HttpSender>),
}

impl OtlpClient {
    /// Creates a client for `target`. Must be called within a Tokio runtime, which runs the connection.
    ///
    /// # Errors
    ///
    /// Returns the reason if the target's endpoint, headers or CA are invalid.
    pub(crate) fn new(target: &OtlpTarget) -> Result<OtlpClient, String> {
        Ok(match target.protocol {
            OtlpProtocol::Grpc => OtlpClient::Grpc {
                channel: target.build_channel()?,
                metadata: MetadataMap::from_headers(target.build_headers()?),
            },
            OtlpProtocol::HttpProtobuf => OtlpClient::Http(Box::new(HttpSender::new(target)?)),
        })
    }

    /// Sends one message to the gRPC method with this path; over HTTP, to the endpoint of the target. Can
    /// be awaited on any executor. Returns the reason as text if sending fails.
    pub(crate) async fn send(
        &self,
        method: &'static str,
        message: impl Message + 'static,
    ) -> Result<(), String> {
        match self {
            OtlpClient::Grpc { channel, metadata } => {
                let request = Request::from_parts(metadata.clone(), Extensions::default(), message);
                let mut client = Grpc::new(channel.clone());
                client.ready().await.map_err(|error| error.to_string())?;
                let method = PathAndQuery::from_static(method);
                // An empty message, because no field of the response is read.
                let response = client.unary(request, method, ProstCodec::<_, ()>::default()).await;
                response.map(drop).map_err(|error| error.to_string())
            }
            OtlpClient::Http(sender) => sender.send(message.encode_to_vec()).await,
        }
    }
}
