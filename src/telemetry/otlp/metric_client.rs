//! Sends metrics to a collector.
//!
//! Not here: the messages (`telemetry::otlp_metrics`).

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use prost::Message as _;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Extensions, Request};

use super::http_sender::HttpSender;
use super::{OtlpError, OtlpTarget};
use crate::domain::OtlpProtocol;

/// gRPC or HTTP client that sends metrics to the collector.
pub(crate) enum MetricClient {
    Grpc { client: Box<MetricsServiceClient<Channel>>, metadata: MetadataMap },
    Http(Box<HttpSender>),
}

impl MetricClient {
    pub(crate) fn new(target: &OtlpTarget) -> Result<MetricClient, OtlpError> {
        Ok(match target.protocol {
            OtlpProtocol::Grpc => MetricClient::Grpc {
                client: Box::new(MetricsServiceClient::new(target.build_channel()?)),
                metadata: target.build_metadata()?,
            },
            OtlpProtocol::HttpProtobuf => MetricClient::Http(Box::new(HttpSender::new(target)?)),
        })
    }

    /// Sends one message. Returns the reason as text if sending fails.
    pub(crate) async fn send(
        &mut self,
        message: ExportMetricsServiceRequest,
    ) -> Result<(), String> {
        match self {
            MetricClient::Grpc { client, metadata } => {
                let request = Request::from_parts(metadata.clone(), Extensions::default(), message);
                client.export(request).await.map(|_| ()).map_err(|error| error.to_string())
            }
            MetricClient::Http(sender) => sender.send(message.encode_to_vec()).await,
        }
    }
}
