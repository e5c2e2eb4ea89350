//! The text of a scrape: OpenMetrics, and the older format of Prometheus for whoever asks for no
//! more than text.
//!
//! Not here: serving it (`admin`), counting (`cells`).

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::compat_names::CompatNames;
use super::counters::Telemetry;
use super::metric::{Figures, Sink};
use super::prometheus_writer::Text;

/// The media type of a scrape.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of a scrape in the older format.
pub const CONTENT_TYPE_PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What every name of ours begins with.
pub(super) const PREFIX: &str = "tidegate";

/// Everything that is shown: by a scrape and by an export, from the same numbers.
pub struct Shown {
    telemetry: Arc<Telemetry>,
    figures: Vec<Figures>,
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shown").field("telemetry", &self.telemetry).finish_non_exhaustive()
    }
}

impl Shown {
    /// What telemetry counts, and other rooms' figures.
    pub fn new(telemetry: Arc<Telemetry>, figures: Vec<Figures>) -> Self {
        Shown { telemetry, figures }
    }

    /// Hands over everything.
    ///
    /// # Errors
    ///
    /// What the sink says.
    pub fn show(&self, sink: &mut dyn Sink) -> fmt::Result {
        self.telemetry.show(sink)?;
        self.figures.iter().try_for_each(|figures| figures(sink))
    }
}

/// A page of metrics.
#[derive(Debug)]
pub struct Scrape(Registry);

impl Scrape {
    /// A scrape of these numbers; every name begins with `tidegate_`.
    pub fn new(shown: Arc<Shown>) -> Self {
        let mut registry = Registry::default();
        registry.sub_registry_with_prefix(PREFIX).register_collector(Box::new(Ours(shown)));
        Scrape(registry)
    }

    /// The same, and besides what is counted under the names of envoyproxy/ratelimit.
    #[must_use]
    pub fn with_their_names(mut self, telemetry: Arc<Telemetry>) -> Self {
        self.0.register_collector(Box::new(CompatNames(telemetry)));
        self
    }

    /// The text, in OpenMetrics. `Err` never in practice: writing into a string does not fail.
    ///
    /// # Errors
    ///
    /// What the encoder says.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0)?;
        Ok(text)
    }

    /// The same in the older format.
    ///
    /// # Errors
    ///
    /// As [`text`](Self::text).
    pub fn plain_text(&self) -> Result<String, fmt::Error> {
        Ok(plain(&self.text()?))
    }
}

#[derive(Debug)]
struct Ours(Arc<Shown>);

impl Collector for Ours {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.show(&mut Text(&mut encoder))
    }
}

/// OpenMetrics in the older format's words: there a counter's name has its `_total`, and units and
/// the end are not told.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut helps = String::new();
    for line in text.lines() {
        let told = line.strip_prefix("# ").and_then(|told| told.split_once(' '));
        match told {
            // Until its kind is known the counter's name is not.
            Some(("HELP", help)) => help.clone_into(&mut helps),
            Some(("TYPE", told)) => {
                let (name, kind) = told.rsplit_once(' ').unwrap_or((told, "unknown"));
                let help = helps.strip_prefix(name).unwrap_or_default();
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                out += &format!("# HELP {name}{suffix}{help}\n# TYPE {name}{suffix} {kind}\n");
            }
            Some(_) => {}
            None if line == "# EOF" => {}
            None => {
                out += line;
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Micros, RuleId, Waits};
    use crate::telemetry::{Family, Kind, RuleName, Unit, Value, single};

    fn shown() -> Arc<Shown> {
        let telemetry = Arc::new(Telemetry::new(0.8));
        let path = "d.key_\"quoted\"\nvalue";
        let rule = RuleName { domain: "d".into(), path: path.into() };
        telemetry.loaded(RuleId(0), [rule], "abc", Micros(1_700_000_000_250_000));
        let keys: Figures = Box::new(|sink| {
            single(sink, &Family::new("keys", "Counters held", Kind::Gauge), 7)?;
            let waits = Waits::default();
            waits.note(6_000);
            let family = Family::new("waits", "Waits", Kind::Histogram).in_unit(Unit::Seconds);
            sink.family(&family, &mut |put| put(&[("node", "n")], Value::Buckets(waits.read())))?;
            let family = Family::new("busy", "Busy", Kind::Counter).in_unit(Unit::Seconds);
            single(sink, &family, 1_500_000)?;
            single(sink, &Family::new("theirs", "Bare", Kind::Bare), 3)
        });
        Arc::new(Shown::new(telemetry, vec![keys]))
    }

    #[test]
    fn a_scrape_is_openmetrics_with_labels_of_the_policy_only() {
        let text = Scrape::new(shown()).text().unwrap();
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
    fn the_older_format_has_the_same_series_under_the_names_that_it_wants() {
        let scrape = Scrape::new(shown());
        let (text, plain) = (scrape.text().unwrap(), scrape.plain_text().unwrap());
        let series = |text: &str| {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let (new, old): (Vec<String>, Vec<String>) = (series(&text), series(&plain));
        assert_eq!(new, old);
        assert!(plain.contains("# TYPE tidegate_decisions_total counter\n"), "{plain}");
        assert!(plain.contains("# HELP tidegate_decisions_total Calls decided"), "{plain}");
        assert!(plain.contains("# TYPE tidegate_theirs untyped\n"), "{plain}");
        assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"), "{plain}");
    }
}
