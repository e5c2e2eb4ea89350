//! Decides whether to reply to a response from the control plane with an ACK or a NACK, and when
//! to send it.
//!
//! A control plane may respond to a NACK immediately with the same version, so NACKs are
//! rate-limited. All functions here are deterministic: the time is an argument.

use std::time::{Duration, Instant};

use super::last_good::Rejection;

/// Minimum time between two NACKs. Also the wait before the second NACK for the same version. The
/// wait doubles with each further NACK for this version.
const NACK_WAIT_MIN: Duration = Duration::from_secs(1);
/// Maximum wait before a NACK. A corrected policy can be delayed by up to this time, because the
/// control plane sends nothing until it receives the NACK.
const NACK_WAIT_MAX: Duration = Duration::from_secs(30);

/// Maximum number of rejections that a NACK lists.
const NACK_REJECTIONS_MAX: usize = 10;

/// State of the exchange of ACKs and NACKs with a control plane. Persists across connections.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Most recently acknowledged version; empty before the first ACK.
    acknowledged: String,
    /// Most recently rejected version, and the wait before the next NACK for this version. `None`
    /// after an ACK.
    rejected: Option<(String, Duration)>,
    /// Time of the last NACK. Kept after an ACK, so that NACKs are rate-limited even if valid and
    /// invalid versions alternate.
    last_nack: Option<Instant>,
}

/// ACK or NACK to send in reply to a response from the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckOrNack {
    /// Most recently acknowledged version. For an ACK, this is the version of the response.
    pub version: String,
    /// Nonce of the response that is acknowledged or rejected.
    pub nonce: String,
    /// Reasons for a NACK; `None` for an ACK.
    pub rejection: Option<String>,
    /// Earliest time at which to send the ACK or NACK.
    pub due: Instant,
}

impl Exchange {
    /// Returns the ACK or NACK for a response that was received and applied at `now`. The caller
    /// must discard the ACK or NACK if a newer response arrives before it is sent, because the
    /// control plane ignores older nonces.
    pub fn ack_or_nack(
        &mut self,
        version: &str,
        nonce: &str,
        rejections: &[Rejection],
        now: Instant,
    ) -> AckOrNack {
        if rejections.is_empty() {
            version.clone_into(&mut self.acknowledged);
            self.rejected = None;
            let (version, nonce) = (version.to_owned(), nonce.to_owned());
            return AckOrNack { version, nonce, rejection: None, due: now };
        }
        let (wait, next) = match &self.rejected {
            Some((same, wait)) if same == version => (*wait, (*wait * 2).min(NACK_WAIT_MAX)),
            Some(_) | None => (NACK_WAIT_MIN, NACK_WAIT_MIN),
        };
        let due = self.last_nack.map_or(now, |last| now.max(last + wait));
        self.rejected = Some((version.to_owned(), next));
        self.last_nack = Some(due);
        let (version, nonce) = (self.acknowledged.clone(), nonce.to_owned());
        AckOrNack { version, nonce, rejection: Some(format_rejections(rejections)), due }
    }

    /// Returns the most recently acknowledged version; empty before the first ACK.
    pub fn acknowledged_version(&self) -> &str {
        &self.acknowledged
    }
}

/// Returns the error message of a NACK, with one line per rejection. After [`NACK_REJECTIONS_MAX`]
/// lines, one more line states how many were omitted.
fn format_rejections(rejections: &[Rejection]) -> String {
    let mut lines: Vec<String> =
        rejections.iter().take(NACK_REJECTIONS_MAX).map(ToString::to_string).collect();
    if rejections.len() > NACK_REJECTIONS_MAX {
        lines.push(format!("and {} more", rejections.len() - NACK_REJECTIONS_MAX));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn rejections(count: usize) -> Vec<Rejection> {
        let one = |at| Rejection {
            resource: format!("r{at}"),
            path: "descriptors[0].key".to_owned(),
            reason: "empty".to_owned(),
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn an_accepted_response_is_acknowledged_at_once_with_its_version_and_nonce() {
        let now = Clock::System.monotonic_now();
        let mut exchange = Exchange::default();
        let answer = exchange.ack_or_nack("1", "a", &[], now);
        let due = now;
        let (version, nonce) = ("1".to_owned(), "a".to_owned());
        assert_eq!(answer, AckOrNack { version, nonce, rejection: None, due });
        assert_eq!(exchange.acknowledged_version(), "1");
        let empty = exchange.ack_or_nack("", "b", &[], now);
        assert_eq!((empty.version.as_str(), empty.rejection), ("", None), "all removed");
    }

    #[test]
    fn a_nack_has_the_acknowledged_version_and_the_path_of_the_error() {
        let now = Clock::System.monotonic_now();
        let mut exchange = Exchange::default();
        exchange.ack_or_nack("1", "a", &[], now);
        let answer = exchange.ack_or_nack("2", "b", &rejections(1), now);
        assert_eq!((answer.version.as_str(), answer.nonce.as_str()), ("1", "b"));
        assert_eq!(answer.rejection.as_deref(), Some("r0: descriptors[0].key: empty"));
        assert_eq!(answer.due, now, "the first one is not delayed");
    }

    #[test]
    fn waits_between_nacks_of_one_version_double_from_1_to_30_seconds() {
        let mut now = Clock::System.monotonic_now();
        let mut exchange = Exchange::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let due = exchange.ack_or_nack("2", "n", &rejections(1), now).due;
            waits.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn a_new_version_or_an_ack_resets_the_wait_to_one_second() {
        let now = Clock::System.monotonic_now();
        let mut exchange = Exchange::default();
        for _ in 0..3 {
            exchange.ack_or_nack("2", "n", &rejections(1), now);
        }
        let last = exchange.ack_or_nack("2", "n", &rejections(1), now).due;
        assert_eq!(exchange.ack_or_nack("3", "n", &rejections(1), last).due, last + SECOND);
        exchange.ack_or_nack("4", "n", &[], last);
        let next = exchange.ack_or_nack("5", "n", &rejections(1), last + SECOND).due;
        assert_eq!(next, last + SECOND * 2, "not sooner than a second after the last");
        let later = last + SECOND * 60;
        assert_eq!(exchange.ack_or_nack("6", "n", &rejections(1), later).due, later);
    }

    #[test]
    fn a_nack_lists_at_most_ten_rejections() {
        let mut exchange = Exchange::default();
        let answer = exchange.ack_or_nack("1", "a", &rejections(13), Clock::System.monotonic_now());
        let text = answer.rejection.unwrap();
        assert_eq!(text.lines().count(), 11);
        assert!(text.ends_with("and 3 more"), "{text}");
    }
}
