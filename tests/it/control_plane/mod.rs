//! Policies from a control plane: a test control plane, which answers as go-control-plane's snapshot
//! cache does, and the binary with the environment that Envoy Gateway gives it.

mod ai_gateway;
mod defaults;
mod envoy_gateway;
mod first_policy;
mod memory;
mod messages;
pub(crate) mod plane;
mod rejections;
pub(crate) mod served;
mod tls;
mod updates;
