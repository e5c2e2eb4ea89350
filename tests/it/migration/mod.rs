//! Recorded envoyproxy/ratelimit calls, replayed against Tidegate: the answers are equal except for
//! the differences that docs/MIGRATION.md lists.
//!
//! `manifest.yaml` is mounted and started as Kubernetes would, with a real Redis; `calls.json` has
//! the calls and envoyproxy/ratelimit's answers. Not here: its settings and its errors
//! (`cli/ratelimit_compatibility.rs`).

mod comparable_answer;
mod kubernetes_manifest;
mod recorded_calls;
mod replay;
mod strict_check;
