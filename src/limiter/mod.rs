//! Rate limiter for library users: the decision engine without a server. The crate's documentation
//! shows how to use it.
//!
//! | file | contents |
//! |---|---|
//! | `builder` | builder of limiters, and its options |
//! | `redis_options` | options of a limiter with counters in Redis |
//! | `descriptor`, `decision`, `error` | arguments and results of calls |
//! | `any_store`, `redis_stack` | the store, which the service also uses |
//!
//! Not here: the engine itself (`policy`, `decide`, `store`).

pub(crate) mod any_store;
mod builder;
mod decision;
mod descriptor;
mod error;
#[cfg(feature = "redis")]
mod redis_options;
#[cfg(feature = "redis")]
pub(crate) mod redis_stack;

use std::sync::Arc;

use self::any_store::AnyStore;
pub use self::builder::LimiterBuilder;
pub use self::decision::{Decision, DescriptorStatus};
pub use self::descriptor::Descriptor;
pub use self::error::{CheckError, ConfigError};
#[cfg(feature = "redis")]
pub use self::redis_options::RedisOptions;
use crate::clock::Clock;
use crate::decide::{DecideError, Decider};
use crate::domain::{Bounds, CALL_WORK_MAX, Request};
use crate::policy::{Options, Policy, Secret, Source, compile};

/// Number of slots in the counter table that one sweep checks, which takes about 10 ms.
const SWEEP_SLOTS: usize = 131_072;

/// Rate limiter that checks calls against the limits of a policy. Counters are in the memory of
/// this process or in Redis.
///
/// A clone shares the policy and the counters of the original. All methods take `&self`. Calls from
/// several threads or tasks are decided concurrently, and together they never exceed a limit.
///
/// A limiter with counters in memory decides without suspending and works with any async runtime. A
/// limiter with counters in Redis needs the tokio runtime in which it was built: once that has ended,
/// calls are decided as if Redis did not reply. It shares its counters with every Tidegate service
/// that has the same Redis, key prefix, key secret, and policy.
///
/// The limits use the system clock or, with counters in Redis, the clock of the Redis server. If
/// the clock steps back, no limit refills twice.
#[derive(Clone, Debug)]
pub struct Limiter(Arc<LimiterInner>);

#[derive(Debug)]
struct LimiterInner {
    decider: Decider<AnyStore, ()>,
    secret: Secret,
    clock: Clock,
}

impl Limiter {
    /// Creates a limiter with counters in memory from the text of one policy file.
    /// [`builder`](Self::builder) has more options: several files, counters in Redis, the number of
    /// counters.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::Policy`] with all errors of the policy, each with its position.
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let error = Limiter::from_yaml("domain: api\ndescriptors:\n  - kye: user\n").unwrap_err();
    /// assert!(error.to_string().contains("policy.yaml:3:5: descriptors[0].kye: unknown key"));
    /// ```
    pub fn from_yaml(policy: &str) -> Result<Limiter, ConfigError> {
        Limiter::builder().policy("policy.yaml", policy).build()
    }

    /// Returns a builder without any policy.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Decides whether a call may pass, and charges its limits.
    ///
    /// By default a call is all-or-nothing: if any limit rejects it, no counter changes. A
    /// descriptor that matches no rule has no limit, and a domain that the policy does not contain
    /// has none either.
    ///
    /// With counters in Redis, the call waits for at most the [`budget`](RedisOptions::budget);
    /// then the `on_store_failure` of each limit applies. If the future is dropped before it
    /// completes, the limits may nevertheless be charged.
    ///
    /// # Errors
    ///
    /// Returns a [`CheckError`] if the call is invalid or exceeds a bound or, with counters in
    /// Redis, is not decided in time. A rejection is not an error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::{Descriptor, Limiter};
    ///
    /// let limiter = Limiter::from_yaml(
    ///     "domain: api
    /// descriptors:
    ///   - key: user
    ///     rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 60, burst: 10}
    /// ",
    /// )?;
    /// let upload = [Descriptor::new([("user", "alice")]).hits(7)];
    /// let decision = limiter.check("api", &upload).await?;
    /// assert_eq!(decision.descriptors()[0].remaining(), Some(3));
    ///
    /// let decision = limiter.check("api", &upload).await?;
    /// assert!(!decision.is_admitted());
    /// assert_eq!(decision.limited_by(), Some("api.user"));
    /// let wait = decision.retry_after_secs().ok_or("waiting helps")?;
    /// assert!((200..=240).contains(&wait), "four hits are missing, one refills per minute");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) -> Result<Decision, CheckError> {
        self.decide(domain, descriptors, false).await
    }

    /// Returns the decision that [`check`](Self::check) would return now, without charging any
    /// limit.
    ///
    /// If a descriptor has more than one hit, `retry_after` of a rejection is `None`, because the
    /// wait is unknown. With hybrid consumer classes, a call of several hits may pass although
    /// `peek` predicts a rejection.
    ///
    /// # Errors
    ///
    /// Returns a [`CheckError`] in the same cases as [`check`](Self::check).
    pub async fn peek(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) -> Result<Decision, CheckError> {
        let LimiterInner { decider, clock, .. } = &*self.0;
        let descriptors = descriptor::to_domain(domain, descriptors, false, &Bounds::DEFAULT)?;
        let request = Request { domain, descriptors: &descriptors };
        let policy = decider.policy();
        let dry_run = decider.dry_run(&policy, &request, clock.now()).await;
        Ok(Decision::new(&dry_run.map_err(to_check_error)?.decision))
    }

    /// Refunds the hits of an earlier call, or releases its concurrency slots. Pass the descriptors
    /// of that call and, to release slots, set their [`holder`](Descriptor::holder).
    ///
    /// A refund never raises the available hits above the limit, and has no effect on a counter
    /// that no longer exists. A holder without slots releases none. If Redis does not reply in
    /// time, the refund may be lost; the hits then stay charged until the counter refills.
    ///
    /// # Errors
    ///
    /// Returns a [`CheckError`] in the same cases as [`check`](Self::check).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::{Descriptor, Limiter};
    ///
    /// let limiter = Limiter::from_yaml(
    ///     "domain: jobs
    /// descriptors:
    ///   - key: tenant
    ///     rate_limit: {algorithm: concurrency, requests_per_unit: 1}
    /// ",
    /// )?;
    /// let job = Descriptor::new([("tenant", "acme")]);
    /// let running = limiter.check("jobs", &[job.clone()]).await?;
    /// assert!(!limiter.check("jobs", &[job.clone()]).await?.is_admitted());
    ///
    /// let holder = running.holder().unwrap_or_default();
    /// limiter.refund("jobs", &[job.clone().holder(holder)]).await?;
    /// assert!(limiter.check("jobs", &[job]).await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refund(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) -> Result<(), CheckError> {
        self.decide(domain, descriptors, true).await.map(drop)
    }

    /// Replaces the policy with the given policy files, each with a name and a text. A limit
    /// whose `requests_per_unit` or `burst` changes keeps its counted hits. A new algorithm or
    /// window starts a new counter. Calls in progress finish under the old policy.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::Policy`] if the new policy has errors. The old policy then stays in
    /// force.
    pub fn replace_policy<N, T>(
        &self,
        files: impl IntoIterator<Item = (N, T)>,
    ) -> Result<(), ConfigError>
    where
        N: Into<String>,
        T: Into<Vec<u8>>,
    {
        let source = |(name, text): (N, T)| Source { name: name.into(), text: text.into() };
        let files: Vec<Source> = files.into_iter().map(source).collect();
        let policy = compile_policy(&files, &self.0.secret)?;
        self.0.decider.replace_policy(Arc::new(policy));
        self.0.decider.store().retire_policy();
        Ok(())
    }

    /// Removes expired counters from the memory of this process. Checks up to 131,072 table slots,
    /// which takes about 10 ms. The next call continues where this one stops.
    ///
    /// Calling it is optional: new counters replace expired ones in any case, and the memory is
    /// bounded by [`max_counters`](LimiterBuilder::max_counters). Call it once a second to
    /// let memory use shrink after a flood of keys. It then also logs outages of Redis while no call
    /// is made.
    pub fn sweep(&self) {
        let LimiterInner { decider, clock, .. } = &*self.0;
        let now = clock.now();
        decider.store().memory().sweep(now, SWEEP_SLOTS);
        decider.store().update_outage(now);
    }

    /// Waits until Redis is connected, without a timeout. Returns immediately if the counters are
    /// in memory. Until Redis is connected, calls are decided as if it did not reply.
    pub async fn wait_until_connected(&self) {
        self.0.decider.store().wait_until_connected().await;
    }

    async fn decide(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        refund: bool,
    ) -> Result<Decision, CheckError> {
        let LimiterInner { decider, clock, .. } = &*self.0;
        let descriptors = descriptor::to_domain(domain, descriptors, refund, &Bounds::DEFAULT)?;
        let request = Request { domain, descriptors: &descriptors };
        let policy = decider.policy();
        let decision = decider.decide(&policy, &request, clock.now()).await;
        Ok(Decision::new(&decision.map_err(to_check_error)?))
    }
}

fn to_check_error(error: DecideError) -> CheckError {
    match error {
        DecideError::Unavailable => CheckError::Unavailable,
        DecideError::TooManyChecks { checks_max, .. } => {
            CheckError::Invalid(format!("the call checks more than {checks_max} limits"))
        }
        DecideError::TooMuchWork => CheckError::Invalid(format!(
            "the call needs more than {CALL_WORK_MAX} µs of Redis; split its descriptors over several"
        )),
    }
}

/// Compiles policy files with the default options of the service.
fn compile_policy(files: &[Source], secret: &Secret) -> Result<Policy, ConfigError> {
    let compiled = compile(files, &Options::default());
    let compiled = compiled.map_err(|errors| ConfigError::Policy(errors.to_string()))?;
    Ok(Policy::build(compiled.domains, secret.clone()))
}
