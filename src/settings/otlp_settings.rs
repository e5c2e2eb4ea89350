//! Settings of the OTLP export, with the names and meanings that the OpenTelemetry specification
//! defines.
//!
//! `telemetry::otlp` implements the export.

use super::server_url::percent_decode;
use super::setting_error::SettingError;
use super::table::Settings;
use super::value_types::{OnOff, ValueError, pairs_parser, unknown_word_error};
use crate::domain::OtlpProtocol;

impl OtlpProtocol {
    /// Returns the default collector endpoint for traces, which applies if `TRACING_ENABLED` is
    /// `on` and no endpoint is configured.
    const fn default_endpoint(self) -> &'static str {
        match self {
            OtlpProtocol::Grpc => "http://localhost:4317",
            OtlpProtocol::HttpProtobuf => "http://localhost:4318",
        }
    }

    /// Returns the URL for one signal, metrics or traces. With HTTP, the URL is the common endpoint
    /// followed by the signal's `path`; with gRPC, it is the endpoint itself.
    fn signal_url(self, endpoint: &str, path: &str) -> String {
        match self {
            OtlpProtocol::Grpc => endpoint.to_owned(),
            OtlpProtocol::HttpProtobuf => format!("{}{path}", endpoint.trim_end_matches('/')),
        }
    }
}

/// Validated settings of the OTLP export that depend on one another.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// Protocol of the metrics and traces exports.
    pub protocol: OtlpProtocol,
    /// Collector endpoint for metrics; `None` disables their export.
    pub metrics_endpoint: Option<String>,
    /// Collector endpoint for traces; `None` disables their export.
    pub traces_endpoint: Option<String>,
    /// Additional resource attributes, as name-value pairs.
    pub attributes: Vec<(String, String)>,
    /// Whether a sampling decision in the caller's trace context overrides `sample_ratio`.
    pub parent_based: bool,
    /// Fraction of calls to sample, from 0 to 1. If `parent_based` is true, the fraction applies
    /// only to calls without a trace context, because a trace context contains the caller's
    /// sampling decision.
    pub sample_ratio: f64,
}

/// Trace sampler, as named by the OpenTelemetry specification.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceSampler {
    /// Whether the caller's sampling decision is followed, if it has made one.
    parent_based: bool,
    /// Fraction of the other calls to sample; `None` means `--traces-ratio`.
    ratio: Option<f64>,
}

/// Names of the trace samplers, each with whether it is parent-based, and its fraction.
const SAMPLERS: [(&str, bool, Option<f64>); 6] = [
    ("always_on", false, Some(1.0)),
    ("always_off", false, Some(0.0)),
    ("traceidratio", false, None),
    ("parentbased_always_on", true, Some(1.0)),
    ("parentbased_always_off", true, Some(0.0)),
    ("parentbased_traceidratio", true, None),
];

impl TraceSampler {
    pub(super) fn parse(text: &str) -> Result<Self, ValueError> {
        let named = SAMPLERS.iter().find(|(name, ..)| text.eq_ignore_ascii_case(name));
        let (_, parent_based, ratio) =
            *named.ok_or_else(|| unknown_word_error(text, &SAMPLERS.map(|(name, ..)| name)))?;
        Ok(TraceSampler { parent_based, ratio })
    }
}

impl Settings {
    /// Returns the OTLP settings, or `None` if neither metrics nor traces are exported.
    ///
    /// # Errors
    ///
    /// Returns an error if the headers or resource attributes are malformed.
    pub fn otlp(&self) -> Result<Option<OtlpSettings>, SettingError> {
        let Some(protocol) = self.supported_otlp_protocol() else { return Ok(None) };
        let endpoint = |enabled: bool, own: &str, path: &str| match (enabled, own) {
            (false, _) => None,
            (true, "") if self.otlp_endpoint.is_empty() => None,
            (true, "") => Some(protocol.signal_url(&self.otlp_endpoint, path)),
            // An endpoint of one signal is used as it is, as the specification says.
            (true, own) => Some(own.to_owned()),
        };
        let metrics_endpoint =
            endpoint(self.metrics_exporter, &self.otlp_metrics_endpoint, "/v1/metrics");
        let exports_traces = self.traces_exporter && self.tracing_enabled != OnOff::Off;
        let default_endpoint = || {
            let is_on = exports_traces && self.tracing_enabled == OnOff::On;
            is_on.then(|| protocol.signal_url(protocol.default_endpoint(), "/v1/traces"))
        };
        let traces_endpoint = endpoint(exports_traces, &self.otlp_traces_endpoint, "/v1/traces")
            .or_else(default_endpoint);
        let has_receiver = metrics_endpoint.is_some() || traces_endpoint.is_some();
        if !has_receiver || self.otel_sdk_disabled {
            return Ok(None);
        }
        let advice = "write name=value,name=value; percent-encode commas (%2C)";
        let malformed = |name| SettingError::conflict(name, advice);
        self.otlp_header_pairs().ok_or_else(|| malformed("OTEL_EXPORTER_OTLP_HEADERS"))?;
        let mut attributes = parse_pairs(&self.resource_attributes)
            .ok_or_else(|| malformed("OTEL_RESOURCE_ATTRIBUTES"))?;
        if !self.service_namespace.is_empty() {
            attributes.push(("service.namespace".to_owned(), self.service_namespace.clone()));
        }
        Ok(Some(OtlpSettings {
            protocol,
            metrics_endpoint,
            traces_endpoint,
            attributes,
            parent_based: self.traces_sampler.parent_based,
            sample_ratio: self.traces_sampler.ratio.unwrap_or(self.traces_ratio),
        }))
    }

    /// Returns the request headers as name-value pairs; `None` if they are malformed, which
    /// [`otlp`](Self::otlp) reports.
    pub fn otlp_header_pairs(&self) -> Option<Vec<(String, String)>> {
        parse_pairs(self.otlp_headers.reveal())
    }

    /// Returns the OTLP protocol; `None` if Tidegate does not support it.
    pub(super) fn supported_otlp_protocol(&self) -> Option<OtlpProtocol> {
        match self.otlp_protocol.to_ascii_lowercase().as_str() {
            "grpc" => Some(OtlpProtocol::Grpc),
            // The second word is that of TRACING_EXPORTER_PROTOCOL.
            "http/protobuf" | "http" => Some(OtlpProtocol::HttpProtobuf),
            _ => None,
        }
    }
}

/// Parses `name=value,name=value`, where values are percent-encoded. Returns `None` if the text is
/// malformed.
fn parse_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let decoded = |(name, value): (String, String)| Some((name, percent_decode(&value)?));
    pairs_parser('=')(text).ok()?.into_iter().map(decoded).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Sources;

    fn read(environment: &[(&str, &str)]) -> Result<Option<OtlpSettings>, Vec<SettingError>> {
        let (settings, _) = Settings::read(&Sources::from_environment(environment))?;
        Ok(settings.otlp().expect("checked when read"))
    }

    #[test]
    fn nothing_is_exported_without_an_endpoint() {
        assert!(read(&[]).unwrap().is_none());
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        assert!(read(&[endpoint, ("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
        assert!(read(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]).unwrap().is_none());
        let none = ("OTEL_TRACES_EXPORTER", "none");
        let settings = read(&[endpoint, none]).unwrap().unwrap();
        assert_eq!(
            (settings.traces_endpoint, settings.metrics_endpoint.as_deref()),
            (None, Some("http://c:4317"))
        );
    }

    #[test]
    fn the_standard_otel_variables_are_supported() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%2Cb, x=1"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1500"),
            ("OTEL_SERVICE_NAME", "limits"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ];
        let (read, _) = Settings::read(&Sources::from_environment(&variables)).unwrap();
        let settings = read.otlp().unwrap().unwrap();
        assert_eq!(settings.traces_endpoint.as_deref(), Some("http://traces:4317"));
        assert_eq!(settings.metrics_endpoint.as_deref(), Some("http://all:4317"));
        assert_eq!(read.otlp_header_pairs().unwrap()[0], ("api-key".to_owned(), "a,b".to_owned()));
        assert_eq!(read.otlp_timeout, Duration::from_millis(2_500));
        assert_eq!(read.otlp_metrics_interval, Duration::from_millis(1_500));
        assert_eq!((settings.parent_based, settings.sample_ratio), (true, 0.25));
        assert_eq!(settings.attributes[0].1, "prod");
        assert!(!format!("{read:?}{settings:?}").contains("a%2Cb"), "headers may hold a token");
    }

    #[test]
    fn over_http_only_the_common_endpoint_gets_a_signal_path() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://metrics:4318/otlp"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!(settings.protocol, OtlpProtocol::HttpProtobuf);
        assert_eq!(settings.traces_endpoint.as_deref(), Some("http://all:4318/v1/traces"));
        assert_eq!(settings.metrics_endpoint.as_deref(), Some("http://metrics:4318/otlp"));
    }

    #[test]
    fn the_tracing_variables_of_ratelimit_work_in_drop_in_mode() {
        let as_ratelimit = |pairs: &[(&str, &str)]| {
            let drop_in = Some(crate::settings::DropIn::default());
            let sources = Sources { drop_in, ..Sources::from_environment(pairs) };
            let (read, _) = Settings::read(&sources).unwrap();
            assert_eq!(read.service_name, "RateLimit");
            read.otlp().unwrap()
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        assert!(as_ratelimit(&[endpoint]).is_none(), "off unless TRACING_ENABLED");
        let on = ("TRACING_ENABLED", "true");
        let settings = as_ratelimit(&[on, endpoint, ("TRACING_SERVICE_NAMESPACE", "edge")]);
        let settings = settings.unwrap();
        assert_eq!(settings.traces_endpoint.as_deref(), Some("http://c:4318/v1/traces"));
        assert_eq!(settings.metrics_endpoint, None, "envoyproxy/ratelimit exports no metrics");
        assert_eq!(settings.protocol, OtlpProtocol::HttpProtobuf);
        assert_eq!((settings.parent_based, settings.sample_ratio), (true, 1.0));
        let namespace = ("service.namespace".to_owned(), "edge".to_owned());
        assert_eq!(settings.attributes, [namespace]);
        let grpc = as_ratelimit(&[on, ("TRACING_EXPORTER_PROTOCOL", "grpc")]).unwrap();
        assert_eq!(grpc.protocol, OtlpProtocol::Grpc);
        assert_eq!(grpc.traces_endpoint.as_deref(), Some("http://localhost:4317"));
    }

    #[test]
    fn a_malformed_list_is_rejected() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        for bad in ["novalue", "=x", "a=%zz", "a=%f"] {
            assert!(read(&[endpoint, ("OTEL_EXPORTER_OTLP_HEADERS", bad)]).is_err(), "{bad}");
            assert!(read(&[endpoint, ("OTEL_RESOURCE_ATTRIBUTES", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_sampler_has_the_meaning_of_the_opentelemetry_specification() {
        for (name, expected) in [
            ("always_on", (false, 1.0)),
            ("always_off", (false, 0.0)),
            ("traceidratio", (false, 0.25)),
            ("parentbased_always_on", (true, 1.0)),
            ("parentbased_always_off", (true, 0.0)),
            ("parentbased_traceidratio", (true, 0.25)),
        ] {
            let sampler = TraceSampler::parse(name).unwrap();
            let ratio = sampler.ratio.unwrap_or(0.25);
            assert_eq!((sampler.parent_based, ratio), expected, "{name}");
        }
    }
}
