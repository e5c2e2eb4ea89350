//! Load of one connection. Estimates how long a new call would wait, given the commands that are
//! outstanding.
//!
//! A call whose reply cannot arrive in time is rejected immediately. If it were written, it would
//! delay the calls behind it, and the fallback would decide it anyway. Callers read three atomics.
//! The connection's task updates the measurements once per batch of replies, and every few
//! milliseconds while the node is silent. Not here: the fallback (`resilience`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::domain::Micros;

/// Length of each of the two windows over which the mean service time is computed.
const SERVICE_WINDOW: Micros = Micros(50_000);
/// Age, in milliseconds, after which the mean service time is ignored. By then, the connection has
/// been idle or the circuit breaker is about to open.
const SERVICE_AGE_MAX_MS: i32 = 100;
/// Age, in milliseconds, after which the smallest round trip is ignored.
const ROUND_TRIP_AGE_MAX_MS: i32 = 1_000;
/// Length of each of the two windows over which the smallest round trip is computed.
const ROUND_TRIP_WINDOW: Micros = Micros(500_000);

/// Load of a connection, shared by the connection's task and its callers.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLoad {
    /// Number of commands that are queued or in flight.
    outstanding: AtomicU32,
    /// Mean service time of a command, in nanoseconds.
    service: Measurement,
    /// Smallest round trip of the last second, in microseconds.
    round_trip_min: Measurement,
}

/// Measured value and the time of the measurement, packed into one word: the value in the low 32
/// bits, and the time, in milliseconds, in the high 32 bits.
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
    /// Adds newly queued commands to the load.
    pub(crate) fn add(&self, commands: usize) {
        self.outstanding.fetch_add(to_u32(commands), Ordering::Relaxed);
    }

    /// Subtracts commands that got a reply, were rejected, or were lost.
    pub(crate) fn remove(&self, commands: usize) {
        self.outstanding.fetch_sub(to_u32(commands), Ordering::Relaxed);
    }

    /// Returns whether a mean service time above 0 was measured recently.
    pub(crate) fn is_measured(&self, now: Micros) -> bool {
        self.service.get(now, SERVICE_AGE_MAX_MS) > 0
    }

    /// Returns whether a call that is queued now can get its reply by `deadline`. The outstanding
    /// commands may take at most half of the time left; the other half is a margin for variance.
    /// The smallest round trip must also fit into the time left.
    pub(crate) fn can_answer_by(&self, now: Micros, deadline: Micros) -> bool {
        let left = deadline.saturating_sub(now).0;
        let service_ns = self.service.get(now, SERVICE_AGE_MAX_MS);
        let outstanding = u64::from(self.outstanding.load(Ordering::Relaxed));
        // Nanoseconds against half of 1,000 times as many microseconds.
        outstanding * service_ns <= left.saturating_mul(500)
            && self.round_trip_min.get(now, ROUND_TRIP_AGE_MAX_MS) <= left
    }
}

/// Meter of a connection's mean service time and smallest round trip, both computed from the
/// replies. The mean also counts the time for which the node is silent. Owned by the connection's
/// task.
#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    service: [ServiceWindow; 2],
    round_trips: [RoundTripWindow; 2],
    /// Time at which the latest batch of replies arrived.
    last_reply: Micros,
}

/// Busy time of a connection in one window, and the number of commands completed in that window.
#[derive(Clone, Copy, Debug, Default)]
struct ServiceWindow {
    start: Micros,
    busy: Micros,
    commands: u64,
}

/// Smallest round trip in one window, if any round trip was measured.
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
        let recent = self.round_trips.iter().filter(is_recent);
        recent.filter_map(|window| window.smallest).min().unwrap_or_default()
    }

    /// Returns how long the node has been silent, less the smallest recent round trip. Silence
    /// begins at the latest reply or at `sent`, whichever is later. `sent` is the time at which the
    /// oldest batch in flight was written.
    pub(crate) fn silence(&self, sent: Micros, now: Micros) -> Micros {
        let silence = now.saturating_sub(sent.max(self.last_reply));
        silence.saturating_sub(self.round_trip_min(now))
    }

    /// Counts the time for which the node has been silent as service time in `load`, as if the
    /// replies to all `in_flight` commands arrived now. Otherwise, calls would be sent to a frozen
    /// node until its circuit breaker opens. `sent` is the time at which the oldest batch in flight
    /// was written. Does nothing unless a reply arrived shortly before `sent` or later, because
    /// otherwise the mean service time is unknown.
    pub(crate) fn record_silence(
        &self,
        load: &ConnectionLoad,
        sent: Micros,
        in_flight: usize,
        now: Micros,
    ) {
        if sent.saturating_sub(self.service[0].start) < Micros(2 * SERVICE_WINDOW.0) {
            self.update_mean(load, self.silence(sent, now), in_flight as u64, now);
        }
    }

    /// Stores a mean service time in `load`. The mean covers the two latest windows, plus
    /// `commands` commands that took `busy` in total. Does not change the windows.
    fn update_mean(&self, load: &ConnectionLoad, busy: Micros, commands: u64, now: Micros) {
        let [current, previous] = &self.service;
        let busy_us = current.busy.0 + previous.busy.0 + busy.0;
        let commands = current.commands + previous.commands + commands;
        load.service.set(busy_us.saturating_mul(1_000) / commands.max(1), now);
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
        // The network's part of the first round trip after a pause is no service time.
        let busy = if was_idle {
            match self.round_trip_min(now) {
                Micros::ZERO => Micros::ZERO,
                smallest => round_trip.saturating_sub(smallest),
            }
        } else {
            now.saturating_sub(self.last_reply)
        };
        self.last_reply = now;
        if now.saturating_sub(self.round_trips[0].start) >= ROUND_TRIP_WINDOW {
            self.round_trips[1] = self.round_trips[0];
            self.round_trips[0] = RoundTripWindow { start: now, smallest: None };
        }
        let smallest = &mut self.round_trips[0].smallest;
        *smallest = Some(smallest.map_or(round_trip, |known| known.min(round_trip)));
        if now.saturating_sub(self.service[0].start) >= SERVICE_WINDOW {
            let is_recent =
                now.saturating_sub(self.service[0].start) < Micros(2 * SERVICE_WINDOW.0);
            self.service[1] = if is_recent { self.service[0] } else { Default::default() };
            self.service[0] = ServiceWindow { start: now, ..ServiceWindow::default() };
        }
        self.service[0].busy = self.service[0].busy.saturating_add(busy);
        self.service[0].commands += commands as u64;
        self.update_mean(load, Micros::ZERO, 0, now);
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

    /// Returns the load of a connection that replies to a batch of 10 commands every millisecond, 2
    /// ms after it was written.
    fn busy() -> (ConnectionLoad, LoadMeter, Micros) {
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
    fn a_call_fits_if_what_is_outstanding_takes_half_of_its_time_at_most() {
        let (load, _, now) = busy();
        let deadline = now.saturating_add(Micros(16_000));
        load.add(79);
        assert!(load.can_answer_by(now, deadline), "79 commands take 7.9 ms of 16");
        load.add(3);
        assert!(!load.can_answer_by(now, deadline), "82 commands take 8.2 ms");
        assert!(load.can_answer_by(now, deadline.saturating_add(Micros(2_000))));
        load.remove(82);
        assert!(load.can_answer_by(now, now.saturating_add(Micros(2_000))), "one round trip");
        assert!(
            !load.can_answer_by(now, now.saturating_add(Micros(1_900))),
            "less than a round trip"
        );
    }

    #[test]
    fn a_call_without_a_deadline_always_fits() {
        let (load, _, now) = busy();
        load.add(1_000_000);
        assert!(load.can_answer_by(now, Micros(u64::MAX)));
    }

    #[test]
    fn a_silence_that_lasts_counts_as_service_time() {
        // A command each millisecond, which takes 0.1 ms.
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        let mut now = NOW;
        for _ in 0..200 {
            now = now.saturating_add(Micros(1_000));
            meter.record(&load, now.saturating_sub(Micros(100)), now, 1);
        }
        let frozen_at = now;
        let fits_after = |millis: u64| {
            let now = frozen_at.saturating_add(Micros(millis * 1_000));
            meter.record_silence(&load, frozen_at, 2, now);
            load.can_answer_by(now, now.saturating_add(Micros(16_000)))
        };
        load.add(4);
        assert!(fits_after(4), "4 commands at 0.04 ms");
        load.add(16);
        assert!(fits_after(20), "20 commands at 0.2 ms");
        load.add(12);
        assert!(!fits_after(32), "32 commands at 0.32 ms");
        load.remove(31);
        assert!(fits_after(32), "one command at 0.32 ms");
    }

    #[test]
    fn a_large_batch_may_take_its_time() {
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        meter.record(&load, NOW, after(100), 1);
        load.add(512);
        let now = after(20_100);
        // 128 commands take 0.16 ms each, so 512 take 80 ms.
        meter.record_silence(&load, after(100), 128, now);
        assert!(load.can_answer_by(now, now.saturating_add(Micros(200_000))));
        assert!(!load.can_answer_by(now, now.saturating_add(Micros(100_000))));
    }

    #[test]
    fn a_silence_is_what_exceeds_the_round_trip() {
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        meter.record(&load, after(0), after(5_000), 1);
        assert_eq!(meter.silence(after(10_000), after(14_000)), Micros::ZERO);
        assert_eq!(meter.silence(after(10_000), after(18_000)), Micros(3_000));
        // The last reply came later than the batch was written.
        assert_eq!(meter.silence(after(0), after(12_000)), Micros(2_000));
    }

    #[test]
    fn a_silence_after_a_pause_is_no_measurement() {
        let (load, meter, now) = busy();
        load.add(1_000_000);
        let sent = now.saturating_add(Micros(200_000));
        let later = sent.saturating_add(Micros(50_000));
        meter.record_silence(&load, sent, 1, later);
        assert!(load.can_answer_by(later, later.saturating_add(Micros(16_000))));
    }

    #[test]
    fn an_old_measurement_does_not_count() {
        let (load, meter, now) = busy();
        load.add(1_000_000);
        let later = |micros| now.saturating_add(Micros(micros));
        assert!(!load.can_answer_by(later(98_000), later(114_000)));
        assert!(load.can_answer_by(later(102_000), later(118_000)));
        assert!(!load.can_answer_by(later(102_000), later(103_000)), "less than a round trip");
        assert!(load.can_answer_by(later(1_002_000), later(1_003_000)));
        assert_eq!(meter.round_trip_min(later(1_002_000)), Micros::ZERO);
    }

    #[test]
    fn the_network_is_no_service_time() {
        let (load, mut meter) = (ConnectionLoad::default(), LoadMeter::default());
        // One call at a time, 5 ms away: the node is idle.
        for call in 0..100 {
            meter.record(&load, after(call * 10_000), after(call * 10_000 + 5_000), 1);
        }
        load.add(100);
        let now = after(1_000_000);
        assert!(load.can_answer_by(now, now.saturating_add(Micros(16_000))));
        assert_eq!(meter.round_trip_min(now), Micros(5_000));
        assert!(!load.can_answer_by(now, now.saturating_add(Micros(4_000))), "it is too far away");
    }
}
