//! gRPC server: every socket of the gRPC port, and the services behind it.
//!
//! Not here: encoding and decoding of messages (`wire`), the HTTP ports (`admin`).
//!
//! | file | what it does |
//! |---|---|
//! | `listener`, `workers` | accepts connections, dispatches them to worker threads, drains |
//! | `connection`, `preface`, `tls` | serves one connection: TLS handshake, HTTP/2, shutdown |
//! | `call_queue` | drops calls whose callers have left, and rejects late ones, under overload |
//! | `overload`, `filtered_reads`, `frame_filter` | limits the calls in flight while callers give up; refuses others unread |
//! | `authz` | determines which domains a caller may use, by its certificate |
//! | `router` | maps request paths to services |
//! | `receive`, `framing` | receives calls; gRPC framing |
//! | `call_tasks`, `answer_body` | runs calls and sends answers within the memory budget |
//! | `rls_service`, `health` | the rate limit service and the health service |
//! | `limits_service` | `tidegate.v1.Limits`: batches, single counters, overrides |
//! | `connection_registry` | tracks open connections; selects the longest idle one to close when full |
//! | `server_bounds`, `connection_stats` | limits on connections, and their metrics |

mod answer_body;
mod authz;
mod call_queue;
mod call_tasks;
mod connection;
mod connection_registry;
mod connection_stats;
mod filtered_reads;
mod frame_filter;
mod framing;
mod health;
mod limits_service;
mod listener;
mod overload;
mod preface;
mod receive;
mod rls_service;
mod router;
mod server_bounds;
mod tls;
mod workers;

pub use authz::{EVERY_DOMAIN, TlsCounters};
pub use connection_stats::ConnectionStats;
pub use health::{HEALTH_NAMES, Health};
pub(crate) use limits_service::{BatchDecisions, OverrideControl, OverridePage};
pub use listener::{Address, Drain, DrainingListener, ListenSettings, Listener};
pub use rls_service::{DEADLINE_MIN, Decide, RlsService, SERVICE_NAME};
pub use router::Router;
pub use server_bounds::ServerLimits;
pub use tls::{Tls, TlsMaterial};
