//! The report of the most rejected keys as plain data. The field names are those of `/top`, so
//! renaming one changes the interface.
//!
//! Not here: counting (`space_saving`).

use serde::Serialize;

use super::LimitEntry;
use super::refusal_note::ValueDisplay;
use super::space_saving::{DAY, HOUR, KeyWindow, KeyWindows, NOW, WindowShape};
use crate::domain::Micros;

/// Keys listed per limit.
const LISTED_MAX: usize = 10;

/// The most rejected keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopReport {
    /// `shortened` or `hashed`.
    pub values: &'static str,
    /// Rejections since the start that are in none of the lists: they came faster than they could be
    /// recorded, or more limits rejected calls than are kept.
    pub not_noted: u64,
    /// The last seconds.
    pub now: TopWindow,
    /// The last hour.
    pub last_hour: TopWindow,
    /// The last day.
    pub last_day: TopWindow,
}

/// A window of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopWindow {
    /// Its maximum length. It may be shorter by up to a twelfth (`now`: by a tenth).
    pub seconds: u64,
    /// The limits that rejected something, most rejections first.
    pub limits: Vec<TopLimit>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopLimit {
    /// The policy's domain.
    pub domain: String,
    /// The rule's path, as in metrics; `(override)` for request overrides.
    pub rule: String,
    /// The limit's own name.
    pub limit: Option<String>,
    /// Whether its latest rejection was in shadow mode, so that it limits nobody.
    pub shadow: bool,
    /// Rejected checks, those in shadow mode included.
    pub refused: u64,
    /// The keys that it rejected most, at most ten.
    pub keys: Vec<TopKey>,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopKey {
    /// The entries of its counter; with hashed values only their keys. Control characters and bytes
    /// that are not UTF-8 are escaped.
    pub key: String,
    /// The counter's identity, 32 hexadecimal digits, as `explain` prints it.
    pub counter: String,
    /// A lower bound of its rejections.
    pub refused: u64,
    /// An upper bound.
    pub refused_at_most: u64,
}

pub(super) fn report(
    limits: &[LimitEntry],
    values: ValueDisplay,
    not_noted: u64,
    now: Micros,
) -> TopReport {
    let window = |shape, select| window(limits, shape, select, now);
    TopReport {
        values: values.as_str(),
        not_noted,
        now: window(NOW, |windows| &windows.now),
        last_hour: window(HOUR, |windows| &windows.hour),
        last_day: window(DAY, |windows| &windows.day),
    }
}

fn window(
    limits: &[LimitEntry],
    shape: WindowShape,
    select: fn(&KeyWindows) -> &KeyWindow,
    now: Micros,
) -> TopWindow {
    let listed = limits.iter().filter_map(|limit| {
        let (refused, keys) = select(&limit.windows).top(now, LISTED_MAX);
        let keys = keys.into_iter().map(|key| TopKey {
            key: key.text.to_string(),
            counter: format!("{:032x}", key.counter),
            refused: key.least,
            refused_at_most: key.most,
        });
        (refused > 0).then(|| TopLimit {
            domain: limit.name.domain.to_string(),
            rule: limit.name.rule.to_string(),
            limit: (!limit.name.limit.is_empty()).then(|| limit.name.limit.to_string()),
            shadow: limit.shadow,
            refused,
            keys: keys.collect(),
        })
    });
    let mut limits: Vec<TopLimit> = listed.collect();
    limits.sort_by_key(|limit| std::cmp::Reverse(limit.refused));
    TopWindow { seconds: shape.seconds(), limits }
}
