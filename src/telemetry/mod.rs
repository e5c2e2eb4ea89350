//! What operators see: counters per rule and for the whole process, and logs.
//!
//! It is told of decisions and alters none. Labels come from the policy's names, never from what a
//! caller sends. Not here: how the counters are served (`admin`), what is counted by stores.

mod cells;
mod log;
mod scrape;
mod sums;
mod tally;
mod top;

pub use cells::{RuleName, Telemetry};
pub use log::{Format, Level, Logs, start_logs};
pub use scrape::{CONTENT_TYPE, Kept, Scrape};
pub use sums::{Latency, RuleSums, Sums};
pub use top::{LimitName, Names, TAKE_IN_EVERY, Top, TopKey, TopLimit, TopReport, TopSpan, Values};
