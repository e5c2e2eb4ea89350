//! What a metric is, whoever reads it: the one list that a scrape and an export are both made from.
//!
//! Not here: the metrics themselves (`shown`, `app`), how they are written (`scrape`, `otlp`).

use std::borrow::Cow;
use std::fmt;

use crate::domain::Distribution;

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It moves.
    Gauge,
    /// Counts per bucket.
    Histogram,
    /// It only grows, and its name has no suffix that says so.
    Bare,
}

/// What the number counts, where that belongs into the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds; values are microseconds.
    Seconds,
    /// Bytes.
    Bytes,
}

/// A metric: one name, any number of series.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name, without our prefix, its unit and the `_total` of counters.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
    /// Its unit.
    pub unit: Option<Unit>,
    /// The names of the labels of each of its series.
    pub labels: &'static [&'static str],
}

impl Family {
    /// A family without unit and labels.
    pub const fn new(name: &'static str, help: &'static str, kind: Kind) -> Self {
        Family { name, help, kind, unit: None, labels: &[] }
    }

    /// The same with a unit.
    #[must_use]
    pub const fn in_unit(self, unit: Unit) -> Self {
        Family { unit: Some(unit), ..self }
    }

    /// The same with labels.
    #[must_use]
    pub const fn with_labels(self, labels: &'static [&'static str]) -> Self {
        Family { labels, ..self }
    }

    /// Its name with its unit.
    pub fn full_name(&self) -> Cow<'static, str> {
        match self.unit {
            None => self.name.into(),
            Some(Unit::Seconds) => format!("{}_seconds", self.name).into(),
            Some(Unit::Bytes) => format!("{}_bytes", self.name).into(),
        }
    }
}

/// The value of a series. Numbers of a metric in seconds are in microseconds.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number.
    Whole(u64),
    /// What a histogram held.
    Buckets(Distribution),
}

/// A series' labels: names, and values of the policy or of the settings, never of callers.
pub type Labels<'a> = [(&'static str, &'a str)];

/// Takes one series of a metric.
pub type Put<'p> = &'p mut dyn FnMut(&Labels<'_>, Value) -> fmt::Result;

/// Somebody who writes metrics down.
pub trait Sink {
    /// Writes a metric; `fill` hands over its series, each with other labels.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    fn family(
        &mut self,
        family: &Family,
        fill: &mut dyn FnMut(Put<'_>) -> fmt::Result,
    ) -> fmt::Result;
}

/// Metrics of a part of the process: it hands them to whoever writes them down. Read at each scrape
/// and export, never on the way of a request.
pub type Figures = Box<dyn Fn(&mut dyn Sink) -> fmt::Result + Send + Sync>;

/// Writes a metric of one series without labels.
///
/// # Errors
///
/// What cannot be written.
pub fn single(sink: &mut dyn Sink, family: &Family, value: u64) -> fmt::Result {
    sink.family(family, &mut |put| put(&[], Value::Whole(value)))
}
