//! Decisions with a store that may be slow or unavailable. [`stack`] leads a call through the states of
//! its decision, and the other modules are what these states need.
//!
//! | module | responsibility |
//! |---|---|
//! | [`stack`] | leads a call through the states of its decision |
//! | [`stack_stats`] | counts what the states of decisions did |
//! | [`deadline`] | bounds how long a call waits for the store |
//! | `refusal_cache` | repeats recent refusals without calling the store |
//! | `prepaid_hits` | takes hits of hot counters in advance and spends them without the store |
//! | `prepaid_lots` | sizes and holds the prepaid hits |
//! | `known_counters` | holds what this replica knows of counters, in a table of a fixed size |
//! | `last_known` | holds the last known states of counters, for the statuses of skipped checks |
//! | `remaining_checks` | selects the checks to send if some are already answered |
//! | `fallback` | decides unanswered checks on the local store |
//! | `own_limits` | decides calls while the remote store may lack charges of this replica |
//! | `ledger` | holds the hits that the remote store does not know of, or knows too many of |
//! | `missing_charges` | records why the remote store may lack charges, and for which limits |
//! | `late_charges` | charges hits on the remote store after their call was decided locally |
//! | `over_admission` | bounds the hits admitted beyond their limits |
//! | `background_refunds` | runs refunds, so that no caller waits for them |
//! | `merge` | merges remote, local and configured answers into one decision |
//! | `replica_limits` | holds this replica's share of each limit |
//! | [`outage`] | tracks outages of the remote store, with their start and reason |
//! | `recent_calls` | counts the calls of the last second |
//!
//! Not here: the arithmetic of limits (`algorithm`), the circuit breaker (`store::redis::client`).

pub mod deadline;
pub mod outage;
pub mod stack;
pub mod stack_stats;

mod background_refunds;
mod fallback;
mod known_counters;
mod last_known;
mod late_charges;
mod ledger;
mod merge;
mod missing_charges;
mod over_admission;
mod own_limits;
mod prepaid_hits;
mod prepaid_lots;
mod recent_calls;
mod refusal_cache;
mod remaining_checks;
mod replica_limits;
