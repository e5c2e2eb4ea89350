//! The wire: bytes to a [`domain::Request`](crate::domain::Request) and a
//! [`domain::Decision`](crate::domain::Decision) to bytes.
//!
//! Not here: sockets (`server`), arithmetic, policy, files, environment.
//!
//! | file | what it does |
//! |---|---|
//! | `decode` | an encoded request to a `Request`, within every bound |
//! | `encode` (over `response_headers`, `refusal_body`, `dynamic_metadata`) | a decision to the response, as `response_config` asks |
//! | `proto_json`, `struct_json` | the same request and response in proto-JSON |
//! | `traceparent` | the caller's place in a trace |
//! | `client` | the client of `tidegate ask` |

pub mod client;
pub(crate) mod decode;
mod dynamic_metadata;
pub(crate) mod encode;
mod error;
pub(crate) mod messages;
pub(crate) mod proto_json;
mod refusal_body;
pub(crate) mod response_config;
mod response_headers;
mod struct_json;
pub(crate) mod traceparent;

pub use decode::{DESCRIPTORS_MAX, ENTRIES_MAX, MESSAGE_BYTES_MAX, SLOT_KEY};
pub use error::{HeaderNameError, WireError};
pub use messages::DESCRIPTORS;
pub use proto_json::JsonReply;
pub use refusal_body::BODY_BYTES_MAX;
pub use response_config::{
    LimitHeaderNames, ResetFormat, ResponseConfig, ResponseSettings, RetryAfterFormat,
};
