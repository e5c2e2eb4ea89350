//! What operators see: counters per rule and for the whole process, traces, and logs.
//!
//! It is told of decisions and alters none. Labels come from the policy's names, never from what a
//! caller sends. Not here: how the counters are served (`admin`), what is counted by stores.

mod compat_names;
mod compat_stats;
mod counters;
mod families;
mod logging;
mod metric;
pub mod otlp;
mod prometheus;
mod prometheus_writer;
mod refusal_log;
mod rule_counters;
mod snapshot;
mod top;

pub use counters::Telemetry;
#[cfg(test)]
pub(crate) use families::families;
pub use logging::{Format, Level, Logs, start_logs};
pub use metric::{Family, Figures, Kind, Labels, Put, Sink, Unit, Value, single};
pub use prometheus::{CONTENT_TYPE, CONTENT_TYPE_PLAIN, Scrape, Shown};
pub use rule_counters::RuleName;
pub use snapshot::{Latency, RuleSnapshot, Snapshot};
pub use top::{LimitName, Names, TAKE_IN_EVERY, Top, TopKey, TopLimit, TopReport, TopSpan, Values};
