//! Decisions on the memory store, from policy text to response code: envoyproxy/ratelimit's request
//! semantics, which Tidegate keeps, fixes or extends.
//!
//! Not here: the wire format (`grpc`), a real Envoy (`envoy`), rule matching (`matcher`).

mod accounting;
mod bills;
mod block;
mod charge_failures_only;
mod check_events;
mod concurrency;
mod consumer_classes;
mod descriptor_status;
mod dry_run;
mod hits_addend;
mod limit_lists;
mod not_asked;
mod overall_code;
mod quota_groups;
mod quota_mode;
mod ratelimit_samples;
mod rejecting_limit;
mod request_override;
mod reserve;
mod retry_after;
mod separate_counters;
mod soft_limits;
mod test_decider;
mod window_edge;
mod work_bound;
