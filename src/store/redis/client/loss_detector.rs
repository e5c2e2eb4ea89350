//! Detects that Redis may have lost counters. The signs are a new server process, a stored key that
//! has disappeared, and a new master.
//!
//! A restarted server has a new run id. A flushed server lacks the key `tg1meta`, which every
//! connection writes. The handshake of every connection reads the run id and the key, before the
//! connection sends script calls. A new master may lack charges that had not been replicated to it.
//! A false alarm does little harm: until all charges made before it have expired, a check must also
//! fit within the limit as counted from this replica's own charges.
//!
//! Not here: the consequences of a loss (`resilience`).

use crate::domain::Lock;

/// Logged reason for a counter loss: the run id has changed, so the server process is a new one.
pub(crate) const RESTARTED: &str = "restarted";
/// Logged reason for a counter loss: the key `tg1meta` was stored before and no longer exists.
pub(crate) const KEY_GONE: &str = "key_gone";
/// Logged reason for a counter loss when a new master takes over. The latest charges may not
/// have been replicated to the new master.
pub(crate) const NEW_MASTER: &str = "new_master";

/// Detector of lost counters on one node. Holds the run id and the state of the key `tg1meta`, as
/// read in the handshakes of the node's connections.
#[derive(Debug, Default)]
pub(crate) struct LossDetector {
    known_server: Lock<KnownServer>,
}

#[derive(Debug, Default)]
struct KnownServer {
    /// Run id of the server process, if INFO is permitted.
    run_id: Option<String>,
    meta: KnownMeta,
}

/// Last known state of the key `tg1meta` on a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownMeta {
    /// Number of counter losses detected on this node so far.
    losses: u64,
    /// Whether `tg1meta` has been stored or found since the last counter loss.
    is_stored: bool,
}

impl LossDetector {
    /// Returns the known state of the key `tg1meta`. Call this before the handshake reads the key.
    pub(crate) fn known_meta(&self) -> KnownMeta {
        self.known_server.lock().meta
    }

    /// Compares the replies in a handshake with the known state of the server. Returns the reason
    /// for a counter loss, or `None` if there is no sign of one or another connection has already detected
    /// this loss. `before` is the result of [`known_meta`](Self::known_meta) before the handshake. `run_id`
    /// is `None` if INFO was denied, and `has_meta` if another node of a cluster holds the key
    /// `tg1meta` or if the key is not used.
    pub(crate) fn compare(
        &self,
        before: KnownMeta,
        run_id: Option<&str>,
        has_meta: Option<bool>,
    ) -> Option<&'static str> {
        let mut known = self.known_server.lock();
        let is_restarted = match (&known.run_id, run_id) {
            (Some(known), Some(now)) => known != now,
            (None, _) | (_, None) => false,
        };
        let is_key_gone = before == known.meta && before.is_stored && has_meta == Some(false);
        let sign = match (is_restarted, is_key_gone) {
            (true, _) => Some(RESTARTED),
            (false, true) => Some(KEY_GONE),
            (false, false) => None,
        };
        if sign.is_some() {
            known.meta = KnownMeta { losses: known.meta.losses + 1, is_stored: false };
        }
        known.run_id = run_id.map(str::to_owned).or(known.run_id.take());
        known.meta.is_stored |= has_meta == Some(true);
        sign
    }

    /// Records that a connection has stored the key `tg1meta`.
    pub(crate) fn record_meta_key(&self) {
        self.known_server.lock().meta.is_stored = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake(
        detector: &LossDetector,
        run_id: Option<&str>,
        has_meta: Option<bool>,
    ) -> Option<&'static str> {
        let before = detector.known_meta();
        let sign = detector.compare(before, run_id, has_meta);
        detector.record_meta_key();
        sign
    }

    #[test]
    fn a_first_handshake_is_no_loss_but_a_new_run_id_is() {
        let detector = LossDetector::default();
        assert_eq!(handshake(&detector, Some("a"), Some(false)), None);
        assert_eq!(handshake(&detector, Some("a"), Some(true)), None);
        assert_eq!(handshake(&detector, Some("b"), Some(true)), Some(RESTARTED));
        assert_eq!(handshake(&detector, Some("b"), Some(true)), None, "it is found once");
    }

    #[test]
    fn without_info_the_missing_key_is_a_loss() {
        let detector = LossDetector::default();
        assert_eq!(handshake(&detector, None, Some(false)), None);
        assert_eq!(handshake(&detector, None, None), None, "another node of the cluster has it");
        assert_eq!(handshake(&detector, None, Some(false)), Some(KEY_GONE));
        assert_eq!(handshake(&detector, None, Some(true)), None);
    }

    #[test]
    fn two_connections_find_one_loss() {
        for run_id in [None, Some("b")] {
            let detector = LossDetector::default();
            handshake(&detector, run_id.map(|_| "a"), Some(true));
            let (one, other) = (detector.known_meta(), detector.known_meta());
            assert!(detector.compare(one, run_id, Some(false)).is_some());
            assert_eq!(detector.compare(other, run_id, Some(false)), None);
        }
    }

    #[test]
    fn the_loss_of_a_key_that_only_others_stored_is_found_once() {
        let detector = LossDetector::default();
        let handshake =
            |run_id, has_meta| detector.compare(detector.known_meta(), run_id, has_meta);
        assert_eq!(handshake(Some("a"), Some(true)), None);
        assert_eq!(handshake(None, Some(false)), Some(KEY_GONE));
        assert_eq!(handshake(None, Some(false)), None, "it is gone already");
        assert_eq!(handshake(Some("b"), Some(false)), Some(RESTARTED));
        assert_eq!(handshake(Some("b"), Some(false)), None);
    }
}
