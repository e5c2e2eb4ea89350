//! OTLP over gRPC: where metrics and traces are sent, and as whom.
//!
//! Sending never holds up a decision: it runs in the background, is bounded, and what cannot be sent
//! is counted and dropped. Not here: which calls are traced (`sampling`), reading settings (`app`).

mod metric_export;
mod sampling;
mod trace_export;

pub use self::metric_export::Metrics;
pub use self::trace_export::Traces;
pub use sampling::Sampling;

use std::fmt;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use super::metric::{Family, Figures, Kind, Value};

/// Where a signal is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// `http://host:4317`, or `https://`; without either, `http`.
    pub endpoint: String,
    /// Sent along with everything, such as a token.
    pub headers: Vec<(String, String)>,
    /// How long the receiver may take.
    pub timeout: Duration,
    /// The authority of the receiver's certificate, PEM; `None`: the system's.
    pub ca: Option<Vec<u8>>,
}

/// As whom it is sent: the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `service.name`.
    pub service: String,
    /// `service.instance.id`: another for each process.
    pub instance: String,
    /// Whatever else the operator says of the process.
    pub attributes: Vec<(String, String)>,
}

/// Why nothing can be sent. Trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtlpError {
    /// The address is none.
    Endpoint(String),
    /// A header that cannot be sent; its name, since its value may be a secret.
    Header(String),
    /// The authority does not parse.
    Tls(String),
    /// The exporter refuses what it was given.
    Exporter(String),
}

impl fmt::Display for OtlpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OtlpError::Endpoint(why) => write!(f, "{why}; such as http://collector:4317"),
            OtlpError::Header(name) => write!(f, "header {name:?} cannot be sent"),
            OtlpError::Tls(why) => write!(f, "TLS towards the receiver: {why}"),
            OtlpError::Exporter(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for OtlpError {}

impl Target {
    /// A channel that connects when something is sent, on the present runtime.
    fn channel(&self) -> Result<Channel, OtlpError> {
        let wrong = |why: &dyn fmt::Display| OtlpError::Endpoint(format!("{why}"));
        let with_scheme = match self.endpoint.contains("://") {
            true => self.endpoint.clone(),
            false => format!("http://{}", self.endpoint),
        };
        let endpoint = Endpoint::from_shared(with_scheme)
            .map_err(|why| wrong(&format!("{:?} is no address ({why})", self.endpoint)))?
            .connect_timeout(self.timeout)
            .timeout(self.timeout);
        let secured = match endpoint.uri().scheme_str() {
            Some("http") => return Ok(endpoint.connect_lazy()),
            Some("https") => match &self.ca {
                Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
                None => ClientTlsConfig::new().with_native_roots(),
            },
            _ => return Err(wrong(&"only http and https are spoken")),
        };
        let endpoint =
            endpoint.tls_config(secured).map_err(|why| OtlpError::Tls(why.to_string()))?;
        Ok(endpoint.connect_lazy())
    }

    fn metadata(&self) -> Result<MetadataMap, OtlpError> {
        let mut map = MetadataMap::new();
        for (name, value) in &self.headers {
            let wrong = || OtlpError::Header(name.clone());
            let key =
                AsciiMetadataKey::from_str(&name.to_ascii_lowercase()).map_err(|_| wrong())?;
            map.insert(key, AsciiMetadataValue::from_str(value).map_err(|_| wrong())?);
        }
        Ok(map)
    }
}

impl Identity {
    /// The resource's attributes; what the operator says goes first.
    fn attributes(&self) -> Vec<(String, String)> {
        let own = [
            ("service.name", self.service.as_str()),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", self.instance.as_str()),
        ];
        let mut all = self.attributes.clone();
        for (name, value) in own {
            if !all.iter().any(|(held, _)| held == name) {
                all.push((name.to_owned(), value.to_owned()));
            }
        }
        all
    }
}

/// How sending a signal goes: counted, and told once when it begins to fail and when it works again.
#[derive(Debug)]
pub struct Sent {
    signal: &'static str,
    worked: AtomicU64,
    failed: AtomicU64,
    failing: AtomicBool,
}

impl Sent {
    /// Of metrics or of traces.
    pub const fn new(signal: &'static str) -> Self {
        let (worked, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Sent { signal, worked, failed, failing: AtomicBool::new(false) }
    }

    fn note(&self, result: Result<(), impl fmt::Display>) {
        let counter = if result.is_ok() { &self.worked } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let was_failing = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match result {
            Err(why) if !was_failing => {
                tracing::warn!(signal = self.signal, %why, "OTLP cannot be sent");
            }
            Ok(()) if was_failing => tracing::info!(signal = self.signal, "OTLP is sent again"),
            Ok(()) | Err(_) => {}
        }
    }
}

/// Exports per signal and result.
pub(crate) const EXPORTS: Family =
    Family::new("otlp_exports", "OTLP exports per signal and result", Kind::Counter)
        .with_labels(&["signal", "result"]);

/// The figures of what is sent.
pub fn sent_figures(each: Vec<std::sync::Arc<Sent>>) -> Figures {
    Box::new(move |sink| {
        sink.family(&EXPORTS, &mut |put| {
            each.iter().try_for_each(|sent| {
                let count = |counter: &AtomicU64| Value::Whole(counter.load(Ordering::Relaxed));
                put(&[("signal", sent.signal), ("result", "sent")], count(&sent.worked))?;
                put(&[("signal", sent.signal), ("result", "failed")], count(&sent.failed))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(endpoint: &str) -> Target {
        let timeout = Duration::from_secs(1);
        Target { endpoint: endpoint.to_owned(), timeout, ..Target::default() }
    }

    #[tokio::test]
    async fn an_address_is_refused_where_nothing_could_be_sent_to_it() {
        for good in ["http://localhost:4317", "localhost:4317", "https://collector:4317"] {
            assert!(target(good).channel().is_ok(), "{good}");
        }
        for bad in ["", "http://", "ftp://h:1", "a b"] {
            assert!(matches!(target(bad).channel(), Err(OtlpError::Endpoint(_))), "{bad}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_named_without_its_value() {
        let headers = vec![("api-key".to_owned(), "secret\n".to_owned())];
        let target = Target { headers, ..target("h:1") };
        assert_eq!(target.metadata().unwrap_err().to_string(), "header \"api-key\" cannot be sent");
    }

    #[test]
    fn what_the_operator_says_of_the_process_goes_first() {
        let attributes = vec![("service.name".to_owned(), "mine".to_owned())];
        let identity = Identity { service: "tidegate".into(), instance: "1".into(), attributes };
        let all = identity.attributes();
        assert_eq!(all[0].1, "mine");
        assert_eq!(all.len(), 3, "{all:?}");
    }
}
