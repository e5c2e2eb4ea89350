//! Types that all modules share, as plain values: requests, limits, checks, outcomes, decisions.
//!
//! Not here: counting, matching, storage, encoding, configuration. This module imports only the
//! standard library.

mod admission;
mod calendar;
mod decision;
mod descriptor_text;
mod failure_kind;
#[cfg(test)]
pub(crate) mod fixtures;
mod fraction;
mod held_memory;
mod histogram;
mod http_reply;
mod limit;
mod limit_check;
mod lock;
mod log_limiter;
mod named_enum;
mod outcome;
mod override_record;
mod permissions;
mod printable_text;
mod repeated_counters;
mod request;
mod request_bounds;
mod setting_words;
mod time;
mod trace;
mod unreadable_callers;

pub use admission::Admission;
pub use calendar::{Anchor, Calendar, CalendarWindows, WindowBounds};
pub use decision::{
    CheckEvent, Code, Decision, DetailedCheck, HoldId, InvalidReason, KeyEvent, LimitedBy,
    LossCause, LostBill, Mark, NearEvent, NoLimitReason, Observer, RpcOutcome, RuleId, Status,
    StatusLimit, WaitPrecision,
};
pub use descriptor_text::{format_descriptor, parse_descriptor};
pub use failure_kind::FailureKind;
pub use fraction::Fraction;
pub use held_memory::{CALLER_FLOOR_BYTES, CallPlace, CallerMemory, HeldBuffer, HeldMemory, Hold};
pub use histogram::{
    BATCH_SIZE_BOUNDS, BatchSizeHistogram, DURATION_BOUNDS_US, DurationHistogram, Histogram,
    HistogramSnapshot, add_relaxed,
};
pub use http_reply::HttpReply;
pub use limit::{
    Algorithm, Bucket, Charge, Concurrency, FixedWindow, Hybrid, Limit, OnStoreFailure, Rate,
    Refill, Reserve, SlidingLog, SlidingWindow, Unit, Window,
};
pub use limit_check::{
    Accounting, Call, Check, CounterKey, Holder, HolderToken, Op, OwnedCall, Role,
};
pub use lock::Lock;
pub use log_limiter::{LogLimiter, SuppressedLines};
pub(crate) use named_enum::{NamedEnum, named_enum};
pub use outcome::{
    Answer, Answers, ChargeRecord, ExecutionStatus, LateFate, LateReply, Outcome, Receipt, Source,
    Verdict,
};
pub use override_record::{
    Merged, OVERRIDES_MAX, OverrideRecord, OverrideTable, RECORD_BYTES_MAX, RECORDS_BYTES_MAX,
    RECORDS_MAX, TOMBSTONE_LIFETIME,
};
pub use permissions::{CounterAccess, DomainGrant, Permissions};
pub use printable_text::{
    escaped, escaped_bytes, escaped_prefix, nearest_word, needs_escape, truncate_utf8, with_causes,
};
pub use repeated_counters::RepeatedCounters;
pub use request::{Descriptor, Entry, HoldRequest, Override, Request};
pub use request_bounds::{Bounds, CALL_WORK_MAX};
pub use setting_words::{
    LineFormat, OtlpProtocol, ResetFormat, RetryAfterFormat, ValueDisplay, Verbosity,
};
pub use time::{Hits, Micros};
pub use trace::{NodeCall, Trace, TraceParent, TraceRecord, TracedDecision};
pub use unreadable_callers::{PREFACE_BYTES, PortProtocol, UnreadableCallers, UnreadableKind};
