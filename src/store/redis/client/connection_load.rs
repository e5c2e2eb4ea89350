//! Load of one connection. Estimates how long a new call would wait for its reply, given the
//! commands that are outstanding.
//!
//! A call whose reply cannot arrive in time is rejected immediately. If it were written, it would
//! delay the calls behind it and would then be decided by the fallback anyway. To check the load, a
//! caller reads only four atomics. The connection's task updates the measurements once per batch of
//! replies, and every few milliseconds while the node is silent. Not here: the fallback
//! (`resilience`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::domain::Micros;

/// Length of each of the two windows over which the mean service time is computed.
const SERVICE_WINDOW: Micros = Micros(50_000);
/// Age, in milliseconds, after which measurements of the mean service time and of overdue replies
/// are ignored. By then, the connection has been idle or the circuit breaker is about to open.
const SERVICE_TIME_AGE_MAX_MS: i32 = 100;
/// Age, in milliseconds, after which a measurement of the smallest round trip is ignored.
const ROUND_TRIP_AGE_MAX_MS: i32 = 1_000;
/// Length of each of the two windows over which the smallest round trip is computed.
const ROUND_TRIP_WINDOW: Micros = Micros(500_000);

/// Load of a connection, shared by the connection's task and its callers.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLoad {
    /// Number of commands that are queued or in flight.
    outstanding: AtomicU32,
    /// Mean service time of a command, in nanoseconds.
    service_time: Measurement,
    /// Time by which the replies to the commands in flight are overdue, in microseconds.
    overdue: Measurement,
    /// Smallest round trip of the last second, in microseconds.
    round_trip_min: Measurement,
}

/// Measured value and the time of the measurement, packed into 64 bits. The low 32 bits hold the
/// value, and the high 32 bits hold the time in milliseconds.
#[derive(Debug, Default)]
struct Measurement(AtomicU64);

impl Measurement {
    fn set(&self, number: u64, now: Micros) {
        let number = u64::from(u32::try_from(number).unwrap_or(u32::MAX));
        self.0.store(u64::from(millis(now)) << 32 | number, Ordering::Relaxed);
    }

    /// Returns the measured value, or 0 if it is older than `age_max` milliseconds.
    fn get(&self, now: Micros, age_max: i32) -> u64 {
        let both = self.0.load(Ordering::Relaxed);
        // Signed, because the measurement may be a moment younger than `now`.
        let age = millis(now).wrapping_sub((both >> 32) as u32).cast_signed();
        if age > age_max { 0 } else { both & u64::from(u32::MAX) }
    }
}

impl ConnectionLoad {
    pub(crate) fn add(&self, commands: usize) {
        self.outstanding.fetch_add(to_u32(commands), Ordering::Relaxed);
    }

    /// Subtracts commands that got a reply, were rejected, or were lost.
    pub(crate) fn remove(&self, commands: usize) {
        self.outstanding.fetch_sub(to_u32(commands), Ordering::Relaxed);
    }

    /// Returns whether no command is queued or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed) == 0
    }

    /// Returns whether a mean service time above 0 was measured recently.
    pub(crate) fn is_measured(&self, now: Micros) -> bool {
        self.service_time.get(now, SERVICE_TIME_AGE_MAX_MS) > 0
    }

    /// Returns whether a call that is queued now can get its reply by `deadline`. The outstanding
    /// commands may take at most half of the time left. The other half is a margin for variance. If
    /// replies are overdue, the node is assumed to stay silent for as long again before it replies.
    /// The smallest round trip must also fit into the time left.
    pub(crate) fn can_reply_by(&self, now: Micros, deadline: Micros) -> bool {
        let left = deadline.saturating_sub(now).0;
        let service_ns = self.service_time.get(now, SERVICE_TIME_AGE_MAX_MS);
        let outstanding = u64::from(self.outstanding.load(Ordering::Relaxed));
        let overdue_ns = self.overdue.get(now, SERVICE_TIME_AGE_MAX_MS) * 1_000;
        // Nanoseconds against half of 1,000 times as many microseconds.
        outstanding * service_ns + overdue_ns <= left.saturating_mul(500)
            && self.round_trip_min.get(now, ROUND_TRIP_AGE_MAX_MS) <= left
    }
}

/// Meter of a connection. Measures the mean service time and the smallest round trip from the
/// replies, and how long replies are overdue. Owned by the connection's task.
#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    service_windows: [ServiceWindow; 2],
    round_trip_windows: [RoundTripWindow; 2],
    /// Time at which the latest batch of replies arrived.
    last_reply: Micros,
}

/// Busy time of a connection in one window, and the number of commands completed in that window.
#[derive(Clone, Copy, Debug, Default)]
struct ServiceWindow {
    start: Micros,
    busy_time: Micros,
    commands: u64,
}

/// Smallest round trip in one window. `smallest` is `None` if no round trip was measured.
#[derive(Clone, Copy, Debug, Default)]
struct RoundTripWindow {
    start: Micros,
    smallest: Option<Micros>,
}

impl LoadMeter {
    /// Returns the smallest round trip of the last second, or zero if there was none.
    pub(crate) fn round_trip_min(&self, now: Micros) -> Micros {
        let is_recent = |window: &&RoundTripWindow| {
            now.saturating_sub(window.start) < Micros(2 * ROUND_TRIP_WINDOW.0)
        };
        let recent = self.round_trip_windows.iter().filter(is_recent);
        recent.filter_map(|window| window.smallest).min().unwrap_or_default()
    }

    /// Returns how long the node has been silent, less the smallest recent round trip. Silence
    /// begins at the latest reply or at `sent`, whichever is later. `sent` is the time at which the
    /// oldest batch in flight was written.
    pub(crate) fn silence(&self, sent: Micros, now: Micros) -> Micros {
        let silence = now.saturating_sub(sent.max(self.last_reply));
        silence.saturating_sub(self.round_trip_min(now))
    }

    /// Updates `load` with the time by which the silence of the node exceeds the service time of
    /// the `in_flight` commands. Otherwise, calls would be sent to a frozen node until its circuit
    /// breaker opens. `sent` is the time at which the oldest batch in flight was written. Does
    /// nothing if no round trip was measured recently, because the silence may be network latency.
    pub(crate) fn record_silence(
        &self,
        load: &ConnectionLoad,
        sent: Micros,
        in_flight: usize,
        now: Micros,
    ) {
        if self.round_trip_min(now) > Micros::ZERO {
            let service = Micros(self.service_mean_ns() * in_flight as u64 / 1_000);
            load.overdue.set(self.silence(sent, now).saturating_sub(service).0, now);
        }
    }

    /// Returns the mean service time of a command in the two latest windows, in nanoseconds.
    fn service_mean_ns(&self) -> u64 {
        let [current, previous] = &self.service_windows;
        let commands = current.commands + previous.commands;
        (current.busy_time.0 + previous.busy_time.0).saturating_mul(1_000) / commands.max(1)
    }

    /// Records that the replies to a batch of `commands` commands, written at `sent`, arrived at
    /// `now`. Updates `load`.
    pub(crate) fn record(
        &mut self,
        load: &ConnectionLoad,
        sent: Micros,
        now: Micros,
        commands: usize,
    ) {
        let round_trip = now.saturating_sub(sent);
        let was_idle = sent >= self.last_reply;
        // Network latency in the first round trip after a pause does not count as service time.
        let busy = if was_idle {
            match self.round_trip_min(now) {
                Micros::ZERO => Micros::ZERO,
                smallest => round_trip.saturating_sub(smallest),
            }
        } else {
            now.saturating_sub(self.last_reply)
        };
        self.last_reply = now;
        if now.saturating_sub(self.round_trip_windows[0].start) >= ROUND_TRIP_WINDOW {
            self.round_trip_windows[1] = self.round_trip_windows[0];
            self.round_trip_windows[0] = RoundTripWindow { start: now, smallest: None };
        }
        let smallest = &mut self.round_trip_windows[0].smallest;
        *smallest = Some(smallest.map_or(round_trip, |known| known.min(round_trip)));
        if now.saturating_sub(self.service_windows[0].start) >= SERVICE_WINDOW {
            let is_recent =
                now.saturating_sub(self.service_windows[0].start) < Micros(2 * SERVICE_WINDOW.0);
            self.service_windows[1] =
                if is_recent { self.service_windows[0] } else { Default::default() };
            self.service_windows[0] = ServiceWindow { start: now, ..ServiceWindow::default() };
        }
        self.service_windows[0].busy_time = self.service_windows[0].busy_time.saturating_add(busy);
        self.service_windows[0].commands += commands as u64;
        load.service_time.set(self.service_mean_ns(), now);
        load.overdue.set(0, now);
        load.round_trip_min.set(self.round_trip_min(now).0, now);
    }
}

/// Returns a time in milliseconds, truncated to 32 bits. The result wraps around after 49 days.
fn millis(time: Micros) -> u32 {
    (time.0 / 1_000) as u32
}

fn to_u32(commands: usize) -> u32 {
    u32::try_from(commands).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_000_000_000);

    fn after(micros: u64) -> Micros {
        Micros(NOW.0 + micros)
    }

    /// Returns the load and the meter of a connection that gets the replies to a batch of 10
    /// commands every millisecond, 2 ms after the batch was written. Also returns the time 1 ms
    /// after the last reply.
    fn busy_connection() -> (ConnectionLoad, LoadMeter, Micros) {
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        let mut now = NOW;
        for _ in 0..200 {
            let sent = now.saturating_sub(Micros(2_000));
            meter.record(&load, sent, now, 10);
            now = now.saturating_add(Micros(1_000));
        }
        (load, meter, now)
    }

    #[test]
    fn a_call_fits_if_outstanding_commands_take_at_most_half_of_its_time() {
        let (load, _, now) = busy_connection();
        let deadline = now.saturating_add(Micros(16_000));
        load.add(80);
        assert!(load.can_reply_by(now, deadline), "80 commands take 8 ms of 16");
        load.add(1);
        assert!(!load.can_reply_by(now, deadline), "81 commands take 8.1 ms");
        assert!(load.can_reply_by(now, deadline.saturating_add(Micros(200))));
        load.remove(81);
        assert!(load.can_reply_by(now, now.saturating_add(Micros(2_000))), "one round trip");
        assert!(
            !load.can_reply_by(now, now.saturating_add(Micros(1_900))),
            "less than a round trip"
        );
    }

    #[test]
    fn a_call_without_a_deadline_always_fits() {
        let (load, _, now) = busy_connection();
        load.add(1_000_000);
        assert!(load.can_reply_by(now, Micros(u64::MAX)));
    }

    #[test]
    fn overdue_replies_are_expected_to_take_as_long_again() {
        // A command each millisecond, which takes 0.1 ms.
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        let mut now = NOW;
        for _ in 0..200 {
            now = now.saturating_add(Micros(1_000));
            meter.record(&load, now.saturating_sub(Micros(100)), now, 1);
        }
        let frozen_at = now;
        let fits_after = |millis: u64, budget: u64| {
            let now = frozen_at.saturating_add(Micros(millis * 1_000));
            meter.record_silence(&load, frozen_at, 2, now);
            load.can_reply_by(now, now.saturating_add(Micros(budget * 1_000)))
        };
        load.add(60);
        assert!(fits_after(4, 16));
        assert!(fits_after(8, 16), "7.9 ms overdue");
        assert!(!fits_after(9, 16), "8.9 ms overdue");
        assert!(!fits_after(40, 20));
        assert!(fits_after(40, 80), "39.9 ms overdue");
        assert!(fits_after(40, 2_000), "there is much time left");
        let now = frozen_at.saturating_add(Micros(41_000));
        meter.record(&load, frozen_at, now, 2);
        load.remove(60);
        assert!(load.can_reply_by(now, now.saturating_add(Micros(16_000))), "replies came");
    }

    #[test]
    fn a_stall_after_a_pause_does_not_reject_calls_that_can_wait() {
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        meter.record(&load, NOW, after(100), 1);
        load.add(60);
        // One command in flight, and 59 in the queue.
        meter.record_silence(&load, after(500_000), 1, after(520_000));
        assert!(load.can_reply_by(after(520_000), after(620_000)), "20 of 100 ms");
        assert!(!load.can_reply_by(after(520_000), after(536_000)), "20 of 16 ms");
    }

    #[test]
    fn a_large_batch_may_take_its_time() {
        let (load, meter, now) = busy_connection();
        load.add(80);
        // 80 commands at 0.1 ms each take 8 ms.
        let sent = now.saturating_sub(Micros(1_000));
        for micros in [4_000, 8_000] {
            let now = sent.saturating_add(Micros(2_000 + micros));
            meter.record_silence(&load, sent, 80, now);
            assert!(load.can_reply_by(now, now.saturating_add(Micros(16_000))), "{micros} us");
        }
        let now = sent.saturating_add(Micros(11_000));
        meter.record_silence(&load, sent, 80, now);
        assert!(!load.can_reply_by(now, now.saturating_add(Micros(16_000))), "1 ms overdue");
    }

    #[test]
    fn silence_excludes_the_round_trip() {
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        meter.record(&load, after(0), after(5_000), 1);
        assert_eq!(meter.silence(after(10_000), after(14_000)), Micros::ZERO);
        assert_eq!(meter.silence(after(10_000), after(18_000)), Micros(3_000));
        // The last reply came later than the batch was written.
        assert_eq!(meter.silence(after(0), after(12_000)), Micros(2_000));
    }

    #[test]
    fn silence_after_a_long_pause_is_not_recorded() {
        let (load, meter, now) = busy_connection();
        load.add(1_000_000);
        let sent = now.saturating_add(Micros(1_000_000));
        let later = sent.saturating_add(Micros(50_000));
        meter.record_silence(&load, sent, 1, later);
        assert!(load.can_reply_by(later, later.saturating_add(Micros(16_000))));
    }

    #[test]
    fn an_old_measurement_does_not_count() {
        let (load, meter, now) = busy_connection();
        load.add(1_000_000);
        let later = |micros| now.saturating_add(Micros(micros));
        assert!(!load.can_reply_by(later(98_000), later(114_000)));
        assert!(load.can_reply_by(later(102_000), later(118_000)));
        assert!(!load.can_reply_by(later(102_000), later(103_000)), "less than a round trip");
        assert!(load.can_reply_by(later(1_002_000), later(1_003_000)));
        assert_eq!(meter.round_trip_min(later(1_002_000)), Micros::ZERO);
    }

    #[test]
    fn network_latency_does_not_count_as_service_time() {
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        // One call at a time, 5 ms away, each as soon as the last is answered: the node is idle.
        for call in 0..100 {
            meter.record(&load, after(call * 5_000), after(call * 5_000 + 5_000), 1);
        }
        load.add(100);
        let now = after(500_000);
        assert!(!load.is_measured(now));
        assert!(load.can_reply_by(now, now.saturating_add(Micros(16_000))));
        assert_eq!(meter.round_trip_min(now), Micros(5_000));
        assert!(!load.can_reply_by(now, now.saturating_add(Micros(4_000))), "it is too far away");
    }

    #[test]
    fn the_smallest_round_trip_of_the_two_latest_half_seconds_counts() {
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        meter.record(&load, after(0), after(1_000), 1);
        meter.record(&load, after(100_000), after(105_000), 1);
        assert_eq!(meter.round_trip_min(after(105_000)), Micros(1_000));
        meter.record(&load, after(500_000), after(503_000), 1);
        assert_eq!(meter.round_trip_min(after(1_000_999)), Micros(1_000));
        assert_eq!(meter.round_trip_min(after(1_001_000)), Micros(3_000), "a second after it");
        meter.record(&load, after(1_001_000), after(1_006_000), 1);
        assert_eq!(meter.round_trip_min(after(1_502_999)), Micros(3_000));
        assert_eq!(meter.round_trip_min(after(1_503_000)), Micros(5_000));
    }

    #[test]
    fn service_times_before_a_pause_do_not_count() {
        let (load, mut meter, now) = busy_connection();
        assert!(load.is_measured(now));
        let later = now.saturating_add(Micros(2_000_000));
        meter.record(&load, later.saturating_sub(Micros(2_000)), later, 1);
        assert!(!load.is_measured(later));
    }
}
