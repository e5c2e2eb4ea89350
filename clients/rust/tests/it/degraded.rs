//! What the log says when there is no decision: real servers, and nothing where something should be.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tidegate_client::{Builder, Call, Client, Counters, Descriptor, Failure, OnFailure, Outcome};
use tonic::transport::Server;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{
    Certificates, PATIENCE, Tidegate, TidegateSettings, builder_at, call, free_port, silent,
    until_passes,
};

const START: &str = "degraded: requests pass without a decision";
const DENYING: &str = "degraded: requests are denied without a decision";
const END: &str = "no longer degraded: the rate limit service decides again";
/// What a server of HTTP/2 says first: an empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// What `tracing` writes in this thread from now on.
struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

#[derive(Clone)]
struct Writer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Writer;
    fn make_writer(&'a self) -> Writer {
        self.clone()
    }
}

impl Log {
    fn new() -> Log {
        let text = Arc::new(Mutex::new(Vec::new()));
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .without_time()
            .with_writer(Writer(Arc::clone(&text)))
            .finish();
        Log { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// Lines of the client.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.text.lock().unwrap().clone()).unwrap();
        let ours = text.lines().filter(|line| line.contains("tidegate_client"));
        ours.map(str::to_owned).collect()
    }

    async fn until(&self, count: usize) -> Vec<String> {
        let start = std::time::Instant::now();
        while self.lines().len() < count {
            assert!(start.elapsed() < PATIENCE, "still {:?}", self.lines());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.lines()
    }
}

fn reason(name: &str, values: &[(&str, &str)]) -> String {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../vectors/reasons.json")).unwrap();
    let mut text = vectors[name].as_str().unwrap().to_owned();
    for (key, value) in values {
        text = text.replace(&format!("{{{key}}}"), value);
    }
    assert!(!text.contains('{'), "{text}");
    text
}

/// The message of the status with which a call fails.
async fn said(client: &Client, call: &Call) -> String {
    let log = Log::new();
    let decision = client.check(call).await;
    // So that the next log does not get it.
    log.until(1).await;
    match decision.failure() {
        Some(Failure::Status(_, message)) if !message.is_empty() => message.clone(),
        failure => panic!("{failure:?}"),
    }
}

/// A failure, and what the log says about it.
struct Case<'a> {
    name: &'a str,
    values: &'a [(&'a str, &'a str)],
    /// `Client::connect` succeeds all the same.
    connects: bool,
    batch: bool,
    call: Call,
    timeout: Duration,
}

fn case(name: &str) -> Case<'_> {
    Case {
        name,
        values: &[],
        connects: false,
        batch: false,
        call: call("user", "ann"),
        timeout: PATIENCE,
    }
}

impl Case<'_> {
    /// Three calls fail; the log has one line with the reason, and `connect` returns it.
    async fn check(self, builder: Builder) {
        let builder = builder.timeout(self.timeout);
        let client = builder.clone().build().unwrap();
        let at = client.address();
        let host = at.rsplit_once(':').unwrap().0.to_owned();
        let mut values = self.values.to_vec();
        values.extend([("address", at.as_str()), ("host", &host), ("name", &host)]);
        let message;
        if values.iter().any(|(key, _)| *key == "code") {
            // The message is the server's.
            message = said(&client, &self.call).await;
            values.push(("message", &message));
        }
        let expected = reason(self.name, &values);
        if !self.connects {
            let error = client.connect(self.timeout).await.unwrap_err();
            assert_eq!(error.to_string(), expected, "{:?}", error.failure());
        }
        let log = Log::new();
        let client = builder.build().unwrap();
        for _ in 0..3 {
            let decision = if self.batch {
                client.check_many(std::slice::from_ref(&self.call)).await.remove(0)
            } else {
                client.check(&self.call).await
            };
            assert_eq!((decision.outcome(), decision.passes()), (Outcome::Failed, true));
        }
        let lines = log.until(1).await;
        assert_eq!(
            lines,
            [format!(
                " WARN tidegate_client::degraded: {START} reason={expected:?} address={at:?} domain=\"shop\""
            )]
        );
        assert_eq!(client.counters(), Counters { failed: 3, ..Counters::default() });
    }
}

fn plain(port: u16) -> Builder {
    Client::builder(&format!("http://localhost:{port}"), "shop").timeout(PATIENCE)
}

fn secure(port: u16) -> Builder {
    builder_at(port, &Certificates::new())
}

/// Answers each connection with these bytes, or closes it if there are none.
async fn listen(answer: &'static [u8]) -> u16 {
    use tokio::io::AsyncWriteExt as _;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            if !answer.is_empty() && stream.write_all(answer).await.is_ok() {
                kept.push(stream);
            }
        }
    });
    port
}

#[tokio::test]
async fn nothing_listens_or_a_name_does_not_resolve() {
    case("refused").check(plain(free_port())).await;
    case("refused").check(secure(free_port())).await;
    let nowhere = Client::builder("http://nowhere.invalid:8081", "shop").timeout(PATIENCE);
    case("unresolved").check(nowhere).await;
}

#[tokio::test]
async fn the_http_port() {
    let http_port = free_port();
    let settings = TidegateSettings { http_port, tls: false, ..TidegateSettings::default() };
    let _tidegate = Tidegate::serve_with(settings, &[]);
    case("http_port").check(plain(http_port)).await;
    case("http_port").check(secure(http_port)).await;
}

#[tokio::test]
async fn tls_on_a_plain_port_and_the_reverse() {
    let without = Tidegate::serve_with(TidegateSettings { tls: false, ..Default::default() }, &[]);
    case("no_tls").check(secure(without.port)).await;
    case("needs_tls").check(plain(Tidegate::serve(&[]).port)).await;
    let tls_only = TidegateSettings { client_certificates: false, ..Default::default() };
    case("needs_tls").check(plain(Tidegate::serve_with(tls_only, &[]).port)).await;
}

#[tokio::test]
async fn certificates_that_are_not_trusted() {
    let tidegate = Tidegate::serve(&[]);
    let others = Certificates::new();
    let own = &tidegate.certificates;
    let address = format!("https://localhost:{}", tidegate.port);
    let start = || Client::builder(&address, "shop").timeout(PATIENCE);
    let identity = |given: &Certificates| (given.client.0.clone(), given.client.1.clone());
    case("unknown_authority").check(tidegate.builder().ca_pem(others.ca.as_bytes())).await;
    let (certificate, key) = identity(own);
    case("unknown_authority").check(start().identity_pem(certificate, key)).await;
    let elsewhere = Case { values: &[("name", "elsewhere.test")], ..case("wrong_name") };
    elsewhere.check(tidegate.builder().server_name("elsewhere.test")).await;
    // tonic connects again and again, until the time is over.
    let rejected = || Case { timeout: Duration::from_millis(200), ..case("client_certificate") };
    rejected().check(start().ca_pem(own.ca.as_bytes())).await;
    let (certificate, key) = identity(&others);
    let other = start().ca_pem(own.ca.as_bytes()).identity_pem(certificate, key);
    rejected().check(other).await;
}

#[tokio::test]
async fn a_certificate_that_has_expired() {
    let certificates = Certificates::until(rcgen::date_time_ymd(2001, 1, 1));
    let settings =
        TidegateSettings { certificates, client_certificates: false, ..Default::default() };
    let tidegate = Tidegate::serve_with(settings, &[]);
    case("expired").check(tidegate.builder()).await;
}

#[tokio::test]
async fn servers_that_do_not_answer() {
    let (_listener, address) = silent();
    let silent = || Case { timeout: Duration::from_millis(200), ..case("no_answer") };
    silent().check(plain(address.port())).await;
    silent().check(secure(address.port())).await;
    case("closes").check(plain(listen(b"").await)).await;
    case("closes").check(secure(listen(b"").await)).await;
}

#[tokio::test]
async fn a_server_that_is_too_slow() {
    let client = plain(listen(SETTINGS).await);
    let timeout = Duration::from_millis(20);
    let slow = Case { values: &[("timeout", "20")], connects: true, timeout, ..case("timeout") };
    slow.check(client.clone()).await;
    let error = client.build().unwrap().connect(Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(error.to_string(), reason("timeout", &[("timeout", "30")]));
}

#[tokio::test]
async fn the_port_of_another_service() {
    let port = free_port();
    let (_, health) = tonic_health::server::health_reporter();
    let address = ([127, 0, 0, 1], port).into();
    tokio::spawn(Server::builder().add_service(health).serve(address));
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        tokio::task::yield_now().await;
    }
    case("unimplemented").check(plain(port)).await;
    Case { connects: true, batch: true, ..case("no_limits_api") }.check(plain(port)).await;
}

#[tokio::test]
async fn what_the_service_itself_answers() {
    let tidegate = Tidegate::serve(&["--batches", "false"]);
    Case { connects: true, batch: true, ..case("no_limits_api") }.check(tidegate.builder()).await;
    let values = [("code", "INVALID_ARGUMENT")];
    let wrong = Case { connects: true, values: &values, call: call("", "x"), ..case("status") };
    wrong.check(tidegate.builder()).await;
    let empty = Descriptor::new([("", ""); 0]);
    let asked = Call::new([Descriptor::new([("user", "ann")]), empty]);
    let message = said(&tidegate.client(), &asked).await;
    assert_eq!(message, "descriptors[1].entries: must not be empty");
    let wrong = Case { connects: true, values: &values, call: asked, ..case("status") };
    wrong.check(tidegate.builder()).await;

    let tidegate = Tidegate::serve(&["--grpc-client-domains", "shop=elsewhere.test"]);
    let values = [("code", "PERMISSION_DENIED")];
    Case { connects: true, values: &values, ..case("denied") }.check(tidegate.builder()).await;

    let policy = "domain: shop\non_store_failure: error\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 5}\n";
    let settings = TidegateSettings { policy, ..Default::default() };
    let redis = format!("127.0.0.1:{}", free_port());
    let tidegate = Tidegate::serve_with(settings, &["--redis-url", &redis]);
    let values = [("code", "UNAVAILABLE")];
    Case { connects: true, values: &values, ..case("status") }.check(tidegate.builder()).await;
}

#[tokio::test]
async fn too_many_calls_are_waiting() {
    let (_listener, address) = silent();
    let client = plain(address.port()).pending_max(1).build().unwrap();
    let log = Log::new();
    let waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.check(&call("user", "ann")).await });
    tokio::task::yield_now().await;
    client.check(&call("user", "ann")).await;
    let lines = log.until(1).await;
    assert!(lines[0].contains(&reason("busy", &[("pending_max", "1")])), "{lines:?}");
    waiting.abort();
}

#[tokio::test]
async fn the_start_and_the_end_are_logged_once() {
    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let log = Log::new();
    assert!(client.check(&call("user", "ann")).await.passes());
    assert!(log.lines().is_empty());
    let (port, certificates) = tidegate.kill();
    for _ in 0..10 {
        assert_eq!(client.check(&call("user", "ann")).await.outcome(), Outcome::Failed);
    }
    let _successor = Tidegate::serve_at(port, certificates, &[]);
    until_passes(&client, &call("user", "ann")).await;
    client.check(&call("user", "ann")).await;
    let lines = log.until(2).await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with(&format!(" WARN tidegate_client::degraded: {START} reason=")));
    let failed = client.counters().failed;
    let end = format!(" WARN tidegate_client::degraded: {END} failed_calls={failed} seconds=");
    assert!(lines[1].starts_with(&end), "{lines:?}");
}

#[tokio::test]
async fn a_client_that_denies_says_so() {
    let client = plain(free_port()).on_failure(OnFailure::Deny).build().unwrap();
    let log = Log::new();
    assert!(!client.check(&call("user", "ann")).await.passes());
    let lines = log.until(1).await;
    assert!(lines[0].contains(&format!("{DENYING} reason=\"nothing listens at ")), "{lines:?}");
}

#[tokio::test]
async fn a_client_connects_before_its_first_call_and_charges_nothing() {
    let without = Tidegate::serve_with(TidegateSettings { tls: false, ..Default::default() }, &[]);
    let with = Tidegate::serve(&[]);
    for builder in [plain(without.port), with.builder()] {
        let client = builder.build().unwrap();
        let log = Log::new();
        client.connect(PATIENCE).await.unwrap();
        assert_eq!(client.counters(), Counters::default());
        let all = call("user", "ann").hits(5);
        assert_eq!(client.check(&all).await.outcome(), Outcome::Allowed);
        assert!(log.lines().is_empty());
    }
}

#[tokio::test]
async fn a_client_connects_after_it_could_not() {
    let port = free_port();
    let certificates = Certificates::new();
    let client = builder_at(port, &certificates).build().unwrap();
    let error = client.connect(Duration::MAX).await.unwrap_err();
    assert!(error.to_string().starts_with("nothing listens at "), "{error}");
    let _tidegate = Tidegate::serve_at(port, certificates, &[]);
    let start = std::time::Instant::now();
    while let Err(error) = client.connect(PATIENCE).await {
        assert!(start.elapsed() < PATIENCE, "{error}");
    }
}

/// Without `close`, the connection of a client ends with the runtime in which it was built.
#[test]
fn a_client_whose_runtime_has_ended_fails_and_says_so() {
    let log = Log::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(async { plain(free_port()).build().unwrap() });
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let decision = other.block_on(client.check(&call("user", "ann")));
    assert_eq!((decision.outcome(), decision.passes()), (Outcome::Failed, true));
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&format!("{START} reason=\"the call failed with ")), "{lines:?}");
}
