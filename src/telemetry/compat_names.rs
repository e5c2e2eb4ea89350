//! The same counters under the Prometheus names of envoyproxy/ratelimit, for dashboards and alerts
//! that move along with their service.
//!
//! As there: counters without `_total`, the rule's path as `key1` and `key2`, what lies deeper
//! summed up. Not here: our own names (`shown`).

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::compat_stats::Tally;
use super::counters::Telemetry;
use super::metric::{Family, Kind, Sink, Unit, Value};
use super::prometheus_writer::Text;
use crate::domain::RpcOutcome;

/// A counter per rule: its name, its help, its value.
type Column = (&'static str, &'static str, fn(&Tally) -> u64);

const COLUMNS: [Column; 5] = [
    ("ratelimit_service_rate_limit_total_hits", "Hits asked for", |tally| tally.total),
    ("ratelimit_service_rate_limit_within_limit", "Hits that passed", |tally| tally.within),
    ("ratelimit_service_rate_limit_over_limit", "Hits that were refused", |tally| tally.over),
    ("ratelimit_service_rate_limit_near_limit", "Hits near the limit", |tally| tally.near),
    ("ratelimit_service_rate_limit_shadow_mode", "Hits over a limit in shadow mode", |tally| {
        tally.shadow
    }),
];

const METHOD: [(&str, &str); 1] = [("grpc_method", "ShouldRateLimit")];
const REQUESTS: Family =
    Family::new("ratelimit_service_total_requests", "Calls answered", Kind::Bare);
const RESPONSE_TIME: Family = Family::new(
    "ratelimit_service_response_time",
    "Time from receiving a call to its response",
    Kind::Histogram,
)
.in_unit(Unit::Seconds);
const ERRORS: Family = Family::new(
    "ratelimit_service_should_rate_limit_error",
    "Calls without a decision",
    Kind::Bare,
);

/// Shows the counters under their names.
#[derive(Debug)]
pub(super) struct CompatNames(pub(super) Arc<Telemetry>);

impl Collector for CompatNames {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        show(&self.0, &mut Text(&mut encoder))
    }
}

fn show(telemetry: &Telemetry, sink: &mut dyn Sink) -> fmt::Result {
    let tables = telemetry.tables();
    let mut rows: BTreeMap<[String; 3], Tally> = BTreeMap::new();
    for (rule, cell) in &tables.present.by_name {
        let [key1, key2] = keys(&rule.domain, &rule.path);
        rows.entry([rule.domain.to_string(), key1, key2]).or_default().add(&cell.read());
    }
    for (name, help, column) in COLUMNS {
        sink.family(&Family::new(name, help, Kind::Bare), &mut |put| {
            rows.iter().try_for_each(|([domain, key1, key2], tally)| {
                let labels = [("domain", domain.as_str()), ("key1", key1), ("key2", key2)];
                let known = if key2.is_empty() { &labels[..2] } else { &labels };
                put(known, Value::Whole(column(tally)))
            })
        })?;
    }
    let totals = telemetry.totals();
    let calls = totals.ended.iter().sum();
    sink.family(&REQUESTS, &mut |put| put(&METHOD, Value::Whole(calls)))?;
    sink.family(&RESPONSE_TIME, &mut |put| put(&METHOD, Value::Buckets(totals.took.clone())))?;
    let of = |ending: RpcOutcome| totals.ended[ending as usize];
    sink.family(&ERRORS, &mut |put| {
        let store = of(RpcOutcome::Unavailable);
        let service = of(RpcOutcome::Invalid) + of(RpcOutcome::Late);
        put(&[("err_type", "redis_error")], Value::Whole(store))?;
        put(&[("err_type", "service_error")], Value::Whole(service))
    })?;
    let loads = [
        ("ratelimit_service_config_load_success", totals.loads),
        ("ratelimit_service_config_load_error", totals.load_errors),
    ];
    loads.into_iter().try_for_each(|(name, sum)| {
        let family = Family::new(name, "Policy loads", Kind::Bare);
        sink.family(&family, &mut |put| put(&[], Value::Whole(sum)))
    })
}

/// The first two levels of a rule's path, written as they write them: split at dots, those of an
/// address and what their statistics cannot carry become underscores.
fn keys(domain: &str, path: &str) -> [String; 2] {
    let path = path.strip_prefix(domain).and_then(|rest| rest.strip_prefix('.')).unwrap_or(path);
    let clean = path.replace([':', '|'], "_");
    let clean = without_addresses(&clean);
    let mut levels = clean.split('.').map(str::to_owned);
    [levels.next().unwrap_or_default(), levels.next().unwrap_or_default()]
}

fn without_addresses(path: &str) -> String {
    // An address is four numbers between dots, of which the first may follow a key and `_`.
    let parts: Vec<&str> = path.split('.').collect();
    let mut out = String::with_capacity(path.len());
    let mut at = 0;
    while at < parts.len() {
        if at > 0 {
            out.push('.');
        }
        let four = parts.get(at..at + 4).filter(|four| {
            let first = four[0].rsplit('_').next().unwrap_or_default();
            let last = four[3].split('_').next().unwrap_or_default();
            format!("{first}.{}.{}.{last}", four[1], four[2]).parse::<Ipv4Addr>().is_ok()
        });
        match four {
            Some(four) => {
                out += &four.join("_");
                at += 4;
            }
            None => {
                out += parts[at];
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cut_into_their_two_keys() {
        let cut = |path| keys("edge", path);
        assert_eq!(cut("edge.client"), ["client", ""]);
        assert_eq!(cut("edge.path_a.client.deeper"), ["path_a", "client"]);
        assert_eq!(
            cut("edge.remote_address_10.0.0.1.client"),
            ["remote_address_10_0_0_1", "client"]
        );
        assert_eq!(cut("edge.time_10:30|x"), ["time_10_30_x", ""]);
        assert_eq!(cut("edge.host_a.example.org"), ["host_a", "example"], "as there");
    }
}
