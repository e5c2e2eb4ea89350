//! Bounds on a server's time, derived from the replies to script calls on one connection.
//!
//! A script returns the time at which it ran. It ran after its command was written and before its
//! reply was read, which bounds the difference between the server's clock and ours. Plain commands
//! return no time, so these bounds show in which rate limit window they ran.
//!
//! The bounds belong to one connection: a new connection may lead to another server. Not here: how
//! the bounds are used (`plain_charge`, `plain_calls`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::Micros;

/// Maximum age of the script reply from which bounds on the server's time are computed. Within this
/// time, two clocks slewed by 500 ppm in opposite directions drift apart by [`CLOCK_DRIFT_MAX`].
const AGE_MAX: Micros = Micros::SECOND;

/// Maximum drift between the server's clock and this process's clock within [`AGE_MAX`].
const CLOCK_DRIFT_MAX: Micros = Micros(1_000);

/// Age at which the stored sample of the server's time is replaced even if the new sample has wider
/// bounds. Before that age, the stored sample is kept if its bounds are narrower and do not
/// contradict those of the new sample.
const REFRESH_AGE: Micros = Micros(250_000);

/// Bounds on the server's time when it executed a command, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTimeSpan {
    /// Lower bound on the server's time when it executed the command.
    pub earliest: Micros,
    /// Upper bound on the server's time when it executed the command.
    pub latest: Micros,
    /// Whether the bounds are guaranteed. If false, the server's time was last read too long ago,
    /// and the bounds are only an estimate.
    pub is_certain: bool,
}

/// Lower and upper bounds on the server's current time, derived from the script replies on one
/// connection.
#[derive(Debug, Default)]
pub(crate) struct ServerTime {
    sample: Option<Sample>,
}

/// Server time in a script's reply, and the local times at which its command was written and its
/// reply was read.
#[derive(Clone, Copy, Debug)]
struct Sample {
    script_time: Micros,
    sent: Micros,
    received: Micros,
}

impl Sample {
    /// Returns the lower and upper bounds on the server's time at `now`. Does not check the age of
    /// the sample.
    fn bounds_at(&self, now: Micros) -> (Micros, Micros) {
        let at_script = |ours: Micros| now.saturating_add(self.script_time).saturating_sub(ours);
        let (earliest, latest) = (at_script(self.received), at_script(self.sent));
        (earliest.saturating_sub(CLOCK_DRIFT_MAX), latest.saturating_add(CLOCK_DRIFT_MAX))
    }

    fn round_trip_time(&self) -> Micros {
        self.received.saturating_sub(self.sent)
    }

    fn is_valid_at(&self, now: Micros) -> bool {
        now.saturating_sub(self.sent) <= AGE_MAX
    }
}

impl ServerTime {
    /// Records `script_time`, the server's time in a script's reply. The script call was written at
    /// `sent`, and its reply was read at `received`.
    pub(crate) fn record(&mut self, script_time: Micros, sent: Micros, received: Micros) {
        let new = Sample { script_time, sent, received };
        let keeps = self.sample.as_ref().is_some_and(|held| {
            let (earliest, latest) = held.bounds_at(received);
            let (new_earliest, new_latest) = new.bounds_at(received);
            // Bounds that contradict each other mean that the server's clock was set.
            let agrees = new_earliest <= latest && earliest <= new_latest;
            let is_recent = received.saturating_sub(held.sent) < REFRESH_AGE;
            agrees && is_recent && held.round_trip_time() < new.round_trip_time()
        });
        if !keeps {
            self.sample = Some(new);
        }
    }

    /// Returns the time until which the bounds on the server's time are valid; zero if there are
    /// none.
    pub(crate) fn valid_until(&self) -> Micros {
        self.sample.as_ref().map_or(Micros::ZERO, |sample| sample.sent.saturating_add(AGE_MAX))
    }

    /// Returns whether valid bounds on the server's time are known at `now`.
    pub(crate) fn is_known_at(&self, now: Micros) -> bool {
        self.sample.as_ref().is_some_and(|sample| sample.is_valid_at(now))
    }

    /// Returns bounds on the server's time when it executed a command that was written at `sent`
    /// and whose reply was read at `received`. Returns `None` if the server's time was never known.
    pub(crate) fn span(&self, sent: Micros, received: Micros) -> Option<ServerTimeSpan> {
        let sample = self.sample.as_ref()?;
        let ((earliest, _), (_, latest)) = (sample.bounds_at(sent), sample.bounds_at(received));
        // Replies come in order, so the sample's command was not written after this one.
        Some(ServerTimeSpan { earliest, latest, is_certain: sample.is_valid_at(received) })
    }
}

/// Time until which the server's time is known on a connection, so that callers can send plain
/// commands. In microseconds of the breaker's clock; zero if the server's time is unknown.
#[derive(Debug, Default)]
pub(crate) struct ServerTimeExpiry(AtomicU64);

impl ServerTimeExpiry {
    pub(crate) fn set(&self, until: Micros) {
        self.0.store(until.0, Ordering::Relaxed);
    }

    pub(crate) fn is_known_at(&self, now: Micros) -> bool {
        now.0 <= self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Micros = Micros(1_763_596_800_000_000);

    fn known(sent: u64, received: u64) -> ServerTime {
        let mut time = ServerTime::default();
        time.record(SERVER, Micros(sent), Micros(received));
        time
    }

    #[test]
    fn a_command_runs_between_the_bounds_at_sending_and_at_receiving() {
        let span = known(1_000, 1_400).span(Micros(2_000), Micros(2_500)).unwrap();
        assert!(span.is_certain);
        // The script ran 600 to 1,000 us before the command was written; 1 ms of drift on each
        // side.
        assert_eq!(span.earliest, Micros(SERVER.0 + 600 - 1_000));
        assert_eq!(span.latest, Micros(SERVER.0 + 1_500 + 1_000));
    }

    #[test]
    fn the_bounds_hold_for_one_second() {
        let time = known(1_000, 1_400);
        assert!(time.is_known_at(Micros(1_001_000)) && !time.is_known_at(Micros(1_001_001)));
        assert!(time.span(Micros(2_000), Micros(1_001_000)).unwrap().is_certain);
        let late = time.span(Micros(2_000), Micros(1_001_001)).unwrap();
        assert!(!late.is_certain, "an answer after a freeze proves nothing");
        assert!(ServerTime::default().span(Micros(1), Micros(2)).is_none());
    }

    #[test]
    fn a_reply_that_was_read_after_the_command_was_written_bounds_it_too() {
        let span = known(1_000, 1_400).span(Micros(1_200), Micros(1_500)).unwrap();
        assert_eq!(span.earliest, Micros(SERVER.0 - 200 - 1_000));
        assert_eq!(span.latest, Micros(SERVER.0 + 500 + 1_000));
    }

    #[test]
    fn a_slower_reply_replaces_a_faster_one_only_if_that_is_old_or_wrong() {
        let at = |micros| Micros(SERVER.0 + micros);
        let mut time = known(1_000, 1_100);
        time.record(at(4_000), Micros(2_000), Micros(6_000));
        assert_eq!(time.valid_until(), Micros(1_001_000), "the faster one is kept");
        time.record(at(248_000), Micros(246_999), Micros(250_999));
        assert_eq!(time.valid_until(), Micros(1_001_000), "it is not old yet");
        time.record(at(248_000), Micros(247_000), Micros(251_000));
        assert_eq!(time.valid_until(), Micros(1_247_000), "it is old");
        time.record(at(9_000_000), Micros(300_000), Micros(310_000));
        assert_eq!(time.valid_until(), Micros(1_300_000), "the server's clock was set forward");
        time.record(at(100_000), Micros(320_000), Micros(340_000));
        assert_eq!(time.valid_until(), Micros(1_320_000), "it was set back");
        time.record(at(120_000), Micros(340_000), Micros(360_000));
        assert_eq!(time.valid_until(), Micros(1_340_000), "the later of two equally fast replies");
    }

    #[test]
    fn callers_know_the_servers_time_until_the_bounds_expire() {
        let expiry = ServerTimeExpiry::default();
        assert!(!expiry.is_known_at(Micros(1)));
        expiry.set(Micros(5));
        assert!(expiry.is_known_at(Micros(5)) && !expiry.is_known_at(Micros(6)));
    }
}
