//! OTLP export of traces, and how metrics and traces are sent: over gRPC or HTTP.
//!
//! Exports run in the background with bounded memory. A failed export is counted, and its data is
//! dropped.
//!
//! Not here: the metrics (`otlp_metrics`).

mod http_sender;
pub(super) mod otlp_client;
mod sampling;
mod trace_export;

pub use self::sampling::SamplingRule;
pub use self::trace_export::TraceExporter;

use std::fmt;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tonic::transport::{Channel, Endpoint};

use crate::domain::OtlpProtocol;
use crate::tls::{ClientCertificates, Connector};

/// OTLP collector for metrics or traces, and the settings of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtlpTarget {
    /// Protocol for sending data to the collector.
    pub protocol: OtlpProtocol,
    /// Endpoint URL, such as `http://host:4317` for gRPC. For HTTP, it includes the full path, as
    /// in `https://host:4318/v1/traces`. The default scheme is `http`.
    pub endpoint: String,
    /// Headers sent with every request, for example an API token.
    pub headers: Vec<(String, String)>,
    /// Timeout for connecting and for each request.
    pub timeout: Duration,
    /// CA certificates that verify the collector's certificate.
    pub certificates: ClientCertificates,
}

/// OpenTelemetry resource attributes that identify this process to the collector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceIdentity {
    /// Value of `service.name`.
    pub service: String,
    /// Value of `service.instance.id`, unique per process.
    pub instance: String,
    /// Further resource attributes set by the operator.
    pub attributes: Vec<(String, String)>,
}

impl OtlpTarget {
    /// Parses the endpoint, and creates a connector to it that offers `protocol` with ALPN. Returns
    /// the reason if the endpoint or the CA is invalid.
    fn build_connector(&self, protocol: &str) -> Result<(Uri, Connector), String> {
        let invalid = |reason: &str| format!("{reason}; example: http://collector:4317");
        let uri = Uri::from_str(&self.endpoint).map_err(|error| {
            invalid(&format!("{:?} is not an address ({error})", self.endpoint))
        })?;
        let without_host = || invalid(&format!("{:?} has no host", self.endpoint));
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(without_host)?;
        // Brackets surround an IPv6 address in a URL, but not elsewhere.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let (default_port, tls) = match uri.scheme_str() {
            Some("http") => (80, None),
            Some("https") => (443, Some((&self.certificates, protocol, host))),
            _ => return Err(invalid("only http and https are supported")),
        };
        let connector = Connector::new(host, uri.port_u16().unwrap_or(default_port), tls)
            .map_err(|error| format!("TLS towards the receiver: {error}"))?;
        Ok((uri, connector))
    }

    /// Creates a gRPC channel on the current Tokio runtime. The channel connects at the first
    /// request. Returns an error for an invalid endpoint or CA.
    fn build_channel(&self) -> Result<Channel, String> {
        let (uri, connector) = self.build_connector("h2")?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        // The connector does TLS itself, so tonic must not.
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|error| error.to_string())?
            .origin(uri)
            .connect_timeout(self.timeout)
            .timeout(self.timeout);
        Ok(endpoint.connect_with_connector_lazy(connector))
    }

    /// Returns the headers of each request. An error contains only the name of a header, because its
    /// value may be a secret.
    fn build_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let invalid = || format!("header {name:?} cannot be sent");
            let key = HeaderName::try_from(name.as_str()).map_err(|_| invalid())?;
            headers.insert(key, HeaderValue::from_str(value).map_err(|_| invalid())?);
        }
        Ok(headers)
    }
}

impl ServiceIdentity {
    /// Returns all resource attributes. Attributes set by the operator take precedence.
    pub(super) fn resource_attributes(&self) -> Vec<(String, String)> {
        let defaults = [
            ("service.name", self.service.as_str()),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", self.instance.as_str()),
        ];
        let mut all = self.attributes.clone();
        for (name, value) in defaults {
            if !all.iter().any(|(held, _)| held == name) {
                all.push((name.to_owned(), value.to_owned()));
            }
        }
        all
    }
}

/// Export counters of one OTLP signal, metrics or traces. Logs when exports start to fail and when
/// they recover.
#[derive(Debug)]
pub struct ExportStats {
    pub(super) signal: &'static str,
    pub(super) succeeded: AtomicU64,
    pub(super) failed: AtomicU64,
    is_failing: AtomicBool,
}

impl ExportStats {
    /// Creates export counters for a signal, `metrics` or `traces`.
    pub const fn new(signal: &'static str) -> Self {
        let (succeeded, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        ExportStats { signal, succeeded, failed, is_failing: AtomicBool::new(false) }
    }

    pub(super) fn record(&self, result: Result<(), impl fmt::Display>) {
        let counter = if result.is_ok() { &self.succeeded } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        match result {
            Err(error) if !was_failing => {
                tracing::warn!(signal = self.signal, %error, "OTLP export failed");
            }
            Ok(()) if was_failing => {
                tracing::info!(signal = self.signal, "OTLP exports work again")
            }
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::http_sender::HttpSender;
    use super::*;

    fn otlp_target(endpoint: &str) -> OtlpTarget {
        let timeout = Duration::from_secs(1);
        OtlpTarget { endpoint: endpoint.to_owned(), timeout, ..OtlpTarget::default() }
    }

    #[tokio::test]
    async fn an_invalid_endpoint_is_rejected() {
        for good in ["http://localhost:4317", "https://collector:4317"] {
            assert!(otlp_target(good).build_channel().is_ok(), "{good}");
        }
        for bad in ["", "http://", "ftp://h:1", "a b", "localhost:4317", "collector:4318/x"] {
            let errors = [
                otlp_target(bad).build_channel().unwrap_err(),
                HttpSender::new(&otlp_target(bad)).unwrap_err(),
            ];
            let example = "; example: http://collector:4317";
            assert!(errors.iter().all(|error| error.ends_with(example)), "{bad}: {errors:?}");
        }
        for good in ["http://[::1]:4318/v1/traces", "https://c/v1/metrics"] {
            assert!(HttpSender::new(&otlp_target(good)).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_named_without_its_value() {
        let headers = vec![("api-key".to_owned(), "secret\n".to_owned())];
        let target = OtlpTarget { headers, ..otlp_target("http://h:1") };
        let expected = "header \"api-key\" cannot be sent";
        assert_eq!(target.build_headers().unwrap_err(), expected);
        assert_eq!(HttpSender::new(&target).unwrap_err(), expected);
    }

    #[test]
    fn attributes_set_by_the_operator_take_precedence() {
        let attributes = vec![("service.name".to_owned(), "mine".to_owned())];
        let identity =
            ServiceIdentity { service: "tidegate".into(), instance: "1".into(), attributes };
        let all = identity.resource_attributes();
        assert_eq!(all[0].1, "mine");
        assert_eq!(all.len(), 3, "{all:?}");
    }
}
