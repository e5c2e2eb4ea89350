//! The settings of OTLP, read together: what is sent where, as whom, and which calls are traced. The
//! standard variables of OpenTelemetry mean here what they mean elsewhere.
//!
//! Not here: the rows (`table`), sending (`telemetry`).

use std::path::PathBuf;
use std::time::Duration;

use super::value_types::Wrong;
use super::{SecretText, SettingError, Settings};

/// What is sent by OTLP.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// Where metrics go; `None`: nowhere.
    pub metrics: Option<String>,
    /// Where traces go; `None`: nowhere.
    pub traces: Option<String>,
    /// Sent along, name and value; as one text, since a value may be a token.
    pub headers: SecretText,
    /// Authority of the receivers' certificates.
    pub certificate: Option<PathBuf>,
    /// How long a receiver may take.
    pub timeout: Duration,
    /// How often metrics are sent.
    pub every: Duration,
    /// The service's name.
    pub service: String,
    /// What else is said of the process.
    pub attributes: Vec<(String, String)>,
    /// A caller that is in a trace decides whether its call is traced.
    pub heeds_parent: bool,
    /// Else this share of the calls, 0 to 1.
    pub ratio: f64,
}

/// Which calls are traced, by the standard's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceSampler {
    /// All of them.
    AlwaysOn,
    /// None.
    AlwaysOff,
    /// A share.
    Ratio,
    /// Those of callers that are traced, and all of callers in no trace.
    ParentAlwaysOn,
    /// Those of callers that are traced.
    ParentAlwaysOff,
    /// Those of callers that are traced, and a share of callers in no trace.
    ParentRatio,
}

impl TraceSampler {
    pub(super) fn read(text: &str) -> Result<Self, Wrong> {
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

    /// Whether the caller's word is heeded, and the share of the others.
    fn means(self, ratio: f64) -> (bool, f64) {
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

/// Whether a signal is sent: `otlp` or `none`.
pub(super) fn exporter(text: &str) -> Result<bool, Wrong> {
    match text.to_ascii_lowercase().as_str() {
        "otlp" => Ok(true),
        "none" => Ok(false),
        _ => Err("one of otlp none".to_owned()),
    }
}

impl Settings {
    /// The settings of OTLP; `None` where nothing is sent.
    ///
    /// # Errors
    ///
    /// Lists that cannot be read.
    pub fn otlp(&self) -> Result<Option<OtlpSettings>, SettingError> {
        let place = |sends: bool, own: &str| {
            let place = if own.is_empty() { &self.otlp_endpoint } else { own };
            (sends && !place.is_empty()).then(|| place.to_owned())
        };
        let metrics = place(self.metrics_exporter, &self.otlp_metrics_endpoint);
        let traces = place(self.traces_exporter, &self.otlp_traces_endpoint);
        let silent = metrics.is_none() && traces.is_none();
        if silent || self.otel_sdk_disabled || !self.otlp_is_grpc() {
            return Ok(None);
        }
        let wrong = |names| SettingError::Together {
            names,
            way_out: "name=value, with commas between them; odd characters as %2C".to_owned(),
        };
        pairs(self.otlp_headers.reveal()).ok_or_else(|| wrong("--otlp-headers"))?;
        let (heeds_parent, ratio) = self.traces_sampler.means(self.traces_ratio);
        Ok(Some(OtlpSettings {
            metrics,
            traces,
            headers: self.otlp_headers.clone(),
            certificate: self.otlp_certificate.clone(),
            timeout: self.otlp_timeout,
            every: self.otlp_metrics_interval,
            service: self.service_name.clone(),
            attributes: pairs(&self.resource_attributes)
                .ok_or_else(|| wrong("--resource-attributes"))?,
            heeds_parent,
            ratio,
        }))
    }

    /// Whether the protocol is the one that is spoken.
    pub(super) fn otlp_is_grpc(&self) -> bool {
        self.otlp_protocol.eq_ignore_ascii_case("grpc")
    }
}

impl OtlpSettings {
    /// Headers, name and value.
    pub fn headers(&self) -> Vec<(String, String)> {
        // They were read once already.
        pairs(self.headers.reveal()).unwrap_or_default()
    }
}

/// `name=value,name=value`, with percent signs for what would be misread. `None` if it is not that.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let pair = |item: &str| {
        let (name, value) = item.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some(())?;
        Some((name.to_owned(), decoded(value.trim())?))
    };
    items.map(pair).collect()
}

fn decoded(text: &str) -> Option<String> {
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
    fn nothing_is_sent_unless_somebody_says_where() {
        assert!(read(&[]).unwrap().is_none());
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        assert!(read(&[endpoint, ("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
        assert!(read(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]).unwrap().is_none());
        let none = ("OTEL_TRACES_EXPORTER", "none");
        let settings = read(&[endpoint, none]).unwrap().unwrap();
        assert_eq!((settings.traces, settings.metrics.as_deref()), (None, Some("http://c:4317")));
    }

    #[test]
    fn the_standard_variables_mean_what_they_mean_elsewhere() {
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
        assert_eq!(settings.traces.as_deref(), Some("http://traces:4317"));
        assert_eq!(settings.metrics.as_deref(), Some("http://all:4317"));
        assert_eq!(settings.headers()[0], ("api-key".to_owned(), "a,b".to_owned()));
        assert_eq!(settings.timeout, Duration::from_millis(2_500));
        assert_eq!(settings.every, Duration::from_millis(1_500));
        assert_eq!((settings.heeds_parent, settings.ratio), (true, 0.25));
        assert_eq!(settings.attributes[0].1, "prod");
        assert!(!format!("{settings:?}").contains("a%2Cb"), "headers may hold a token");
    }

    #[test]
    fn a_list_that_cannot_be_read_is_refused() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        for bad in ["novalue", "=x", "a=%zz", "a=%f"] {
            assert!(read(&[endpoint, ("OTEL_EXPORTER_OTLP_HEADERS", bad)]).is_err(), "{bad}");
            assert!(read(&[endpoint, ("OTEL_RESOURCE_ATTRIBUTES", bad)]).is_err(), "{bad}");
        }
    }
}
