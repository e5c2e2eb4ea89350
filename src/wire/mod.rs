//! The wire: bytes to a [`domain::Request`](crate::domain::Request), a
//! [`domain::Decision`](crate::domain::Decision) to bytes, and the server around it.
//!
//! The only room that names tonic, prost or Envoy. Not here: arithmetic, policy, files,
//! environment.
//!
//! | file | what it does |
//! |---|---|
//! | `decode` (over `protobuf`) | an encoded request → `Request`, within every bound |
//! | `service` | the rate limit service: clock, deadline, decision |
//! | `encode` (over `headers`, `body`, `metadata`) | a decision → the response, as `answering` asks |
//! | `json`, `struct_json` | the same request and response in proto-JSON |
//! | `unary` | gRPC's framing of a call |
//! | `health`, `front` | health; which service answers which path |
//! | `connection` (over `preface`, `tls`) | one connection, from first byte to last |
//! | `callers` | what a caller may ask, by its certificate |
//! | `cores`, `listen`, `limits`, `traffic` | threads, sockets, limits, leaving in order |
//! | `client` | the client of `tidegate ask` |

mod answering;
mod body;
mod callers;
pub mod client;
mod connection;
mod cores;
mod decode;
mod encode;
mod error;
mod front;
mod headers;
mod health;
mod json;
mod limits;
mod listen;
mod messages;
mod metadata;
mod preface;
mod protobuf;
mod rules;
mod service;
mod struct_json;
mod tls;
mod traceparent;
mod traffic;
mod unary;

pub use answering::{Answering, AnsweringSettings, LimitNames, ResetAs, RetryAs};
pub use body::BODY_BYTES_MAX;
pub use callers::{EVERY_DOMAIN, Grant, TlsCounters};
pub use decode::{DESCRIPTORS_MAX, ENTRIES_MAX, MESSAGE_BYTES_MAX, SLOT_KEY};
pub use error::{HeaderFault, WireError};
pub use front::Front;
pub use health::{HEALTH_NAMES, Health};
pub use json::JsonReply;
pub use limits::ServerLimits;
pub use listen::{Address, Drained, ListenSettings, Listener};
pub use messages::DESCRIPTORS;
pub use rules::Rules;
pub use service::{DEADLINE_MIN, Judge, RateLimit, SERVICE_NAME};
pub use tls::{Tls, TlsMaterial};
pub use traffic::Traffic;
