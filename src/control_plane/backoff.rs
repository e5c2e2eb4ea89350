//! Exponential backoff between attempts to connect to the control plane. The caller passes in the
//! random numbers, so that tests are deterministic.

use std::time::Duration;

/// Configuration of the backoff between attempts to connect to the control plane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffConfig {
    /// Wait after the first failure. It doubles with each further failure.
    pub initial: Duration,
    /// Maximum wait of the exponential backoff.
    pub max: Duration,
    /// Maximum fraction of a wait, from 0 to 1, by which the wait is shortened at random, so that
    /// replicas do not all reconnect together.
    pub random_fraction: f64,
    /// Fixed wait after a failed attempt to connect; `None` means exponential backoff. After a lost
    /// connection, the wait is always exponential.
    pub connect_retry: Option<Duration>,
}

/// Exponential backoff of the control plane client.
#[derive(Debug)]
pub(crate) struct Backoff {
    config: BackoffConfig,
    /// Number of failures since the last success. Does not include failures with a fixed wait.
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(config: BackoffConfig) -> Self {
        Backoff { config, failures: 0 }
    }

    /// Returns the wait after a failure. `random` is a random number from 0 to 1. `connected` is
    /// true if the connection had been established before it failed.
    pub(crate) fn next_wait(&mut self, connected: bool, random: f64) -> Duration {
        let BackoffConfig { initial, max, random_fraction, connect_retry } = self.config;
        if let (false, Some(fixed)) = (connected, connect_retry) {
            return fixed;
        }
        // 2^20 times any wait is beyond every maximum.
        let wait = initial.saturating_mul(1 << self.failures.min(20)).min(max);
        self.failures = self.failures.saturating_add(1);
        wait.mul_f64(1.0 - (random_fraction * random).clamp(0.0, 1.0))
    }

    /// Records a success, so that the next wait is the initial one.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: BackoffConfig = BackoffConfig {
        initial: Duration::from_millis(500),
        max: Duration::from_secs(5),
        random_fraction: 0.5,
        connect_retry: None,
    };

    fn next_waits(backoff: &mut Backoff, random: f64) -> Vec<u128> {
        (0..6).map(|_| backoff.next_wait(true, random).as_millis()).collect()
    }

    #[test]
    fn waits_double_from_half_a_second_to_five_seconds() {
        let mut backoff = Backoff::new(CONFIG);
        assert_eq!(next_waits(&mut backoff, 0.0), [500, 1_000, 2_000, 4_000, 5_000, 5_000]);
        backoff.reset();
        assert_eq!(next_waits(&mut backoff, 1.0), [250, 500, 1_000, 2_000, 2_500, 2_500]);
        for _ in 0..100 {
            assert!(backoff.next_wait(true, 0.0) <= CONFIG.max);
        }
    }

    #[test]
    fn the_wait_after_a_failed_attempt_to_connect_is_configurable() {
        let connect_retry = Some(Duration::from_secs(3));
        let mut backoff = Backoff::new(BackoffConfig { connect_retry, ..CONFIG });
        assert_eq!(backoff.next_wait(false, 0.7), Duration::from_secs(3));
        assert_eq!(backoff.next_wait(true, 0.0), CONFIG.initial, "a lost stream");
    }
}
