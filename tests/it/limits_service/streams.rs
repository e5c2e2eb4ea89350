//! Streams: answers carry the ids of their requests; requests in flight, streams, and incomplete
//! messages are bounded; a stream does not hold up the shutdown.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::messages::{LimitsClient, StreamRequest, StreamResponse, client, encoded, said};
use crate::grpc::test_server::{Server, soon, until};
use crate::support::raw_http2::framed;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};

/// Requests of a stream in flight, as documented.
const IN_FLIGHT_MAX: u64 = 256;

struct Stream {
    requests: mpsc::Sender<StreamRequest>,
    answers: Streaming<StreamResponse>,
}

impl Stream {
    async fn open(client: &mut LimitsClient<Channel>) -> Result<Stream, Status> {
        let (requests, queue) = mpsc::channel(10_000);
        let answer = soon("a stream", client.stream(ReceiverStream::new(queue))).await?;
        Ok(Stream { requests, answers: answer.into_inner() })
    }

    async fn send(&self, id: u64, domain: &str) {
        self.requests.send(StreamRequest { id, request: encoded(domain, "ann") }).await.unwrap();
    }

    /// The id of the next answer, and what it says.
    async fn next(&mut self) -> Result<(u64, String), Status> {
        let answer = soon("an answer", self.answers.next()).await.expect("an answer")?;
        Ok((answer.id, said(&answer.result.expect("a result"))))
    }
}

#[tokio::test]
async fn each_answer_has_the_id_of_its_request() {
    let server = Tidegate::policy(FIVE_A_DAY, &[]);
    let mut client = client(server.port("grpc")).await;
    let mut stream = Stream::open(&mut client).await.unwrap();
    for id in [7, 7, u64::MAX, 0, 1] {
        stream.send(id, "edge").await;
        assert_eq!(stream.next().await.unwrap(), (id, "OK".to_owned()));
    }
    stream.send(9, "edge").await;
    stream.send(10, "").await;
    let two = [stream.next().await.unwrap(), stream.next().await.unwrap()];
    let expected = [(9, "OVER_LIMIT".to_owned()), (10, "InvalidArgument".to_owned())];
    assert_eq!(BTreeSet::from(two), BTreeSet::from(expected), "an error does not end the stream");
    drop(stream.requests);
    assert!(soon("the end", stream.answers.next()).await.is_none(), "it ends with OK");
}

#[tokio::test]
async fn a_fast_answer_overtakes_a_slow_one() {
    let server = Server::start();
    let mut client = client(server.address).await;
    let mut stream = Stream::open(&mut client).await.unwrap();
    stream.send(1, "wait").await;
    stream.send(2, "edge").await;
    assert_eq!(stream.next().await.unwrap(), (2, "OK".to_owned()));
    server.bench.gate.add_permits(1);
    assert_eq!(stream.next().await.unwrap(), (1, "OK".to_owned()));
    drop((stream, client));
    server.left().await;
}

#[tokio::test]
async fn a_stream_reads_no_more_requests_than_it_may_have_in_flight() {
    let server = Server::start();
    let mut client = client(server.address).await;
    let mut stream = Stream::open(&mut client).await.unwrap();
    for id in 0..1_000 {
        stream.send(id, "wait").await;
    }
    until("256 are asked", || server.judged() >= IN_FLIGHT_MAX).await;
    // Another stream of the connection goes on, so the server has had the time to read more.
    let mut other = Stream::open(&mut client).await.unwrap();
    for id in 0..100 {
        other.send(id, "edge").await;
        other.next().await.unwrap();
    }
    assert_eq!(server.judged(), IN_FLIGHT_MAX + 100);
    server.bench.gate.add_permits(1_000);
    let mut ids = BTreeSet::new();
    for _ in 0..1_000 {
        ids.insert(stream.next().await.unwrap().0);
    }
    assert_eq!(ids, (0..1_000).collect());
    drop((stream, other, client));
    server.left().await;
}

#[tokio::test]
async fn a_connection_has_at_most_sixteen_streams() {
    let server = Server::start();
    let mut client = client(server.address).await;
    let mut streams = Vec::new();
    for id in 0..16 {
        let mut stream = Stream::open(&mut client).await.unwrap();
        stream.send(id, "edge").await;
        stream.next().await.unwrap();
        streams.push(stream);
    }
    let Err(status) = Stream::open(&mut client).await else { panic!("one more stream") };
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "at most 16 streams per connection");
    streams.clear();
    let mut opened = false;
    for _ in 0..1_000 {
        opened = Stream::open(&mut client).await.is_ok();
        if opened {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(opened, "closed streams free their places");
    drop(client);
    server.left().await;
}

#[tokio::test]
async fn a_stream_ends_when_the_server_drains() {
    let mut server = Server::start();
    let mut client = client(server.address).await;
    let mut stream = Stream::open(&mut client).await.unwrap();
    stream.send(1, "wait").await;
    until("it is asked", || server.judged() == 1).await;
    server.leave();
    let mut idle = Vec::new();
    server.bench.gate.add_permits(1);
    idle.push(stream.next().await.unwrap());
    assert_eq!(idle, [(1, "OK".to_owned())], "what was read is answered");
    let status = stream.next().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let report = server.left().await;
    assert_eq!(report.cut_off, 0, "the stream did not hold up the drain");
}

#[tokio::test]
async fn a_message_that_is_no_request_of_a_stream_ends_it() {
    let server = Server::with(|limits| limits.receive_timeout = Duration::from_millis(50));
    // One that never completes.
    let body = |bytes: Vec<u8>| raw(&server, bytes);
    assert_eq!(body(vec![0, 0, 0, 0, 9, 8]).await, Code::DeadlineExceeded);
    assert_eq!(body(vec![0, 0, 0]).await, Code::DeadlineExceeded);
    assert_eq!(body(vec![1, 0, 0, 0, 0]).await, Code::Unimplemented);
    assert_eq!(body(vec![0, 0xff, 0, 0, 0]).await, Code::InvalidArgument);
    assert_eq!(body(vec![0, 0, 0, 0, 1, 0xff]).await, Code::InvalidArgument);
    assert_eq!(server.judged(), 0);
    server.left().await;
}

#[tokio::test]
async fn a_message_in_many_pieces_has_no_more_time_than_one_in_few() {
    let server = Server::with(|limits| limits.receive_timeout = Duration::from_millis(200));
    let (answer, mut body) = open(&server).await;
    // A message of 64 KiB, sent one byte every 5 ms, would take more than five minutes.
    body.send_data(Bytes::from_static(&[0, 0, 1, 0, 0]), false).unwrap();
    let pieces = async {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            // Fails when the server has ended the stream.
            let _ = body.send_data(Bytes::from_static(&[0]), false);
        }
    };
    tokio::select! {
        code = code(answer) => assert_eq!(code, Code::DeadlineExceeded),
        () = pieces => {}
    }
    assert_eq!(server.judged(), 0);
    server.left().await;
}

#[tokio::test]
async fn messages_in_pieces_of_any_size_are_decided_like_whole_ones() {
    let server = Server::start();
    let message = |id, domain: &str| {
        framed(&StreamRequest { id, request: encoded(domain, "ann") }.encode_to_vec())
    };
    let both = [message(7, "edge"), message(8, "refuse")].concat();
    for size in [1, 4, 5, 6, both.len() - 1] {
        let (answer, mut body) = open(&server).await;
        for piece in both.chunks(size) {
            body.send_data(Bytes::copy_from_slice(piece), false).unwrap();
        }
        body.send_data(Bytes::new(), true).unwrap();
        let mut answers = soon("the head", answer).await.unwrap().into_body();
        let mut received = Vec::new();
        while let Some(data) = soon("the body", answers.data()).await {
            received.extend_from_slice(&data.unwrap());
        }
        let trailers = soon("the end", answers.trailers()).await.unwrap().expect("trailers");
        assert_eq!(trailers["grpc-status"], "0", "pieces of {size}");
        let mut rest = &received[..];
        let mut decided = BTreeSet::new();
        while let [0, a, b, c, d, after @ ..] = rest {
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            let answer = StreamResponse::decode(&after[..length]).unwrap();
            decided.insert((answer.id, said(&answer.result.unwrap())));
            rest = &after[length..];
        }
        let expected = [(7, "OK".to_owned()), (8, "OVER_LIMIT".to_owned())];
        assert_eq!(decided, BTreeSet::from(expected), "pieces of {size}");
    }
    server.left().await;
}

#[tokio::test]
async fn a_stream_that_ends_within_a_message_is_invalid() {
    let server = Server::start();
    let (answer, mut body) = open(&server).await;
    body.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 8]), true).unwrap();
    assert_eq!(code(answer).await, Code::InvalidArgument);
    assert_eq!(server.judged(), 0);
    server.left().await;
}

/// Sends these bytes as the body of a stream that stays open, and returns the stream's status.
async fn raw(server: &Server, bytes: Vec<u8>) -> Code {
    let (answer, mut body) = open(server).await;
    body.send_data(Bytes::from(bytes), false).unwrap();
    code(answer).await
}

/// Opens a stream on a connection of its own.
async fn open(server: &Server) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
    let socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (mut send, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let request =
        http::Request::post(format!("http://{}/tidegate.v1.Limits/Stream", server.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
    send.send_request(request, false).unwrap()
}

/// Returns the status of a stream.
async fn code(answer: h2::client::ResponseFuture) -> Code {
    let mut answers = soon("the head", answer).await.unwrap().into_body();
    while let Some(data) = soon("the body", answers.data()).await {
        data.unwrap();
    }
    let trailers = soon("the end", answers.trailers()).await.unwrap().expect("trailers");
    Status::from_header_map(&trailers).expect("a status").code()
}
