//! Metrics, traces and logs.
//!
//! Telemetry observes decisions and never changes them. Label values come from the policy or the
//! settings. Only the rows of `detailed_counters`, whose number is bounded, contain values from
//! callers. `admin` serves the metrics page; `app::wiring` defines the metrics of stores and
//! connections.
//!
//! | file | contents |
//! |---|---|
//! | `calls_without_limit` | calls to which no limit applies: counters, and their summary in the log |
//! | `counters`, `rule_counters`, `hit_counts` | the counters of the process and of each rule |
//! | `detailed_counters`, `rule_metric_rows` | counters by request values; rows of the per-rule metrics |
//! | `metric`, `decision_metrics`, `compat_names` | metric families of Tidegate and envoyproxy/ratelimit |
//! | `prometheus`, `prometheus_writer` | the metrics page |
//! | [`otlp`], `otlp_metrics` | export of traces and metrics, sampling |
//! | `top_keys` | keys of each limit that are rejected most, use most, or are near the limit |
//! | `snapshot`, `recent_latency`, `history` | snapshot of the counters, latencies, and the last hour, for the live page |
//! | `lost_bills` | bills not charged in full, and the warning about them |
//! | `logging`, `refusal_log`, `near_log` | log output; logs of rejected calls and of limits that are near |

mod calls_without_limit;
mod compat_names;
mod counters;
mod decision_metrics;
mod detailed_counters;
mod history;
mod hit_counts;
mod logging;
mod lost_bills;
mod metric;
mod near_log;
pub mod otlp;
mod otlp_metrics;
mod prometheus;
mod prometheus_writer;
mod recent_latency;
mod refusal_log;
mod rule_counters;
mod rule_metric_rows;
mod snapshot;
mod top_keys;

pub use calls_without_limit::{Advise, NoLimitCalls, NoLimitCount};
pub use counters::Telemetry;
pub use history::{HISTORY_RULES_MAX, HistoryReport};
pub use logging::{LogHandle, init_logging};
pub use metric::{
    Labels, MetricFamily, MetricKind, MetricSink, MetricSource, MetricUnit, MetricValue,
    SeriesEmitter, counter, emit_single, gauge, histogram,
};
pub(crate) use metric::{
    Metric, counter_seconds, emit_rows, emit_series, emit_table, gauge_bytes, gauge_seconds,
    histogram_seconds, metrics,
};
pub use otlp_metrics::MetricsExporter;
pub(crate) use otlp_metrics::emit_exports;
pub use prometheus::{CONTENT_TYPE, CONTENT_TYPE_PLAIN, MetricsPage};
pub use rule_counters::RuleName;
pub use snapshot::{Latency, RejectedBills, RuleSnapshot, Snapshot};
pub use top_keys::{
    DRAIN_INTERVAL, LimitName, LimitResolver, TopBy, TopKey, TopKeys, TopLimit, TopReport,
    TopWindow,
};
