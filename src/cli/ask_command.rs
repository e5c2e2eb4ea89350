//! `tidegate ask`: sends a rate limit request to a running service, as Envoy would, and prints the
//! response. `wire::client` implements the protocol.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::terminal::Color;
use super::usage_errors::DESCRIPTORS_PLACEHOLDER;
use super::{ask_batch, terminal};
use crate::app::{self, Failure};
use crate::wire::client::{
    BatchRequest, CallDescriptor, CallRequest, CallResponse, Client, ClientSettings, ClientTls,
    WireError, find_advice,
};

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
    /// Timeout for each request, in milliseconds
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    timeout_ms: u64,
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
        let target = self.parse_target()?;
        let settings = ClientSettings {
            target: target.to_owned(),
            timeout: Some(Duration::from_millis(self.timeout_ms)),
            tls: self.read_tls()?,
        };
        let batch = self.batch.as_deref().map(ask_batch::read).transpose()?;
        let request = self.build_request()?;
        app::block_on(async {
            if let Some(requests) = batch {
                return self.ask_batch(&settings, &requests).await;
            }
            let mut response = None;
            let asked = self.ask(&settings, &request, &mut response).await;
            if let Some(response) = response.filter(|_| !self.json && asked.is_ok()) {
                self.explain_missing_limits(&response);
            }
            match asked {
                Ok(()) => Ok(()),
                Err(error) => Err(with_advice(&settings, error).await),
            }
        })?
    }

    async fn ask_batch(
        &self,
        settings: &ClientSettings,
        requests: &[BatchRequest],
    ) -> Result<(), Failure> {
        let sent = match Client::connect(settings).await {
            Ok(mut client) => ask_batch::send(&mut client, requests, self.json).await,
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(with_advice(settings, error).await),
        }
    }

    /// Sends the requests and prints each response. Stores the last response in `last`.
    async fn ask(
        &self,
        settings: &ClientSettings,
        request: &CallRequest,
        last: &mut Option<CallResponse>,
    ) -> Result<(), WireError> {
        let mut client = Client::connect(settings).await?;
        for _ in 0..self.repeat {
            let response = client.send(request).await?;
            let text = match self.json {
                true => format!("{}\n", response.json),
                false => self.format_response(&response),
            };
            // Never an error.
            let _ = terminal::print(&text);
            *last = Some(response);
        }
        Ok(())
    }

    /// Prints a hint to standard error if no descriptor has a limit, which is probably a mistake.
    /// The hint names both possible causes, because the response does not distinguish an unknown
    /// domain from descriptors that match no rule.
    fn explain_missing_limits(&self, response: &CallResponse) {
        let is_limited = response.statuses.iter().any(|status| status.limit.is_some());
        if !is_limited && !response.refused {
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

    fn build_request(&self) -> Result<CallRequest, Failure> {
        let bytes = |(key, value): (String, String)| (key.into_bytes(), value.into_bytes());
        let descriptor = |text: &String| {
            Ok(CallDescriptor {
                entries: app::parse_descriptor(text)?.into_iter().map(bytes).collect(),
                // `hits_addend: 0` means 1 in the request, but "only check the limits" in a
                // descriptor.
                hits: (self.hits == 0).then_some(0),
                refund: self.refund,
                limit: None,
            })
        };
        Ok(CallRequest {
            domain: self.domain.clone(),
            descriptors: self.descriptors.iter().map(descriptor).collect::<Result<_, Failure>>()?,
            hits: self.hits,
        })
    }

    fn read_tls(&self) -> Result<Option<ClientTls>, Failure> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((app::read_pem_file(cert)?, app::read_pem_file(key)?)),
            _ => None,
        };
        let server_name = self.server_name.clone();
        Ok(Some(ClientTls { authority: app::read_pem_file(ca)?, identity, server_name }))
    }

    /// Formats a response as text: the code, one line per descriptor, the headers and the body.
    fn format_response(&self, response: &CallResponse) -> String {
        let color = if response.refused { Color::Red } else { Color::Green };
        let mut text = color.paint(response.code, terminal::stdout_is_terminal());
        text.push('\n');
        for (descriptor, status) in self.descriptors.iter().zip(&response.statuses) {
            let code = if status.refused { "OVER_LIMIT" } else { "OK" };
            text.push_str(&format!("  {descriptor}: {code}"));
            match &status.limit {
                None => text.push_str(", no limit"),
                Some(limit) => {
                    let name = if limit.name.is_empty() { "" } else { " " };
                    let times = match limit.unit_multiplier {
                        1 => String::new(),
                        several => format!("{several} x "),
                    };
                    text.push_str(&format!(
                        ", limit{name}{} {} per {times}{}, {} left",
                        limit.name,
                        limit.requests_per_unit,
                        limit.unit.to_ascii_lowercase(),
                        status.remaining,
                    ));
                }
            }
            if let Some(seconds) = status.reset_seconds {
                let what = if status.refused { "retry after" } else { "resets in" };
                text.push_str(&format!(", {what} {seconds} s"));
            }
            text.push('\n');
        }
        for (name, value) in &response.headers {
            text.push_str(&format!("  {}: {}\n", name.escape_debug(), value.escape_debug()));
        }
        if !response.body.is_empty() {
            text.push_str(&format!("  {}\n", response.body.escape_ascii()));
        }
        text
    }
}

/// Converts an error of the client into a [`Failure`]. Detects the protocol that the target server
/// speaks, and adds advice for this protocol.
async fn with_advice(settings: &ClientSettings, error: WireError) -> Failure {
    let advice = find_advice(settings, &error).await;
    Failure::Ask { target: settings.target.clone(), error, advice }
}

/// Returns whether `target` has the form `host:port`.
fn is_host_and_port(target: &str) -> bool {
    target.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && !host.contains(|c: char| c == '/' || c.is_whitespace())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}
