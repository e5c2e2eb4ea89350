//! `tidegate ask`: sends a rate limit request to a running service, as Envoy would, and prints the
//! response.
//!
//! Not here: batches (`ask_batch`), connecting (`ask_client`).

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use super::ask_client::{CallError, Server};
use super::terminal::Color;
use super::usage_errors::DESCRIPTORS_PLACEHOLDER;
use super::{ask_batch, terminal};
use crate::app::{self, Failure};
use crate::domain::parse_descriptor;
use crate::settings;
use crate::wire::messages::rate_limit_descriptor::Entry;
use crate::wire::messages::rate_limit_response::{Code, DescriptorStatus};
use crate::wire::messages::rate_limit_service_client::RateLimitServiceClient;
use crate::wire::messages::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use crate::wire::proto_json::response_to_json;

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Ask {
    /// Address of the service's gRPC port
    #[arg(value_name = "HOST:PORT")]
    target: String,
    /// Domain of the request
    #[arg(required_unless_present = "batch", default_value = "", hide_default_value = true)]
    domain: String,
    /// Descriptors, each as k=v,k2=v2 (write \, for a comma inside a value)
    #[arg(required_unless_present = "batch", value_name = DESCRIPTORS_PLACEHOLDER)]
    descriptors: Vec<String>,
    /// Hits charged by the request; 0 only checks the limits
    #[arg(long, default_value_t = 1)]
    hits: u32,
    /// Refund the hits instead of charging them
    #[arg(long)]
    refund: bool,
    /// Send the request this many times
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=REPEAT_MAX))]
    repeat: u32,
    /// Send the requests of this file in batches: one per line, in the JSON format of /json
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["domain", "descriptors", "hits", "refund", "repeat"])]
    batch: Option<PathBuf>,
    /// Print each response as one line of JSON
    #[arg(long)]
    json: bool,
    /// Timeout for each request, such as 5s; a number without a unit is in milliseconds
    #[arg(long, alias = "timeout", default_value = "1000", value_name = "DURATION",
        value_parser = settings::parse_timeout)]
    timeout_ms: Duration,
    /// PEM file with the CA of the service's certificate; enables TLS
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with the client certificate
    #[arg(long, value_name = "FILE", requires = "ca", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Name in the service's certificate, if it differs from the host name
    #[arg(long, value_name = "NAME", requires = "ca")]
    server_name: Option<String>,
}

/// Maximum value of `--repeat`. Enough to exhaust a limit by hand; for load tests, use a load
/// generator.
const REPEAT_MAX: i64 = 1_000_000;

const AFTER_HELP: &str = "\
Examples:
  tidegate ask localhost:8081 edge remote_address=10.0.0.1
  tidegate ask localhost:8081 edge user=ann plan=free --repeat 5
  tidegate ask localhost:8081 edge user=ann --hits 0 --json      only check the limits
  tidegate ask localhost:8081 --batch requests.jsonl             many requests per call

The exit code is 0 for every response, and 69 without one.";

impl Ask {
    pub(super) fn run(self) -> Result<(), Failure> {
        let server = Server {
            target: self.parse_target()?.to_owned(),
            timeout: self.timeout_ms,
            tls: self.read_tls()?,
        };
        let batch = self.batch.as_deref().map(ask_batch::read).transpose()?;
        let request = self.build_request()?;
        app::block_on(async {
            let asked = match server.connect().await {
                Ok(channel) => match batch {
                    Some(requests) => ask_batch::send(channel, &requests, self.json).await,
                    None => self.ask(channel, &request).await,
                },
                Err(error) => Err(error),
            };
            match asked {
                Ok(()) => Ok(()),
                Err(error) => Err(server.failure(error).await),
            }
        })?
    }

    /// Sends the request as often as `--repeat` says, and prints each response.
    async fn ask(&self, channel: Channel, request: &RateLimitRequest) -> Result<(), CallError> {
        let mut client = RateLimitServiceClient::new(channel);
        for nth in 1..=self.repeat {
            let response = client.should_rate_limit(request.clone()).await?.into_inner();
            let text = match self.json {
                true => format!("{}\n", response_to_json(&response)),
                false => self.format_response(&response),
            };
            // Never an error.
            let _ = terminal::print(&text);
            if nth == self.repeat && !self.json {
                self.explain_missing_limits(&response);
                self.explain_impossible_hits(&response);
            }
        }
        Ok(())
    }

    /// Prints a hint to standard error if no descriptor has a limit, which is probably a mistake.
    /// The hint names both possible causes, because the response does not distinguish an unknown
    /// domain from descriptors that match no rule.
    fn explain_missing_limits(&self, response: &RateLimitResponse) {
        let is_limited = response.statuses.iter().any(|status| status.current_limit.is_some());
        if !is_limited && response.overall_code() != Code::OverLimit {
            terminal::print_hint(&format!(
                "no limit applied. Either the service's policy has no domain {:?}, or that domain has \
                 no limit for {}: check the spelling of both. To find out which, run this with the \
                 policy's file: tidegate explain --policy FILE {} {}",
                self.domain,
                self.descriptors.join(" "),
                self.domain,
                self.descriptors.join(" ")
            ));
        }
    }

    /// Prints a hint to standard error if the request has more hits than a limit can ever admit.
    fn explain_impossible_hits(&self, response: &RateLimitResponse) {
        let of_limit = |status: &DescriptorStatus| {
            Some(status.current_limit.as_ref()?.requests_per_unit)
                .filter(|_| status.code() == Code::OverLimit)
        };
        let smallest = response.statuses.iter().filter_map(of_limit).min();
        if let Some(limit) = smallest.filter(|limit| self.hits > *limit && !self.refund) {
            terminal::print_hint(&format!(
                "{} hits are more than a limit of {limit}, so this request is always rejected: \
                 charge fewer with --hits",
                self.hits
            ));
        }
    }

    /// Returns the target address as `host:port`, without a scheme. Returns a usage error if it has
    /// another form, or if it starts with `https://` and `--ca` is not set.
    fn parse_target(&self) -> Result<&str, Failure> {
        let target = self.target.as_str();
        let is_https = target.starts_with("https://");
        if is_https && self.ca.is_none() {
            let reason = "https:// needs --ca FILE, with the CA of the service's certificate";
            return Err(Failure::Usage(reason.to_owned()));
        }
        let schemes = ["http://", "https://", "grpc://"];
        let bare = schemes.iter().find_map(|scheme| target.strip_prefix(scheme)).unwrap_or(target);
        let bare = bare.strip_suffix('/').unwrap_or(bare);
        match is_host_and_port(bare) {
            true => Ok(bare),
            false => Err(Failure::Usage(format!(
                "{target:?} is not HOST:PORT; give the gRPC port, such as localhost:8081"
            ))),
        }
    }

    fn build_request(&self) -> Result<RateLimitRequest, Failure> {
        let is_word = |text: &String| !text.contains(['=', ',']);
        if let [key, value] = self.descriptors.as_slice()
            && is_word(key)
            && is_word(value)
        {
            let reason = format!("\"{key} {value}\" has no `=`: write {key}={value}");
            return Err(Failure::Usage(reason));
        }
        let descriptor = |text: &String| {
            Ok(RateLimitDescriptor {
                entries: parse_entries(text)?,
                // `hits_addend: 0` means 1 in the request, but "only check the limits" in a
                // descriptor.
                hits_addend: (self.hits == 0).then_some(0),
                is_negative_hits: self.refund,
                limit: None,
            })
        };
        Ok(RateLimitRequest {
            domain: self.domain.clone().into(),
            descriptors: self.descriptors.iter().map(descriptor).collect::<Result<_, Failure>>()?,
            hits_addend: self.hits,
        })
    }

    fn read_tls(&self) -> Result<Option<ClientTlsConfig>, Failure> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(app::read_pem_file(ca)?));
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            let cert = app::read_pem_file(cert)?;
            tls = tls.identity(Identity::from_pem(cert, app::read_pem_file(key)?));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        Ok(Some(tls))
    }

    /// Formats a response as text: the code, one line per descriptor, the headers and the body.
    fn format_response(&self, response: &RateLimitResponse) -> String {
        let code = response.overall_code();
        let color = if code == Code::OverLimit { Color::Red } else { Color::Green };
        let mut text = color.paint(code.as_str_name(), terminal::stdout_is_terminal());
        text.push('\n');
        for (descriptor, status) in self.descriptors.iter().zip(&response.statuses) {
            text.push_str(&format!("  {descriptor}: {}\n", format_status(status, self.hits)));
        }
        let marks = &response.request_headers_to_add;
        for header in response.response_headers_to_add.iter().chain(marks) {
            let (name, value) = (header.key.escape_debug(), header.value.escape_debug());
            text.push_str(&format!("  {name}: {value}\n"));
        }
        if !response.raw_body.is_empty() {
            text.push_str(&format!("  {}\n", response.raw_body.escape_ascii()));
        }
        text
    }
}

/// Parses a descriptor such as `k=v,k2=v2` into the entries of a message.
///
/// # Errors
///
/// Returns the errors of [`parse_descriptor`].
pub(super) fn parse_entries(text: &str) -> Result<Vec<Entry>, Failure> {
    let entry = |(key, value): (String, String)| Entry { key: key.into(), value: value.into() };
    let pairs = parse_descriptor(text).map_err(Failure::Usage)?;
    Ok(pairs.into_iter().map(entry).collect())
}

/// Formats the answer to a descriptor of `hits` hits. Waiting does not help if they are more than
/// the limit.
fn format_status(status: &DescriptorStatus, hits: u32) -> String {
    let is_refused = status.code() == Code::OverLimit;
    let mut text = if is_refused { "OVER_LIMIT" } else { "OK" }.to_owned();
    match &status.current_limit {
        None => text.push_str(", no limit"),
        Some(limit) => {
            let name = if limit.name.is_empty() { "" } else { " " };
            let times = match limit.unit_multiplier {
                None | Some(1) => String::new(),
                Some(several) => format!("{several} x "),
            };
            text.push_str(&format!(
                ", limit{name}{} {} per {times}{}, {} left",
                limit.name,
                limit.requests_per_unit,
                limit.unit().as_str_name().to_ascii_lowercase(),
                status.limit_remaining,
            ));
        }
    }
    let limit = status.current_limit.as_ref().map(|limit| limit.requests_per_unit);
    let is_hopeless = is_refused && limit.is_some_and(|limit| hits > limit);
    if let Some(reset) = status.duration_until_reset.as_ref().filter(|_| !is_hopeless) {
        let what = if is_refused { "retry after" } else { "resets in" };
        text.push_str(&format!(", {what} {} s", reset.seconds));
    }
    text
}

fn is_host_and_port(target: &str) -> bool {
    target.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && !host.contains(|c: char| c == '/' || c.is_whitespace())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}
