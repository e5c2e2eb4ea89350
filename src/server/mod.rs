//! The server: every socket of the gRPC port, and the services behind it.
//!
//! Not here: bytes to values and back (`wire`), the HTTP ports (`admin`).
//!
//! | file | what it does |
//! |---|---|
//! | `listener`, `workers` | listens, hands sockets to the cores, drains |
//! | `connection` (over `preface`, `tls`) | one connection, from first byte to last |
//! | `authz` | what a caller may ask, by its certificate |
//! | `router` | which service answers which path |
//! | `framing` | gRPC's framing of a unary call |
//! | `rls_service`, `health` | the rate limit service; health |
//! | `server_limits`, `connection_stats` | limits of connections; what the listener counts |

mod authz;
mod connection;
mod connection_stats;
mod framing;
mod health;
mod listener;
mod preface;
mod rls_service;
mod router;
mod server_limits;
mod tls;
mod workers;

pub use authz::{EVERY_DOMAIN, Grant, TlsCounters};
pub use connection_stats::ConnectionStats;
pub use health::{HEALTH_NAMES, Health};
pub use listener::{Address, DrainReport, ListenSettings, Listener};
pub use rls_service::{DEADLINE_MIN, Decide, RateLimit, SERVICE_NAME};
pub use router::Router;
pub use server_limits::ServerLimits;
pub use tls::{Tls, TlsMaterial};
