//! Rate limits as a library: the decision engine of the Tidegate service, embedded in your program.
//!
//! A [`Limiter`] reads limits from YAML and decides for each call of your program whether it may
//! pass. The policy language, the six algorithms and the arithmetic are those of the service. A
//! call is decided by all of its limits together and, by default, charges nothing if any of them
//! rejects it.
//!
//! ```
//! use tidegate::{Descriptor, Limiter};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let limiter = Limiter::from_yaml(
//!         "domain: api
//! descriptors:
//!   - key: user
//!     rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 5}
//! ",
//!     )?;
//!     for _ in 1..=5 {
//!         let decision = limiter.check("api", &[Descriptor::new([("user", "alice")])]).await?;
//!         assert!(decision.is_admitted());
//!     }
//!     let sixth = limiter.check("api", &[Descriptor::new([("user", "alice")])]).await?;
//!     assert!(!sixth.is_admitted());
//!     let wait = sixth.retry_after_secs().ok_or("waiting helps")?;
//!     assert!((600..=720).contains(&wait), "one hit refills in twelve minutes");
//!     Ok(())
//! }
//! ```
//!
//! # Where the counters are
//!
//! - **In memory** ([`Limiter::from_yaml`]): each process has its own counters. A call never
//!   suspends, and works with any async runtime. The memory is bounded by
//!   [`max_counters`](LimiterBuilder::max_counters).
//! - **In Redis or Valkey** ([`LimiterBuilder::redis`], feature `redis`, on tokio): all processes,
//!   including Tidegate services, share the counters. Every call is one round trip with a timeout.
//!   If Redis does not reply in time, the process decides on its own, with its share of the limit.
//!
//! # Calls
//!
//! A call names a domain, which selects a policy file, and descriptors, which rules match. A
//! [`Descriptor`] is a list of keys and values. A descriptor that matches no rule has no limit.
//!
//! - [`Limiter::check`] decides and charges; [`Limiter::peek`] only predicts.
//! - [`Limiter::refund`] returns hits, and releases the slots of `algorithm: concurrency`.
//! - [`Limiter::replace_policy`] changes limits at run time and keeps the counters.
//!
//! Bounds of one call: 2,048 descriptors of 160 entries each, 1 MiB of keys and values, 2,048
//! limits. A call that exceeds a bound returns a [`CheckError`]; a rejection is not an error.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | none (`default-features = false`) | the limiter with counters in memory |
//! | `redis` | [`RedisOptions`]: counters in Redis, on tokio and rustls |
//! | `server` (default) | the service and its command line, which a library user does not need |
//!
//! # Stability
//!
//! The public interface is the items on this page, the policy language, and the format of counters
//! in Redis. They follow semantic versioning. Modules that this page does not show are internal,
//! even if they are reachable.

#[cfg(feature = "server")]
#[cfg_attr(doc, doc(hidden))]
pub mod server;

#[cfg(feature = "server")]
#[cfg_attr(doc, doc(hidden))]
pub mod wire;

#[cfg_attr(doc, doc(hidden))]
pub mod decide;

#[cfg(feature = "server")]
#[cfg_attr(doc, doc(hidden))]
pub mod control_plane;

#[cfg_attr(doc, doc(hidden))]
pub mod policy;

#[cfg_attr(doc, doc(hidden))]
pub mod store;

#[cfg_attr(doc, doc(hidden))]
pub mod algorithm;

#[cfg(feature = "redis")]
#[cfg_attr(doc, doc(hidden))]
pub mod resilience;

#[cfg_attr(doc, doc(hidden))]
pub mod domain;

#[cfg(feature = "redis")]
#[cfg_attr(doc, doc(hidden))]
pub mod tls;

#[cfg(feature = "redis")]
#[cfg_attr(doc, doc(hidden))]
pub mod peer_protocol;

#[cfg_attr(doc, doc(hidden))]
pub mod clock;

#[cfg(feature = "server")]
#[cfg_attr(doc, doc(hidden))]
pub mod telemetry;

#[cfg(feature = "server")]
#[cfg_attr(doc, doc(hidden))]
pub mod admin;

#[cfg(feature = "server")]
#[cfg_attr(doc, doc(hidden))]
pub mod settings;

#[cfg(feature = "server")]
#[cfg_attr(doc, doc(hidden))]
pub mod app;

#[cfg(feature = "server")]
#[cfg_attr(doc, doc(hidden))]
pub mod cli;

mod limiter;

#[cfg(feature = "redis")]
pub use limiter::RedisOptions;
pub use limiter::{
    CheckError, ConfigError, Decision, Descriptor, DescriptorStatus, Limiter, LimiterBuilder,
};
