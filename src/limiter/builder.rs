//! Builder of limiters for library users: takes policy files and options, and validates them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::any_store::AnyStore;
use super::error::ConfigError;
#[cfg(feature = "redis")]
use super::redis_options::RedisOptions;
use super::{Limiter, LimiterInner, compile_policy};
use crate::clock::Clock;
use crate::decide::{Decider, GlobalModes};
use crate::policy::{Secret, Source};

/// Default maximum number of counters in memory. In total, they take up to 60 MB.
const COUNTERS_MAX_DEFAULT: usize = 1_000_000;

/// Allowed range of the maximum number of counters in memory. The setting `--max-keys` has the same
/// range.
const COUNTERS_MAX_RANGE: RangeInclusive<usize> = 1_024..=1_000_000_000;

/// Builder of a [`Limiter`], with a policy and options.
///
/// ```
/// use tidegate::Limiter;
///
/// let limiter = Limiter::builder()
///     .policy("api.yaml", "domain: api\ndescriptors: [{key: user, rate_limit: {unit: second}}]")
///     .policy("jobs.yaml", "domain: jobs\ndescriptors: [{key: tenant, rate_limit: {unit: day}}]")
///     .max_counters(50_000)
///     .build()?;
/// # Ok::<(), tidegate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LimiterBuilder {
    files: Vec<Source>,
    secret: Secret,
    counters_max: usize,
    clock: Clock,
    #[cfg(feature = "redis")]
    redis: Option<RedisOptions>,
}

impl Default for LimiterBuilder {
    fn default() -> Self {
        LimiterBuilder {
            files: Vec::new(),
            secret: Secret::default(),
            counters_max: COUNTERS_MAX_DEFAULT,
            clock: Clock::System,
            #[cfg(feature = "redis")]
            redis: None,
        }
    }
}

impl LimiterBuilder {
    /// Adds a policy file. `name` appears in errors; `text` is UTF-8 of at most 4 MiB. Each domain
    /// needs its own file. At least one file is required, and all files together may have at most
    /// 64 MiB.
    pub fn policy(mut self, name: impl Into<String>, text: impl Into<Vec<u8>>) -> LimiterBuilder {
        self.files.push(Source { name: name.into(), text: text.into() });
        self
    }

    /// Sets the maximum number of counters in the memory of this process, from 1,024 to
    /// 1,000,000,000 (default 1,000,000). A counter takes up to 64 bytes. Every 48 bytes of a
    /// sliding log, of concurrency slots, or of a hybrid counter count as another counter.
    ///
    /// An eighth of the maximum is reserved for shared counters. When the rest is in use, a rule gets
    /// counters for new keys only while another rule is above its fair share and has more counters.
    /// Other new keys share counters with keys of the same rule. A call with such a key may be
    /// rejected too early, but never exceeds the limit. At most 128 rules have shared counters at a
    /// time, fewer with a small maximum. New keys of further rules, and of concurrency and hybrid
    /// limits, are rejected while the memory is full.
    ///
    /// With Redis, the counters in memory are used only while Redis does not reply.
    pub fn max_counters(self, counters: usize) -> LimiterBuilder {
        LimiterBuilder { counters_max: counters, ..self }
    }

    /// Sets the secret for hashing counter keys (default: empty). The text may have any length and
    /// should contain at least 128 random bits. Processes that share counters in Redis need the
    /// same secret; in a Tidegate service, this is the setting `KEY_SECRET`.
    pub fn key_secret(self, secret: &str) -> LimiterBuilder {
        LimiterBuilder { secret: Secret::derive(secret), ..self }
    }

    /// Sets the clock of the calls and of outages, for tests.
    #[doc(hidden)]
    pub fn clock(self, clock: Clock) -> LimiterBuilder {
        LimiterBuilder { clock, ..self }
    }

    /// Stores the counters in Redis, where all processes share them. The limiter must then be
    /// built inside a tokio runtime. Requires the feature `redis`.
    #[cfg(feature = "redis")]
    pub fn redis(self, redis: RedisOptions) -> LimiterBuilder {
        LimiterBuilder { redis: Some(redis), ..self }
    }

    /// Compiles the policy and builds the limiter. With Redis, connections are opened in the
    /// background; [`Limiter::wait_until_connected`] waits for them.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] if the policy has errors, an option is out of range, or a limiter
    /// with counters in Redis is built outside a tokio runtime.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        if !COUNTERS_MAX_RANGE.contains(&self.counters_max) {
            let (min, max) = (COUNTERS_MAX_RANGE.start(), COUNTERS_MAX_RANGE.end());
            let text = format!("max_counters: must be from {min} to {max}");
            return Err(ConfigError::Option(text));
        }
        let policy = Arc::new(compile_policy(&self.files, &self.secret)?);
        let store = self.open_store()?;
        let decider = Decider::new(policy, store, Arc::new(()), GlobalModes::default());
        let inner = LimiterInner { decider, secret: self.secret, clock: self.clock };
        Ok(Limiter(Arc::new(inner)))
    }

    fn open_store(&self) -> Result<AnyStore, ConfigError> {
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.redis {
            return redis.open_store(&self.secret, self.counters_max, self.clock.clone());
        }
        Ok(AnyStore::in_memory(self.counters_max))
    }
}
