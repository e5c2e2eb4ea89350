//! Policies and requests as Envoy Gateway and Envoy AI Gateway write them.
//!
//! Not here: how policies arrive from a control plane (`control_plane`).

mod ai_gateway;
mod envoy_gateway;
mod istio;
mod policy_shapes;
mod resource_encoding;
