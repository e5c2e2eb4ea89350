//! Report of the most rejected keys. The structs are serialized as the JSON of `/top`, so renaming
//! a field changes the interface.

use serde::Serialize;

use super::LimitEntry;
use super::space_saving::WINDOW_SHAPES;
use crate::domain::{Micros, ValueDisplay};

/// Maximum number of keys listed per limit.
const LISTED_KEYS_MAX: usize = 10;

/// Response of `/top`: the most rejected keys of each limit in three windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopReport {
    /// Display format of descriptor values: `shortened` or `hashed`.
    pub values: &'static str,
    /// Number of rejections since startup that are missing from all lists. Possible reasons: they
    /// arrived faster than they could be recorded, more than 64 limits rejected calls, or the rule
    /// was removed from the policy.
    pub unrecorded: u64,
    /// Rejections in a sliding window over the last ten seconds.
    pub now: TopWindow,
    /// Rejections in a sliding window over the last hour.
    pub last_hour: TopWindow,
    /// Rejections in a sliding window over the last 24 hours.
    pub last_day: TopWindow,
}

/// Rejections of all limits within one sliding window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopWindow {
    /// Maximum length of the window in seconds. Because the newest bucket is still filling, the
    /// window can be shorter by up to one bucket: a tenth of the window for `now`, a twelfth for
    /// the other windows.
    pub seconds: u64,
    /// Limits with rejections, most rejections first.
    pub limits: Vec<TopLimit>,
}

/// Rejections of one limit within a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopLimit {
    /// Name of the limit's domain.
    pub domain: String,
    /// Path of the rule, as in metrics; `(override)` for request overrides.
    pub rule: String,
    /// Name of the limit within its rule; `None` if unnamed.
    pub limit: Option<String>,
    /// Whether the refusals did not reject their calls, because of shadow mode or because a quota
    /// group of the call passes. A limit with refusals of both kinds is listed twice.
    pub shadow: bool,
    /// Number of refused checks in the window.
    pub refused: u64,
    /// Most rejected keys, at most ten.
    pub keys: Vec<TopKey>,
}

/// Rejections of one key within a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopKey {
    /// Descriptor entries of the counter, with control characters and invalid UTF-8 escaped. If
    /// values are hashed, contains only the keys of the entries.
    pub key: String,
    /// Identity of the counter, 32 hexadecimal digits, as printed by `tidegate explain`.
    pub counter: String,
    /// Lower bound of the number of rejections.
    pub refused: u64,
    /// Upper bound of the number of rejections.
    pub refused_at_most: u64,
}

pub(super) fn build_report(
    limits: &[LimitEntry],
    values: ValueDisplay,
    unrecorded: u64,
    now: Micros,
) -> TopReport {
    let at = std::array::from_fn(|at| build_window(limits, at, now));
    let [now, last_hour, last_day] = at;
    TopReport { values: values.as_str(), unrecorded, now, last_hour, last_day }
}

/// Lists the rejected keys in the windows at one position of [`WINDOW_SHAPES`].
fn build_window(limits: &[LimitEntry], at: usize, now: Micros) -> TopWindow {
    let listed = limits.iter().filter_map(|limit| {
        let (refused, keys) = limit.windows.0[at].top(now, LISTED_KEYS_MAX);
        let keys = keys.into_iter().map(|key| TopKey {
            key: key.text.to_string(),
            counter: format!("{:032x}", key.counter),
            refused: key.lower_bound,
            refused_at_most: key.upper_bound,
        });
        (refused > 0).then(|| TopLimit {
            domain: limit.name.domain.to_string(),
            rule: limit.name.rule.to_string(),
            limit: (!limit.name.limit.is_empty()).then(|| limit.name.limit.to_string()),
            shadow: limit.id.1,
            refused,
            keys: keys.collect(),
        })
    });
    let mut limits: Vec<TopLimit> = listed.collect();
    limits.sort_by_key(|limit| std::cmp::Reverse(limit.refused));
    TopWindow { seconds: WINDOW_SHAPES[at].seconds(), limits }
}
