//! The words of the trade as plain values: what is asked, which limits apply, what a store
//! answers, what the caller is told.
//!
//! Not here: how anything is counted, matched, stored, encoded or configured. This room uses the
//! standard library only and imports nothing else of ours.

mod calendar;
mod check;
mod decision;
mod escaping;
mod fraction;
mod histogram;
mod holder_token;
mod limit;
mod outcome;
mod request;
mod time;
mod trace;

pub use calendar::{Calendar, Span, Windows};
pub use check::{Accounting, Call, Check, Holder, Key, Op, Role};
pub use decision::{
    CheckEvent, Code, Decision, LimitedBy, Observer, RefusalEvent, RpcOutcome, RuleId, Status,
    StatusLimit,
};
pub use escaping::{escaped, needs_escape};
pub use fraction::Fraction;
pub use histogram::{Distribution, Histogram, SIZES, Sizes, WAITS_US, Waits, add_to};
pub use holder_token::HolderToken;
pub use limit::{
    Algorithm, Bucket, Charge, Concurrency, FixedWindow, Hybrid, Limit, OnStoreFailure, Rate,
    Refill, SlidingLog, SlidingWindow, Unit, Window,
};
pub use outcome::{Answer, Answers, ChargeRecord, Executed, Outcome, Receipt, Source, Verdict};
pub use request::{Descriptor, Entry, Override, Request};
pub use time::{Hits, Micros};
pub use trace::{NodeCall, Parent, Trace, TraceRecord, TracedDecision};
