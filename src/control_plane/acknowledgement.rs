//! Decides whether to reply to a response from the control plane with an ACK or a NACK, and when
//! to send it.
//!
//! A control plane may respond to a NACK immediately with the same version, so NACKs are
//! rate-limited. All functions here are deterministic: the time is an argument.

use std::time::{Duration, Instant};

use tonic::Code;

use super::last_good::Rejection;
use super::messages::{DiscoveryRequest, Status};
use super::resource::TYPE_URL;

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
pub(crate) struct Exchange {
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
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AckOrNack {
    /// Request with the most recently acknowledged version and the nonce of the response. The request
    /// of a NACK also has the reasons.
    pub(crate) request: DiscoveryRequest,
    /// Earliest time at which to send the ACK or NACK.
    pub(crate) due: Instant,
}

impl Exchange {
    /// Returns the ACK or NACK for a response that was received and applied at `now`. The caller
    /// must discard the ACK or NACK if a newer response arrives before it is sent, because the
    /// control plane ignores older nonces.
    pub(crate) fn ack_or_nack(
        &mut self,
        version: &str,
        nonce: &str,
        rejections: &[Rejection],
        now: Instant,
    ) -> AckOrNack {
        let (error_detail, due) = if rejections.is_empty() {
            version.clone_into(&mut self.acknowledged);
            self.rejected = None;
            (None, now)
        } else {
            let (wait, next) = match &self.rejected {
                Some((same, wait)) if same == version => (*wait, (*wait * 2).min(NACK_WAIT_MAX)),
                Some(_) | None => (NACK_WAIT_MIN, NACK_WAIT_MIN),
            };
            let due = self.last_nack.map_or(now, |last| now.max(last + wait));
            self.rejected = Some((version.to_owned(), next));
            self.last_nack = Some(due);
            let (code, message) = (Code::InvalidArgument as i32, format_rejections(rejections));
            (Some(Status { code, message }), due)
        };
        let request = DiscoveryRequest {
            version_info: self.acknowledged.clone(),
            response_nonce: nonce.to_owned(),
            type_url: TYPE_URL.to_owned(),
            error_detail,
            ..DiscoveryRequest::default()
        };
        AckOrNack { request, due }
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

    /// Returns the version, the nonce, and the reasons of an ACK or NACK.
    fn texts(AckOrNack { request, .. }: &AckOrNack) -> (&str, &str, Option<&str>) {
        assert_eq!((&*request.type_url, &request.node), (TYPE_URL, &None));
        let rejection = request.error_detail.as_ref().map(|status| {
            assert_eq!(status.code, Code::InvalidArgument as i32);
            &*status.message
        });
        (&request.version_info, &request.response_nonce, rejection)
    }

    #[test]
    fn an_accepted_response_is_acknowledged_at_once_with_its_version_and_nonce() {
        let now = Clock::System.monotonic_now();
        let mut exchange = Exchange::default();
        let answer = exchange.ack_or_nack("1", "a", &[], now);
        assert_eq!((texts(&answer), answer.due), (("1", "a", None), now));
        let empty = exchange.ack_or_nack("", "b", &[], now);
        assert_eq!(texts(&empty), ("", "b", None), "all removed");
    }

    #[test]
    fn a_nack_has_the_acknowledged_version_and_the_path_of_the_error() {
        let now = Clock::System.monotonic_now();
        let mut exchange = Exchange::default();
        exchange.ack_or_nack("1", "a", &[], now);
        let answer = exchange.ack_or_nack("2", "b", &rejections(1), now);
        assert_eq!(texts(&answer), ("1", "b", Some("r0: descriptors[0].key: empty")));
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
        let text = texts(&answer).2.unwrap();
        assert_eq!(text.lines().count(), 11);
        assert!(text.ends_with("and 3 more"), "{text}");
    }
}
