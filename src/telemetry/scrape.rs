//! The text of a scrape, in the OpenMetrics format.
//!
//! Not here: serving it (`admin`), counting (`cells`).

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::cells::{ALL_SOURCES, RuleName, Telemetry};
use super::tally::Tally;

/// The media type of a scrape.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A number that somebody else keeps, read at each scrape.
pub struct Kept {
    /// The metric's name, without our prefix.
    pub name: &'static str,
    /// What it says, with its unit.
    pub help: &'static str,
    /// It only ever grows: a counter.
    pub grows: bool,
    /// Reads it.
    pub read: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Everything that a scrape shows.
#[derive(Debug)]
pub struct Scrape(Registry);

impl Scrape {
    /// A scrape of these counters and kept numbers; every name begins with `tidegate_`.
    pub fn new(telemetry: Arc<Telemetry>, kept: Vec<Kept>) -> Self {
        let mut registry = Registry::with_prefix("tidegate");
        registry.register_collector(Box::new(Collected { telemetry, kept }));
        Scrape(registry)
    }

    /// The text. `Err` never in practice: writing into a string does not fail.
    ///
    /// # Errors
    ///
    /// What the encoder says.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0)?;
        Ok(text)
    }
}

#[derive(Debug)]
struct Collected {
    telemetry: Arc<Telemetry>,
    kept: Vec<Kept>,
}

struct Labels<'a, const N: usize>([(&'static str, &'a str); N]);

impl<const N: usize> EncodeLabelSet for Labels<'_, N> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }
}

/// A column of the rules' cells: its metric's name, its help, its value.
type Column = (&'static str, &'static str, fn(&Tally) -> u64);

const COLUMNS: [Column; 7] = [
    ("rule_hits", "Hits asked for, by rule", |tally| tally.total),
    ("rule_within_limit_hits", "Hits that passed", |tally| tally.within),
    ("rule_over_limit_hits", "Hits that were refused", |tally| tally.over),
    ("rule_near_limit_hits", "Hits above the near-limit share of the limit", |tally| tally.near),
    ("rule_shadow_mode_hits", "Hits over a limit in shadow mode", |tally| tally.shadow),
    (
        "rule_uncharged_hits",
        "Hits that fitted, of calls that another limit refused: they were not charged",
        |tally| tally.uncharged,
    ),
    ("rule_given_back_hits", "Hits that callers returned", |tally| tally.given_back),
];

/// The label of limits that callers brought along.
const OVERRIDES: &str = "(override)";

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.rules(&mut encoder)?;
        self.totals(&mut encoder)?;
        for one in &self.kept {
            let kind = if one.grows { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(one.name, one.help, None, kind)?;
            match one.grows {
                true => metric.encode_counter::<NoLabelSet, _, u64>(&(one.read)(), None)?,
                false => metric.encode_gauge(&(one.read)())?,
            }
        }
        encoder
            .encode_descriptor("build", "What is running", None, MetricType::Info)?
            .encode_info(&Labels([("version", env!("CARGO_PKG_VERSION"))]))
    }
}

impl Collected {
    fn rules(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let table = self.telemetry.tables().present.clone();
        let rows: Vec<(&RuleName, Tally)> =
            table.by_name.iter().map(|(name, cell)| (name, cell.read())).collect();
        let overrides = self.telemetry.overrides.read();
        for (name, help, column) in COLUMNS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (rule, tally) in &rows {
                let labels = Labels([("domain", &*rule.domain), ("rule", &*rule.path)]);
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&column(tally), None)?;
            }
            let labels = Labels([("domain", ""), ("rule", OVERRIDES)]);
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&column(&overrides), None)?;
        }
        Ok(())
    }

    fn totals(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let totals = self.telemetry.totals();
        let mut decisions = encoder.encode_descriptor(
            "decisions",
            "Calls decided, by code and by who decided",
            None,
            MetricType::Counter,
        )?;
        for (code, sums) in [("ok", totals.admitted), ("over_limit", totals.refused)] {
            for (source, sum) in ALL_SOURCES.iter().zip(sums) {
                decisions
                    .encode_family(&Labels([("code", code), ("source", source.word())]))?
                    .encode_counter::<NoLabelSet, _, u64>(&sum, None)?;
            }
        }
        let singles = [
            ("domain_not_found", "Calls for a domain that no policy has", totals.domain_not_found),
            (
                "global_shadow_mode",
                "Calls over a limit that global shadow mode let pass",
                totals.shadowed,
            ),
            ("config_load_success", "Policies that were loaded", totals.loads),
            ("config_load_error", "Policies that were refused at a reload", totals.load_errors),
        ];
        for (name, help, sum) in singles {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(&sum, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::RuleId;

    #[test]
    fn a_scrape_is_openmetrics_with_labels_of_the_policy_only() {
        let telemetry = Arc::new(Telemetry::new(0.8));
        let path = "d.key_\"quoted\"\nvalue";
        telemetry.loaded(RuleId(0), [RuleName { domain: "d".into(), path: path.into() }]);
        let keys = Kept { name: "keys", help: "Counters held", grows: false, read: Box::new(|| 7) };
        let text = Scrape::new(telemetry, vec![keys]).text().unwrap();
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(
            text.contains(
                r#"tidegate_rule_hits_total{domain="d",rule="d.key_\"quoted\"\nvalue"} 0"#
            ),
            "{text}"
        );
        assert!(text.contains("tidegate_keys 7"), "{text}");
        assert!(text.contains("tidegate_config_load_success_total 1"), "{text}");
        assert!(
            text.contains(r#"tidegate_decisions_total{code="ok",source="memory"} 0"#),
            "{text}"
        );
    }
}
