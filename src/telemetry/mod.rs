//! What operators see: counters per rule and for the whole process, traces, and logs.
//!
//! It is told of decisions and alters none. Labels come from the policy's names, never from what a
//! caller sends. Not here: how the counters are served (`admin`), what is counted by stores.

mod cells;
mod log;
mod metrics;
pub mod otlp;
mod refusals;
mod rules;
mod scrape;
mod shown;
mod sums;
mod tally;
mod text;
mod theirs;
mod top;

pub use cells::Telemetry;
pub use log::{Format, Level, Logs, start_logs};
pub use metrics::{Family, Figures, Kind, Labels, Put, Sink, Unit, Value, single};
pub use rules::RuleName;
pub use scrape::{CONTENT_TYPE, CONTENT_TYPE_PLAIN, Scrape, Shown};
pub use sums::{Latency, RuleSums, Sums};
pub use top::{LimitName, Names, TAKE_IN_EVERY, Top, TopKey, TopLimit, TopReport, TopSpan, Values};
