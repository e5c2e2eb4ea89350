//! Metrics page in the OpenMetrics format, or in the older Prometheus text format for clients that
//! do not accept OpenMetrics.
//!
//! `admin` serves the page; `counters` counts the decisions.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::counters::Telemetry;
use super::metric::MetricSource;
use super::prometheus_writer::PrometheusWriter;

/// Media type of the OpenMetrics format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Media type of the older Prometheus text format.
pub const CONTENT_TYPE_PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Prefix of all metric names except those of the process and of envoyproxy/ratelimit.
pub(super) const METRIC_PREFIX: &str = "tidegate";

/// Renderer of the metrics page in the OpenMetrics and Prometheus text formats.
#[derive(Debug)]
pub struct MetricsPage {
    registry: Registry,
    has_ratelimit_names: bool,
}

impl MetricsPage {
    /// Creates a page with these metrics. Adds the prefix `tidegate_` to their names.
    pub fn new(metrics: MetricSource) -> Self {
        let mut registry = Registry::default();
        registry
            .sub_registry_with_prefix(METRIC_PREFIX)
            .register_collector(Box::new(SourceCollector(metrics)));
        MetricsPage { registry, has_ratelimit_names: false }
    }

    /// Adds the metrics of a source, whose names get no prefix.
    #[must_use]
    pub fn with_source(mut self, source: MetricSource) -> Self {
        self.registry.register_collector(Box::new(SourceCollector(source)));
        self
    }

    /// Adds the decision counters under the metric names of envoyproxy/ratelimit.
    #[must_use]
    pub fn with_ratelimit_names(mut self, telemetry: Arc<Telemetry>) -> Self {
        self.has_ratelimit_names = true;
        self.with_source(Arc::new(move |sink| telemetry.emit_ratelimit_names(sink)))
    }

    /// Returns whether the page has metrics under the names of envoyproxy/ratelimit. These names
    /// do not end in `_total`, so the counters have the type `unknown` in OpenMetrics. In the
    /// Prometheus text format, their type is `counter`.
    pub fn has_ratelimit_names(&self) -> bool {
        self.has_ratelimit_names
    }

    /// Renders the metrics page in the OpenMetrics format.
    ///
    /// # Errors
    ///
    /// Returns any error of the encoder. In practice, encoding never fails, because the output is
    /// a string.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Renders the metrics page in the Prometheus text format, version 0.0.4.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`text`](Self::text).
    pub fn plain_text(&self) -> Result<String, fmt::Error> {
        let mut writer = PlainTextWriter::default();
        prometheus_client::encoding::text::encode(&mut writer, &self.registry)?;
        Ok(writer.out)
    }
}

/// Prometheus collector that encodes the metrics of a source.
struct SourceCollector(MetricSource);

impl fmt::Debug for SourceCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceCollector")
    }
}

impl Collector for SourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut PrometheusWriter(&mut encoder))
    }
}

/// Writer that converts OpenMetrics text to the older Prometheus text format. In this format, the
/// family name of a counter includes `_total`, and there are no `# UNIT` and `# EOF` lines.
///
/// Converts line by line: the text of a policy with 125,000 rules takes 60 MB.
#[derive(Default)]
struct PlainTextWriter {
    out: String,
    /// Line whose end has not been written yet.
    line: String,
    last_help: String,
}

impl fmt::Write for PlainTextWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive('\n') {
            self.line += piece;
            if piece.ends_with('\n') {
                self.convert_line();
                self.line.clear();
            }
        }
        Ok(())
    }
}

impl PlainTextWriter {
    fn convert_line(&mut self) {
        let PlainTextWriter { out, line, last_help } = self;
        let text = line.trim_end();
        match text.strip_prefix("# ").and_then(|comment| comment.split_once(' ')) {
            // Hold the HELP line back: its metric name depends on the kind in the next line.
            Some(("HELP", help)) => help.clone_into(last_help),
            Some(("TYPE", kind)) => {
                let (name, kind) = kind.rsplit_once(' ').unwrap_or((kind, "unknown"));
                let help = last_help.strip_prefix(name).unwrap_or_default();
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    // The only families of this kind are the unsuffixed counters.
                    "unknown" => ("", "counter"),
                    kind => ("", kind),
                };
                *out += &format!("# HELP {name}{suffix}{help}\n# TYPE {name}{suffix} {kind}\n");
            }
            Some(_) => {}
            None if text == "# EOF" => {}
            None => *out += line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{DurationHistogram, Micros, RuleId};
    use crate::telemetry::RuleName;
    use crate::telemetry::metric::{
        MetricUnit, MetricValue, counter, emit_single, gauge, histogram, unsuffixed_counter,
    };

    fn test_metrics() -> MetricSource {
        let telemetry = Arc::new(Telemetry::new(0.8));
        let path = "d.key_\"quoted\"\nvalue";
        let rule = RuleName { domain: "d".into(), path: path.into() };
        telemetry.record_policy_load(RuleId(0), [rule], "abc", Micros(1_700_000_000_250_000));
        Arc::new(move |sink| {
            telemetry.emit(sink)?;
            emit_single(sink, &gauge("keys", "Counters held"), 7)?;
            let waits = DurationHistogram::default();
            waits.record(6_000);
            let family = histogram("waits", "Waits").in_unit(MetricUnit::Seconds);
            sink.write_family(&family, &mut |emit| {
                emit(&[("node", "n")], MetricValue::Histogram(waits.snapshot()))
            })?;
            let family = counter("busy", "Busy").in_unit(MetricUnit::Seconds);
            emit_single(sink, &family, 1_500_000)?;
            emit_single(sink, &unsuffixed_counter("theirs", "Bare"), 3)
        })
    }

    #[test]
    fn a_scrape_is_openmetrics_with_labels_of_the_policy_only() {
        let text = MetricsPage::new(test_metrics()).text().unwrap();
        assert!(text.ends_with("# EOF\n"), "{text}");
        for line in [
            r#"tidegate_rule_hits_total{domain="d",rule="d.key_\"quoted\"\nvalue"} 0"#,
            "tidegate_keys 7",
            "tidegate_config_load_success_total 1",
            "tidegate_config_last_reload_successful 1",
            "tidegate_config_last_reload_success_timestamp_seconds 1700000000.25",
            r#"tidegate_decisions_total{code="ok",source="memory"} 0"#,
            r#"tidegate_policy_info{fingerprint="abc"} 1"#,
            r#"tidegate_waits_seconds_bucket{le="0.005",node="n"} 0"#,
            r#"tidegate_waits_seconds_bucket{le="0.006",node="n"} 1"#,
            r#"tidegate_waits_seconds_bucket{le="+Inf",node="n"} 1"#,
            r#"tidegate_waits_seconds_sum{node="n"} 0.006"#,
            "tidegate_busy_seconds_total 1.5",
            "# TYPE tidegate_theirs unknown\ntidegate_theirs 3",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    #[test]
    fn the_older_format_has_the_same_series_under_its_own_family_names() {
        let scrape = MetricsPage::new(test_metrics());
        let (text, plain) = (scrape.text().unwrap(), scrape.plain_text().unwrap());
        let series = |text: &str| {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let (new, old): (Vec<String>, Vec<String>) = (series(&text), series(&plain));
        assert_eq!(new, old);
        assert!(plain.contains("# TYPE tidegate_decisions_total counter\n"), "{plain}");
        assert!(plain.contains("# HELP tidegate_decisions_total Decided calls"), "{plain}");
        assert!(plain.contains("# TYPE tidegate_theirs counter\n"), "{plain}");
        assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"), "{plain}");
    }
}
