//! What the export costs: the same server with its metrics and one call in a hundred sent to a
//! receiver of OTLP, beside one that exports nothing.
//!
//! The embedded store: a decision costs least there, so that the share is largest.

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
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tonic::{Request, Response, Status};

use super::drive::Bodies;
use super::servers::{Server, bodies, cost, write_policy};
use super::{Scale, calls, cpu};

const DOMAIN: &str = "bench";

/// Counts spans and drops everything; its time is not the server's.
#[derive(Clone, Default)]
struct Receiver(Arc<AtomicUsize>);

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        _: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes = request.get_ref().resource_spans.iter().flat_map(|spans| &spans.scope_spans);
        self.0.fetch_add(scopes.map(|scope| scope.spans.len()).sum(), Ordering::Relaxed);
        Ok(Response::new(Default::default()))
    }
}

impl Receiver {
    /// Receives on a thread of this process; its address.
    fn start(&self) -> String {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        let this = self.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let socket = tokio::net::TcpListener::from_std(socket).unwrap();
                let incoming = tonic::transport::server::TcpIncoming::from(socket);
                tonic::transport::Server::builder()
                    .add_service(MetricsServiceServer::new(this.clone()))
                    .add_service(TraceServiceServer::new(this))
                    .serve_with_incoming(incoming)
                    .await
                    .unwrap();
            });
        });
        format!("http://{address}")
    }
}

/// Short runs and many of them, in turn and with the order reversed each time: the effect is smaller
/// than what a neighbour on the machine does to one long run.
const SHORTER: usize = 5;

pub fn run(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::default();
    let endpoint = receiver.start();
    let on = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_TRACES_SAMPLER_ARG", "0.01"),
        // As often as some scrape.
        ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
    ];
    let off = [];
    println!(
        "\nCPU per decision, OTLP metrics and traces at 1 % beside no export (embedded store, {} pairs)",
        scale.pairs * SHORTER
    );
    println!(
        "{:<22} {:>12} {:>12} {:>10} {:>18}",
        "call", "without us", "with us", "more", "half lie within"
    );
    for descriptors in [1, 2, 10] {
        let text = calls::policy(DOMAIN, descriptors);
        let policy = write_policy(dir.path(), &format!("{descriptors}.yaml"), &text);
        let without = Server::tidegate(&policy, &off);
        let with = Server::tidegate(&policy, &on);
        show(&format!("{descriptors} descriptors"), &without, &with, &bodies(descriptors), scale);
    }
    let policy = write_policy(dir.path(), "same.yaml", &calls::policy(DOMAIN, 1));
    let (one, other) = (Server::tidegate(&policy, &off), Server::tidegate(&policy, &off));
    show("1, both without", &one, &other, &bodies(1), scale);
    println!("spans received: {}", receiver.0.load(Ordering::Relaxed));
}

fn show(name: &str, without: &Server, with: &Server, bodies: &Bodies, scale: Scale) {
    let calls = scale.calls / SHORTER;
    cost(without, bodies, calls);
    cost(with, bodies, calls);
    let (mut before, mut after, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..scale.pairs * SHORTER {
        let reversed = pair % 2 == 1;
        let (first, second) = if reversed { (with, without) } else { (without, with) };
        let (first, second) = (cost(first, bodies, calls), cost(second, bodies, calls));
        let (one, other) = if reversed { (second, first) } else { (first, second) };
        before.push(one);
        after.push(other);
        more.push((other / one - 1.0) * 100.0);
    }
    more.sort_by(f64::total_cmp);
    let at = |quarter: usize| more[more.len() * quarter / 4];
    println!(
        "{name:<22} {:>12.2} {:>12.2} {:>9.1}% {:>7.1}% to {:>5.1}%",
        cpu::median(before),
        cpu::median(after),
        at(2),
        at(1),
        at(3)
    );
}
