//! Waiting until a call passes, for batch jobs. The only place that sleeps.

use std::time::Duration;

use tokio::time::Instant;

use crate::call::Call;
use crate::client::Client;
use crate::decision::{Decision, Failure, Outcome};
use crate::hold::random;

/// First back-off after a call without a decision; each further one is up to twice as long.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// `Retry-After` is lengthened by up to this much at random, so that clients that were rejected together do
/// not return together.
const JITTER: f64 = 0.1;

impl Client {
    /// Repeats the call until it passes, at most for `patience`. For batch jobs: in the path of a request,
    /// use [`Client::check`].
    ///
    /// After a rejection it sleeps as long as `Retry-After` says, plus up to 10 % at random. If waiting does not
    /// help, or would exceed `patience`, it immediately returns a decision that does not pass. If the client
    /// denies on failure, calls without a decision are repeated after a random time of up to 100 ms, then up to
    /// 200 ms, and so on up to 2 s.
    pub async fn wait(&self, call: &Call, patience: Duration) -> Decision {
        let start = Instant::now();
        let mut bound = BACKOFF_FIRST;
        loop {
            let decision = self.check(call).await;
            let sleep = match decision.outcome() {
                _ if decision.passes() => None,
                Outcome::Allowed => None,
                Outcome::Rejected => {
                    let jitter = 1.0 + JITTER * random_fraction();
                    decision.retry_after().map(|it| it.mul_f64(jitter))
                }
                Outcome::Failed => {
                    let sleep = bound.mul_f64(random_fraction());
                    bound = BACKOFF_MAX.min(bound * 2);
                    decision.failure().is_some_and(Failure::may_pass_later).then_some(sleep)
                }
            };
            match sleep {
                Some(sleep) if start.elapsed() + sleep <= patience => {
                    #[allow(clippy::disallowed_methods, reason = "no request runs through here")]
                    tokio::time::sleep(sleep).await;
                }
                Some(_) | None => return decision,
            }
        }
    }
}

/// Between 0 and 1.
fn random_fraction() -> f64 {
    random() as f64 / u64::MAX as f64
}
