//! Wire format: decodes bytes to a [`domain::Request`](crate::domain::Request) and encodes a
//! [`domain::Decision`](crate::domain::Decision) as bytes.
//!
//! Not here: sockets (`server`), clients (`cli`), decisions (`decide`).
//!
//! | file | what it does |
//! |---|---|
//! | `decode` | decodes a request and checks its bounds |
//! | `encode` | encodes a decision as a response |
//! | `response_headers`, `refusal_body`, `dynamic_metadata` | build the parts of a response |
//! | `response_config` | validates the settings for headers, bodies and metadata |
//! | `proto_json`, `struct_json` | convert requests from proto-JSON and responses to it |
//! | `limits_messages` | encodes and decodes the messages of `tidegate.v1.Limits` |
//! | `override_messages` | the same, about overrides |
//! | `forward_auth` | builds a rate limit request from the headers that `/authz` receives |
//! | `normal_form` | normal form of paths, hosts, and addresses that `/authz` receives |
//! | `http_reply` | builds the responses of `/json` and `/authz` |
//! | `traceparent` | parses the caller's trace context |

pub(crate) mod decode;
mod dynamic_metadata;
pub(crate) mod encode;
mod error;
pub(crate) mod forward_auth;
mod http_reply;
pub(crate) mod limits_messages;
pub(crate) mod messages;
mod normal_form;
pub(crate) mod override_messages;
pub(crate) mod proto_json;
mod refusal_body;
pub(crate) mod response_config;
mod response_headers;
pub(crate) mod struct_json;
pub(crate) mod traceparent;

pub use decode::{DESCRIPTORS_MAX, ENTRIES_MAX, HOLD_KEY, MESSAGE_BYTES_MAX, SETTLE_KEY, SLOT_KEY};
pub use error::WireError;
pub use messages::FILE_DESCRIPTOR_SET;
pub use refusal_body::BODY_BYTES_MAX;
pub use response_config::{LimitHeaderNames, ResponseConfig, ResponseSettings};
