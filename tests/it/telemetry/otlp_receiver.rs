//! OTLP receiver: a gRPC server on a free port that keeps every export.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::{Request, Response, Status};

/// Received exports.
#[derive(Default)]
pub struct ReceivedExports {
    pub metrics: Vec<ExportMetricsServiceRequest>,
    pub traces: Vec<ExportTraceServiceRequest>,
    /// The `api-key` of each message.
    pub keys: Vec<Option<String>>,
}

/// A running receiver; it ends with the test's process.
#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    pub(super) kept: Arc<Mutex<ReceivedExports>>,
}

#[derive(Clone)]
struct Collector(Arc<Mutex<ReceivedExports>>);

fn key<T>(request: &Request<T>) -> Option<String> {
    Some(request.metadata().get("api-key")?.to_str().unwrap().to_owned())
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap();
        kept.keys.push(key(&request));
        kept.metrics.push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap();
        kept.keys.push(key(&request));
        kept.traces.push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

impl Receiver {
    pub fn start() -> Receiver {
        let kept = Arc::new(Mutex::new(ReceivedExports::default()));
        let keeps = Collector(Arc::clone(&kept));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let incoming = tokio_stream::wrappers::TcpListenerStream::new(
                    tokio::net::TcpListener::from_std(socket).unwrap(),
                );
                tonic::transport::Server::builder()
                    .add_service(MetricsServiceServer::new(keeps.clone()))
                    .add_service(TraceServiceServer::new(keeps))
                    .serve_with_incoming(incoming)
                    .await
                    .unwrap();
            });
        });
        Receiver { address, kept }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Reads what was received so far.
    pub fn look<T>(&self, look: impl FnOnce(&ReceivedExports) -> T) -> T {
        look(&self.kept.lock().unwrap())
    }

    /// Every span so far.
    pub fn spans(&self) -> Vec<Span> {
        self.look(|kept| {
            let all = kept.traces.iter().flat_map(|message| &message.resource_spans);
            let all = all.flat_map(|resource| &resource.scope_spans);
            all.flat_map(|scope| &scope.spans).cloned().collect()
        })
    }

    /// The latest state of a metric.
    pub fn metric(&self, name: &str) -> Option<Metric> {
        self.look(|kept| {
            let all = kept.metrics.iter().flat_map(|message| &message.resource_metrics);
            let all = all.flat_map(|resource| &resource.scope_metrics);
            all.flat_map(|scope| &scope.metrics).rfind(|metric| metric.name == name).cloned()
        })
    }
}

/// Attributes as text, by their names.
pub fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.clone()) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("{}: {other:?}", pair.key),
    };
    attributes.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}
