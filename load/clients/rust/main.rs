//! Asks a rate limiter before each request, as a service would that has no Envoy in front.
//!
//! A rejected request waits as long as Retry-After says (seconds or a date), else ever longer with
//! jitter, and tries again, a few times at most. A limiter that is away costs a moment and then the
//! request passes: choose what you would rather lose.
//!
//!     cargo run --example client -- localhost:8081 edge user=ann

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example of a program that is not this one: it prints, and asks the time itself"
)]

mod messages;

use std::collections::hash_map::RandomState;
use std::env;
use std::error::Error;
use std::hash::BuildHasher;
use std::time::{Duration, SystemTime};

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use messages::{Descriptor, Entry, OVER_LIMIT, RateLimitRequest, RateLimitResponse};

/// A decision takes a millisecond or two; after this long the limiter counts as away.
const ANSWER_MAX: Duration = Duration::from_millis(250);
const TRIES_MAX: u32 = 5;
/// The first back-off is up to this long, the next up to twice that, and so on up to the cap.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Who is told to wait longer than this gives up at once: its own caller will not wait either.
const WAIT_MAX: Duration = Duration::from_secs(30);

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

struct Limiter {
    service: Grpc<Channel>,
}

impl Limiter {
    fn new(target: &str) -> Result<Limiter, Box<dyn Error>> {
        let endpoint = Endpoint::from_shared(format!("http://{target}"))?;
        // Lazily: the limiter may come up later than we do.
        let channel = endpoint.connect_timeout(ANSWER_MAX).timeout(ANSWER_MAX).connect_lazy();
        Ok(Limiter { service: Grpc::new(channel) })
    }

    /// Whether the request may go on; waits and asks again while it is told to.
    async fn passes(&mut self, question: &RateLimitRequest) -> Result<bool, Status> {
        for attempt in 1..=TRIES_MAX {
            let answer = match self.ask(question.clone()).await {
                Ok(answer) => answer,
                Err(status) if is_disabled(&status) => {
                    println!("try {attempt}: away ({:?}), let through", status.code());
                    return Ok(true);
                }
                // A request that is wrong stays wrong.
                Err(status) => return Err(status),
            };
            if answer.overall_code != OVER_LIMIT {
                println!("try {attempt}: admitted");
                return Ok(true);
            }
            let (wait, why) = match retry_after(&answer) {
                Some(wait) => (wait, "retry-after"),
                None => (backoff(attempt), "backoff"),
            };
            if attempt == TRIES_MAX || wait > WAIT_MAX {
                println!("try {attempt}: refused, giving up");
                return Ok(false);
            }
            println!("try {attempt}: refused, waiting ({why})");
            tokio::time::sleep(wait).await;
        }
        Ok(false)
    }

    async fn ask(&mut self, question: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.service.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = Request::new(question);
        request.set_timeout(ANSWER_MAX);
        let method = PathAndQuery::from_static(METHOD);
        Ok(self.service.unary(request, method, ProstCodec::default()).await?.into_inner())
    }
}

/// No answer; any other status finds fault with the question. tonic says Cancelled where its own
/// timer ended the call.
fn is_disabled(status: &Status) -> bool {
    let away =
        [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::ResourceExhausted];
    away.contains(&status.code())
}

/// What the header tells to wait: seconds, or a date of HTTP.
fn retry_after(answer: &RateLimitResponse) -> Option<Duration> {
    let is_it = |key: &str| key.eq_ignore_ascii_case("retry-after");
    let header = answer.response_headers_to_add.iter().find(|header| is_it(&header.key))?;
    if let Ok(seconds) = header.value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(&header.value).ok()?;
    let date = SystemTime::from(date.timestamp());
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Anything up to the bound: callers that were refused together must not return together.
fn backoff(attempt: u32) -> Duration {
    let bound = BACKOFF_MAX.min(BACKOFF_FIRST * 2_u32.pow(attempt - 1));
    // The keys of a new RandomState are random enough to spread callers.
    let share = RandomState::new().hash_one(attempt) as f64 / u64::MAX as f64;
    bound.mul_f64(share)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str = "usage: client [--requests N] HOST:PORT DOMAIN KEY=VALUE[,KEY=VALUE]";
    let mut given: Vec<String> = env::args().skip(1).collect();
    let mut requests = 1;
    if given.first().is_some_and(|flag| flag == "--requests") {
        requests = given.get(1).ok_or(USAGE)?.parse()?;
        given.drain(..2);
    }
    let [target, domain, entries] = given.as_slice() else { return Err(USAGE.into()) };
    let entry = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    let descriptors = vec![Descriptor { entries: entries.split(',').map(entry).collect() }];
    let question = RateLimitRequest { domain: domain.clone(), descriptors };
    let mut limiter = Limiter::new(target)?;
    for _ in 0..requests {
        if !limiter.passes(&question).await? {
            return Err("refused".into());
        }
    }
    Ok(())
}
