//! The ceiling: a stock tonic server that decodes the same request with prost and answers with the
//! same bytes, without deciding anything. One current-thread runtime per core, as Tidegate has, so
//! that what is compared is the decision and not the threading.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::Write;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::calls;

/// The answer's messages, by field number.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    #[prost(int32, tag = "1")]
    pub overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<prost_types::Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// The answer Tidegate gives to a call of so many descriptors far from their limit.
pub fn answer(descriptors: usize) -> Answer {
    let status = DescriptorStatus {
        code: 1,
        current_limit: Some(RateLimit { requests_per_unit: 4_000_000_000, unit: 3 }),
        limit_remaining: 3_999_999_000,
        duration_until_reset: Some(prost_types::Duration { seconds: 1_800, nanos: 0 }),
    };
    Answer { overall_code: 1, statuses: vec![status; descriptors] }
}

#[derive(Clone)]
struct Noop;

impl NamedService for Noop {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl UnaryService<calls::Request> for Noop {
    type Response = Answer;
    type Future = Ready<Result<Response<Answer>, Status>>;

    fn call(&mut self, request: Request<calls::Request>) -> Self::Future {
        ready(Ok(Response::new(answer(request.get_ref().descriptors.len()))))
    }
}

impl tower_service::Service<http::Request<Body>> for Noop {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<Answer, calls::Request>::default());
            Ok(grpc.unary(Noop, request).await)
        })
    }
}

/// Serves until killed; prints its port once it listens.
pub fn serve() {
    let std_listener = socket();
    let port = std_listener.local_addr().unwrap().port();
    let cores = std::thread::available_parallelism().unwrap().get();
    let listeners: Vec<_> = (0..cores).map(|_| bind(port)).collect();
    drop(std_listener);
    println!("{port}");
    std::io::stdout().flush().unwrap();
    let serve = |listener| std::thread::spawn(move || one_core(listener));
    let threads: Vec<_> = listeners.into_iter().map(serve).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn socket() -> std::net::TcpListener {
    bind(0)
}

fn bind(port: u16) -> std::net::TcpListener {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    if port != 0 {
        socket.listen(1024).unwrap();
    }
    socket.into()
}

fn one_core(listener: std::net::TcpListener) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let incoming =
            tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        tonic::transport::Server::builder()
            .initial_connection_window_size(32 << 20)
            .max_concurrent_streams(1000)
            .add_service(Noop)
            .serve_with_incoming(incoming)
            .await
            .unwrap();
    });
}
