//! The refused keys as plain data. The names of the fields are what `/top` prints, so a change of
//! them is a change of the interface.
//!
//! Not here: counting them (`sketch`).

use serde::Serialize;

use super::Held;
use super::refusal_note::Values;
use super::space_saving::{DAY, HOUR, NOW, Shape, Span, Spans};
use crate::domain::Micros;

/// Keys that are listed of a limit.
const LISTED_MAX: usize = 10;

/// Who was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopReport {
    /// `shortened` or `hashed`.
    pub values: &'static str,
    /// Refusals that are in none of the lists, since the start: they came faster than they could be
    /// noted, or more limits refused than are kept.
    pub not_noted: u64,
    /// The last seconds.
    pub now: TopSpan,
    /// The last hour.
    pub last_hour: TopSpan,
    /// The last day.
    pub last_day: TopSpan,
}

/// A span of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopSpan {
    /// Its length at most; it may begin up to a twelfth of it later (now: a tenth).
    pub seconds: u64,
    /// The limits that refused, those that refused most first.
    pub limits: Vec<TopLimit>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopLimit {
    /// The policy's domain.
    pub domain: String,
    /// The rule's path, as metrics name it; `(override)` for limits that callers brought along.
    pub rule: String,
    /// The limit's own name.
    pub limit: Option<String>,
    /// Its latest refusal had no say (shadow mode), so that it limits nobody.
    pub shadow: bool,
    /// Checks that it refused, in shadow mode too.
    pub refused: u64,
    /// The keys that it refused most, at most ten.
    pub keys: Vec<TopKey>,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopKey {
    /// The entries that make its counter; with hashed values only their keys. Control characters
    /// and bytes that are no text are escaped.
    pub key: String,
    /// The counter's identity, 32 hexadecimal digits, as `explain` prints it.
    pub counter: String,
    /// It was refused at least so often.
    pub refused: u64,
    /// And at most so often.
    pub refused_at_most: u64,
}

pub(super) fn report(limits: &[Held], values: Values, not_noted: u64, now: Micros) -> TopReport {
    let span = |shape, of| span(limits, shape, of, now);
    TopReport {
        values: values.word(),
        not_noted,
        now: span(NOW, |spans| &spans.now),
        last_hour: span(HOUR, |spans| &spans.hour),
        last_day: span(DAY, |spans| &spans.day),
    }
}

fn span(limits: &[Held], shape: Shape, of: fn(&Spans) -> &Span, now: Micros) -> TopSpan {
    let read = limits.iter().filter_map(|held| {
        let (refused, keys) = of(&held.spans).read(now, LISTED_MAX);
        let keys = keys.into_iter().map(|key| TopKey {
            key: key.text.to_string(),
            counter: format!("{:032x}", key.counter),
            refused: key.least,
            refused_at_most: key.most,
        });
        (refused > 0).then(|| TopLimit {
            domain: held.name.domain.to_string(),
            rule: held.name.rule.to_string(),
            limit: (!held.name.limit.is_empty()).then(|| held.name.limit.to_string()),
            shadow: held.shadow,
            refused,
            keys: keys.collect(),
        })
    });
    let mut limits: Vec<TopLimit> = read.collect();
    limits.sort_by_key(|limit| std::cmp::Reverse(limit.refused));
    TopSpan { seconds: shape.seconds(), limits }
}
