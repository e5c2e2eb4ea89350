//! `tidegate ask`: asks a running service, as Envoy would, and shows what it was told.
//!
//! Not here: the protocol (`wire::client`).

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::terminal;
use super::terminal::Paint;
use crate::app::{self, Failure};
use crate::wire::client::{Client, ClientSettings, ClientTls, Question, QuestionDescriptor, Told};

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Ask {
    /// Where the service listens
    #[arg(value_name = "HOST:PORT")]
    target: String,
    /// The domain
    domain: String,
    /// Descriptors, each as k=v,k2=v2 (a comma inside a value: \,)
    #[arg(required = true, value_name = "K=V,K2=V2")]
    descriptors: Vec<String>,
    /// Hits of the request; 0 asks without taking
    #[arg(long, default_value_t = 1)]
    hits: u32,
    /// Return the hits instead of asking for them
    #[arg(long)]
    refund: bool,
    /// Ask that often
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=REPEAT_MAX))]
    repeat: u32,
    /// Print each answer as a line of JSON
    #[arg(long)]
    json: bool,
    /// Milliseconds that an answer may take
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    timeout_ms: u64,
    /// CA of the service's certificate, PEM: asks over TLS
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Our certificate, PEM
    #[arg(long, value_name = "FILE", requires = "ca", requires = "key")]
    cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The name in the service's certificate, where it is not the host's
    #[arg(long, value_name = "NAME", requires = "ca")]
    server_name: Option<String>,
}

/// Enough to fill any limit by hand; more is a load test, which this is not.
const REPEAT_MAX: i64 = 1_000_000;

const AFTER_HELP: &str = "\
Examples:
  tidegate ask localhost:8081 edge remote_address=10.0.0.1
  tidegate ask localhost:8081 edge user=ann plan=free --repeat 5
  tidegate ask localhost:8081 edge user=ann --hits 0 --json      look without taking

The exit code is 0 whatever the answer; 69 if there is none.";

impl Ask {
    pub(super) fn run(self) -> Result<(), Failure> {
        if !is_host_and_port(&self.target) {
            let wrong = format!("{:?} is not HOST:PORT, such as localhost:8081", self.target);
            return Err(Failure::Usage(wrong));
        }
        let question = self.question()?;
        let settings = ClientSettings {
            target: self.target.clone(),
            timeout: Some(Duration::from_millis(self.timeout_ms)),
            tls: self.tls()?,
        };
        app::block_on(async {
            let unanswered = |error| Failure::Unanswered { target: self.target.clone(), error };
            let mut client = Client::connect(&settings).await.map_err(unanswered)?;
            for _ in 0..self.repeat {
                let told = client.ask(&question).await.map_err(unanswered)?;
                if self.json {
                    terminal::out(&format!("{}\n", told.json))?;
                } else {
                    terminal::out(&self.shown(&told))?;
                }
            }
            Ok(())
        })?
    }

    fn question(&self) -> Result<Question, Failure> {
        let bytes = |(key, value): (String, String)| (key.into_bytes(), value.into_bytes());
        let descriptor = |text: &String| {
            Ok(QuestionDescriptor {
                entries: app::descriptor(text)?.into_iter().map(bytes).collect(),
                // A request's 0 means 1; only a descriptor's own 0 asks without taking.
                hits: (self.hits == 0).then_some(0),
                refund: self.refund,
                limit: None,
            })
        };
        Ok(Question {
            domain: self.domain.clone(),
            descriptors: self.descriptors.iter().map(descriptor).collect::<Result<_, Failure>>()?,
            hits: self.hits,
        })
    }

    fn tls(&self) -> Result<Option<ClientTls>, Failure> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((app::pem_file(cert)?, app::pem_file(key)?)),
            _ => None,
        };
        let server_name = self.server_name.clone();
        Ok(Some(ClientTls { authority: app::pem_file(ca)?, identity, server_name }))
    }

    /// The answer for people: the code, then a line for each descriptor, then what else came.
    fn shown(&self, told: &Told) -> String {
        let paint = if told.refused { Paint::Fault } else { Paint::Good };
        let mut text = paint.on(told.code, terminal::colour());
        text.push('\n');
        for (descriptor, status) in self.descriptors.iter().zip(&told.statuses) {
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
        for (name, value) in &told.headers {
            text.push_str(&format!("  {}: {}\n", name.escape_debug(), value.escape_debug()));
        }
        if !told.body.is_empty() {
            text.push_str(&format!("  {}\n", told.body.escape_ascii()));
        }
        text
    }
}

/// Whether that could be somewhere that a service listens.
fn is_host_and_port(target: &str) -> bool {
    target.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && !host.contains(|c: char| c == '/' || c.is_whitespace())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}
