//! A closed-loop driver: so many calls in flight over so many connections, on the bare HTTP/2
//! library, so that the generator leaves the machine to the server.

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;

pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What a run saw.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    /// Calls answered with grpc-status 0.
    pub answered: usize,
    /// Calls answered otherwise, or not at all.
    pub failed: usize,
    /// Bytes of response messages.
    pub bytes: usize,
}

/// Drives `calls` calls with `connections` × `streams` in flight; `bodies` are taken in turn.
pub fn run(port: u16, bodies: &[Bytes], calls: usize, connections: usize, streams: usize) -> Seen {
    run_path(PATH, port, bodies, calls, connections, streams)
}

/// The same with another method.
pub fn run_path(
    path: &'static str,
    port: u16,
    bodies: &[Bytes],
    calls: usize,
    connections: usize,
    streams: usize,
) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for connection in 0..connections {
            let sender = connect(port).await;
            for stream in 0..streams {
                let nth = connection * streams + stream;
                let share = calls / (connections * streams);
                let bodies = bodies.to_vec();
                tasks.push(tokio::spawn(caller(path, sender.clone(), bodies, nth, share)));
            }
        }
        let mut total = Seen::default();
        for task in tasks {
            let seen = task.await.unwrap();
            total.answered += seen.answered;
            total.failed += seen.failed;
            total.bytes += seen.bytes;
        }
        total
    })
}

pub async fn connect(port: u16) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
    tcp.set_nodelay(true).unwrap();
    let (sender, connection) = h2::client::Builder::new()
        .initial_connection_window_size(32 << 20)
        .handshake(tcp)
        .await
        .expect("an HTTP/2 server");
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

async fn caller(
    path: &str,
    sender: SendRequest<Bytes>,
    bodies: Vec<Bytes>,
    nth: usize,
    calls: usize,
) -> Seen {
    let mut seen = Seen::default();
    let mut sender = Some(sender);
    for call in 0..calls {
        let Ok(mut ready) = sender.take().unwrap().ready().await else {
            seen.failed += calls - call;
            return seen;
        };
        let body = bodies[(nth + call) % bodies.len()].clone();
        match call_path(path, &mut ready, body).await {
            Ok(bytes) => {
                seen.answered += 1;
                seen.bytes += bytes;
            }
            Err(_) => seen.failed += 1,
        }
        sender = Some(ready);
    }
    seen
}

pub async fn one(sender: &mut SendRequest<Bytes>, body: Bytes) -> Result<usize, h2::Error> {
    call_path(PATH, sender, body).await
}

async fn call_path(
    path: &str,
    sender: &mut SendRequest<Bytes>,
    body: Bytes,
) -> Result<usize, h2::Error> {
    let head = Request::post(format!("http://127.0.0.1{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a fixed request");
    let (response, mut stream) = sender.send_request(head, false)?;
    stream.send_data(body, true)?;
    let response = response.await?;
    let mut failed = response.headers().get("grpc-status").is_some_and(|status| status != "0");
    let mut body = response.into_body();
    let mut bytes = 0;
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        bytes += chunk.len();
        body.flow_control().release_capacity(chunk.len())?;
    }
    if let Some(trailers) = body.trailers().await? {
        failed |= trailers.get("grpc-status").is_some_and(|status| status != "0");
    }
    if failed { Err(h2::Error::from(h2::Reason::INTERNAL_ERROR)) } else { Ok(bytes) }
}
