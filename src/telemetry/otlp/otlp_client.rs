//! Client that sends metrics and traces to a collector, over gRPC or HTTP.
//!
//! Not here: the messages (`telemetry::otlp_metrics`, `trace_export`).

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use prost::Message as _;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Extensions, Request, Status};

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

    /// Sends one message. Returns the reason as text if sending fails.
    pub(crate) async fn send_metrics(
        &self,
        message: ExportMetricsServiceRequest,
    ) -> Result<(), String> {
        match self {
            OtlpClient::Grpc { channel, metadata } => {
                let request = Request::from_parts(metadata.clone(), Extensions::default(), message);
                let response = MetricsServiceClient::new(channel.clone()).export(request).await;
                response.map(drop).map_err(|error: Status| error.to_string())
            }
            OtlpClient::Http(sender) => sender.send(message.encode_to_vec()).await,
        }
    }

    /// Sends one message. Can be awaited on any executor. Returns the reason as text if sending fails.
    pub(crate) async fn send_spans(
        &self,
        message: ExportTraceServiceRequest,
    ) -> Result<(), String> {
        match self {
            OtlpClient::Grpc { channel, metadata } => {
                let request = Request::from_parts(metadata.clone(), Extensions::default(), message);
                let response = TraceServiceClient::new(channel.clone()).export(request).await;
                response.map(drop).map_err(|error: Status| error.to_string())
            }
            OtlpClient::Http(sender) => sender.send(message.encode_to_vec()).await,
        }
    }
}
