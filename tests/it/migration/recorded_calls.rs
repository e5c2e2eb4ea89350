//! The recorded calls, and the rows of the page that lists the differences.

use std::path::Path;

use crate::support::grpc_client::{CallDescriptor, CallRequest};
use serde::Deserialize;
use serde_json::Value;
use tidegate::domain::{Override, Unit};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    #[serde(rename = "about")]
    _about: Vec<String>,
    pub calls: Vec<Call>,
}

/// A call, what envoyproxy/ratelimit answers, and what we do where that is another thing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub why: String,
    #[serde(default = "edge")]
    domain: String,
    ask: Vec<RecordedDescriptor>,
    #[serde(default)]
    hits: u32,
    pub there: Answer,
    pub here: Option<Answer>,
    pub row: Option<String>,
}

fn edge() -> String {
    "edge".to_owned()
}

/// `k=v,k2=v2` or `k=v:HITS`; the long form carries a limit.
#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedDescriptor {
    Short(String),
    Limited { entries: String, limit: (u32, String) },
}

/// An answer: a decision, or a gRPC code.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Answer {
    pub error: Option<String>,
    pub code: Option<String>,
    pub statuses: Vec<String>,
    pub headers: Option<String>,
    /// Compared where it is written.
    pub metadata: Option<Value>,
}

impl Call {
    pub fn question(&self) -> CallRequest {
        let descriptors = self.ask.iter().map(RecordedDescriptor::descriptor).collect();
        CallRequest { domain: self.domain.clone(), descriptors, hits: self.hits }
    }
}

impl RecordedDescriptor {
    fn descriptor(&self) -> CallDescriptor {
        let (text, limit) = match self {
            RecordedDescriptor::Short(text) => (text, None),
            RecordedDescriptor::Limited { entries, limit: (requests_per_unit, unit) } => {
                let unit = match unit.as_str() {
                    "year" => Unit::Year,
                    // The client has no word for it: sent as a unit that nobody knows.
                    _ => Unit::Week,
                };
                let limit =
                    Override { requests_per_unit: *requests_per_unit, unit, unit_multiplier: 1 };
                (entries, Some(limit))
            }
        };
        let (path, hits) = match text.rsplit_once(':') {
            Some((path, hits)) => (path, Some(hits.parse().unwrap())),
            None => (text.as_str(), None),
        };
        let entry = |entry: &str| {
            let (key, value) = entry.split_once('=').unwrap();
            (key.into(), value.into())
        };
        let entries = path.split(',').filter(|entry| !entry.is_empty()).map(entry).collect();
        CallDescriptor { entries, hits, limit, ..CallDescriptor::default() }
    }
}

pub fn recorded() -> Vec<Call> {
    let recorded: Recorded = serde_json::from_str(include_str!("calls.json")).unwrap();
    recorded.calls
}

/// The first cells of the tables of differences on the page.
pub fn rows() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/MIGRATION.md");
    let page = std::fs::read_to_string(page).unwrap();
    let sections = page.split("\n## ").filter(|section| {
        section.starts_with("Fixed\n") || section.starts_with("Different on purpose\n")
    });
    let lines = sections.flat_map(str::lines);
    lines.filter_map(|line| line.strip_prefix("| ")).map(str::to_owned).collect()
}
