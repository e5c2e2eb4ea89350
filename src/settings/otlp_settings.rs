//! Settings of the OTLP export, which have the names and meanings of the OpenTelemetry
//! specification.
//!
//! `telemetry::otlp` implements the export.

use std::path::PathBuf;
use std::time::Duration;

use super::value_types::ValueError;
use super::{SecretText, SettingError, Settings};

/// Validated settings of the OTLP export.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// Collector endpoint for metrics; `None` disables their export.
    pub metrics_endpoint: Option<String>,
    /// Collector endpoint for traces; `None` disables their export.
    pub traces_endpoint: Option<String>,
    /// Request headers in the form `name=value,name=value`. Kept secret, because a value may be an
    /// access token.
    headers: SecretText,
    /// PEM file with the CA certificates that verify the collectors; `None` uses the system's CAs.
    pub certificate: Option<PathBuf>,
    /// Timeout of each request to a collector.
    pub timeout: Duration,
    /// Interval at which metrics are exported.
    pub metrics_interval: Duration,
    /// Value of the `service.name` resource attribute.
    pub service: String,
    /// Additional resource attributes, as name-value pairs.
    pub attributes: Vec<(String, String)>,
    /// Whether a sampling decision in the caller's trace context overrides `sample_ratio`.
    pub parent_based: bool,
    /// Fraction of calls to sample, from 0 to 1, if the caller has made no sampling decision.
    pub sample_ratio: f64,
}

/// Trace sampler, as named by the OpenTelemetry specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceSampler {
    /// Samples all calls.
    AlwaysOn,
    /// Never samples.
    AlwaysOff,
    /// Samples a fraction of the calls.
    Ratio,
    /// Follows the sampling decision of the caller; samples all calls without one.
    ParentAlwaysOn,
    /// Follows the sampling decision of the caller; samples no calls without one.
    ParentAlwaysOff,
    /// Follows the sampling decision of the caller; samples a fraction of the calls without one.
    ParentRatio,
}

impl TraceSampler {
    pub(super) fn read(text: &str) -> Result<Self, ValueError> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "always_on" => TraceSampler::AlwaysOn,
            "always_off" => TraceSampler::AlwaysOff,
            "traceidratio" => TraceSampler::Ratio,
            "parentbased_always_on" => TraceSampler::ParentAlwaysOn,
            "parentbased_always_off" => TraceSampler::ParentAlwaysOff,
            "parentbased_traceidratio" => TraceSampler::ParentRatio,
            _ => {
                return Err("one of always_on, always_off, traceidratio, parentbased_always_on, \
                            parentbased_always_off, parentbased_traceidratio"
                    .to_owned());
            }
        })
    }

    /// Returns whether the caller's sampling decision takes precedence, and the fraction of the
    /// other calls to sample, from 0 to 1.
    fn resolve(self, ratio: f64) -> (bool, f64) {
        match self {
            TraceSampler::AlwaysOn => (false, 1.0),
            TraceSampler::AlwaysOff => (false, 0.0),
            TraceSampler::Ratio => (false, ratio),
            TraceSampler::ParentAlwaysOn => (true, 1.0),
            TraceSampler::ParentAlwaysOff => (true, 0.0),
            TraceSampler::ParentRatio => (true, ratio),
        }
    }
}

/// Parses an exporter name. Returns true for `otlp`, false for `none`.
pub(super) fn parse_exporter(text: &str) -> Result<bool, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "otlp" => Ok(true),
        "none" => Ok(false),
        _ => Err("one of otlp none".to_owned()),
    }
}

impl Settings {
    /// Returns the OTLP settings, or `None` if neither metrics nor traces are exported.
    ///
    /// # Errors
    ///
    /// Returns an error if the headers or resource attributes are malformed.
    pub fn otlp(&self) -> Result<Option<OtlpSettings>, SettingError> {
        let endpoint = |enabled: bool, own: &str| {
            let endpoint = if own.is_empty() { &self.otlp_endpoint } else { own };
            (enabled && !endpoint.is_empty()).then(|| endpoint.to_owned())
        };
        let metrics_endpoint = endpoint(self.metrics_exporter, &self.otlp_metrics_endpoint);
        let traces_endpoint = endpoint(self.traces_exporter, &self.otlp_traces_endpoint);
        let has_receiver = metrics_endpoint.is_some() || traces_endpoint.is_some();
        if !has_receiver || self.otel_sdk_disabled || !self.otlp_is_grpc() {
            return Ok(None);
        }
        let malformed = |names| SettingError::Conflict {
            names,
            advice: "write name=value,name=value; percent-encode commas (%2C)".to_owned(),
        };
        parse_pairs(self.otlp_headers.reveal()).ok_or_else(|| malformed("--otlp-headers"))?;
        let (parent_based, sample_ratio) = self.traces_sampler.resolve(self.traces_ratio);
        Ok(Some(OtlpSettings {
            metrics_endpoint,
            traces_endpoint,
            headers: self.otlp_headers.clone(),
            certificate: self.otlp_certificate.clone(),
            timeout: self.otlp_timeout,
            metrics_interval: self.otlp_metrics_interval,
            service: self.service_name.clone(),
            attributes: parse_pairs(&self.resource_attributes)
                .ok_or_else(|| malformed("--resource-attributes"))?,
            parent_based,
            sample_ratio,
        }))
    }

    /// Returns whether `--otlp-protocol` is `grpc`, the only supported protocol.
    pub(super) fn otlp_is_grpc(&self) -> bool {
        self.otlp_protocol.eq_ignore_ascii_case("grpc")
    }
}

impl OtlpSettings {
    /// Returns the request headers as name-value pairs.
    pub fn headers(&self) -> Vec<(String, String)> {
        // `Settings::otlp` has validated the headers.
        parse_pairs(self.headers.reveal()).unwrap_or_default()
    }
}

/// Parses `name=value,name=value`, where values are percent-encoded. Returns `None` if the text is
/// malformed.
fn parse_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let pair = |item: &str| {
        let (name, value) = item.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some(())?;
        Some((name.to_owned(), percent_decode(value.trim())?))
    };
    items.map(pair).collect()
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    fn read(environment: &[(&str, &str)]) -> Result<Option<OtlpSettings>, Vec<SettingError>> {
        let environment =
            environment.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        let sources = Sources { environment, ..Sources::default() };
        Settings::read(&sources).map(|(settings, _)| settings.otlp().expect("checked when read"))
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
    fn the_standard_variables_have_their_standard_meaning() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%2Cb, x=1"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1500"),
            ("OTEL_SERVICE_NAME", "limits"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!(settings.traces_endpoint.as_deref(), Some("http://traces:4317"));
        assert_eq!(settings.metrics_endpoint.as_deref(), Some("http://all:4317"));
        assert_eq!(settings.headers()[0], ("api-key".to_owned(), "a,b".to_owned()));
        assert_eq!(settings.timeout, Duration::from_millis(2_500));
        assert_eq!(settings.metrics_interval, Duration::from_millis(1_500));
        assert_eq!((settings.parent_based, settings.sample_ratio), (true, 0.25));
        assert_eq!(settings.attributes[0].1, "prod");
        assert!(!format!("{settings:?}").contains("a%2Cb"), "headers may hold a token");
    }

    #[test]
    fn a_malformed_list_is_rejected() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        for bad in ["novalue", "=x", "a=%zz", "a=%f"] {
            assert!(read(&[endpoint, ("OTEL_EXPORTER_OTLP_HEADERS", bad)]).is_err(), "{bad}");
            assert!(read(&[endpoint, ("OTEL_RESOURCE_ATTRIBUTES", bad)]).is_err(), "{bad}");
        }
    }
}
