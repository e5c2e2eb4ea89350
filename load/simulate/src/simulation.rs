//! Discrete-event simulation of a scenario: makes the calls in chronological order and records the
//! results.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::call_times::{CallTimes, Random};
use crate::scenario::{Group, Scenario, WhenRejected};

/// Attempt of a simulated call, for the engine to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Keys and values of the call's descriptor.
    pub entries: Vec<(String, String)>,
    /// Hits to charge.
    pub hits: u64,
    /// Simulated time, in microseconds since the Unix epoch.
    pub now_us: u64,
}

/// Decision on one attempt of a simulated call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptResult {
    /// Whether the attempt was admitted.
    pub admitted: bool,
    /// Whether a limit applies to the attempt.
    pub has_limit: bool,
    /// Time until a retry can succeed, in microseconds, or `None` if no retry can.
    pub retry_after_us: Option<u64>,
}

/// Results of one group of callers.
#[derive(Debug, Clone, Default)]
pub struct GroupResult {
    /// Name of the group in the scenario file.
    pub name: String,
    /// Whether every attempt has met no limit; false without attempts.
    pub is_unlimited: bool,
    /// Number of calls. Each call counts once, regardless of its retries.
    pub offered: u64,
    /// Number of attempts, including retries.
    pub tries: u64,
    /// Number of admitted attempts.
    pub admitted: u64,
    /// Number of rejected attempts.
    pub refused: u64,
    /// Time of the first rejected attempt, in seconds after the start of the scenario; `None` if
    /// there was none.
    pub first_rejection_s: Option<f64>,
    /// Waits of calls that were rejected and later admitted, in seconds, ascending. Each wait is
    /// the time from the first attempt to the admitted one.
    pub waits_s: Vec<f64>,
    /// Numbers of admitted and rejected attempts per time slice, in chronological order.
    pub slices: Vec<TimeSlice>,
}

impl GroupResult {
    /// Returns the share of attempts that were admitted, from 0 to 1, or 1 if there were no
    /// attempts.
    pub fn admitted_share(&self) -> f64 {
        if self.tries == 0 { 1.0 } else { self.admitted as f64 / self.tries as f64 }
    }

    /// Returns a quantile (0 to 1) of the waits of admitted calls, in seconds. Calls admitted on
    /// the first attempt count as 0 s. Returns `None` if no call was admitted.
    pub fn wait_quantile_s(&self, share: f64) -> Option<f64> {
        let last = self.admitted.checked_sub(1)?;
        let at_once = self.admitted.saturating_sub(self.waits_s.len() as u64);
        let nth = (last as f64 * share).ceil() as u64;
        let waited = nth.checked_sub(at_once).and_then(|nth| self.waits_s.get(nth as usize));
        Some(waited.copied().unwrap_or(0.0))
    }
}

/// Numbers of admitted and rejected attempts within one time slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeSlice {
    /// Number of admitted attempts.
    pub admitted: u64,
    /// Number of rejected attempts.
    pub refused: u64,
}

/// Result of simulating one scenario.
#[derive(Debug, Clone)]
pub struct SimulationResult {
    /// Results of the groups, in the order of the scenario file.
    pub groups: Vec<GroupResult>,
    /// Length of a time slice, in seconds.
    pub slice_s: f64,
    /// Maximum number of hits admitted in any interval of `window_s` seconds, and the start of that
    /// interval, in seconds after the start of the scenario.
    pub window_max: (u64, f64),
    /// Maximum number of calls admitted in any interval of one second.
    pub one_second_max: u64,
    /// Time of the last attempt, in seconds after the start of the scenario.
    pub last_attempt_s: f64,
}

/// Maximum number of hits or calls in any interval of a fixed length. Updated with one event at a
/// time, in chronological order.
#[derive(Debug)]
struct WindowMax {
    length_us: u64,
    events: VecDeque<(u64, u64)>,
    sum: u64,
    max: (u64, u64),
}

impl WindowMax {
    fn new(length_us: u64) -> WindowMax {
        WindowMax { length_us, events: VecDeque::new(), sum: 0, max: (0, 0) }
    }

    fn add(&mut self, at_us: u64, amount: u64) {
        while let Some(&(oldest, gone)) = self.events.front() {
            if oldest + self.length_us > at_us {
                break;
            }
            self.events.pop_front();
            self.sum -= gone;
        }
        self.events.push_back((at_us, amount));
        self.sum += amount;
        if self.sum > self.max.0 {
            self.max = (self.sum, self.events.front().map_or(at_us, |&(oldest, _)| oldest));
        }
    }
}

/// Scheduled attempt of a call. Attempts are ordered by time and then by sequence number, so that
/// runs are deterministic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ScheduledAttempt {
    at_us: u64,
    sequence: u64,
    group: usize,
    client: u32,
    first_attempt_us: u64,
    retries_left: u32,
    is_first: bool,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    schedule: BinaryHeap<Reverse<ScheduledAttempt>>,
    sequence: u64,
    call_times: Vec<Vec<CallTimes>>,
    random: Random,
    result: SimulationResult,
}

/// Runs a scenario. Calls `decide` for each attempt, in chronological order.
///
/// Attempts that are due later than twice the duration of the scenario are dropped.
///
/// # Errors
///
/// Returns the first error that `decide` returns.
pub fn run<E>(
    scenario: &Scenario,
    mut decide: impl FnMut(&Attempt) -> Result<AttemptResult, E>,
) -> Result<SimulationResult, E> {
    let mut run = Simulation::new(scenario);
    let mut in_window = WindowMax::new(to_micros(scenario.window_s));
    let mut in_second = WindowMax::new(1_000_000);
    while let Some(Reverse(due)) = run.schedule.pop() {
        if due.at_us > to_micros(scenario.lasts_s * 2.0) {
            continue;
        }
        let group = &scenario.groups[due.group];
        let outcome = decide(&Attempt {
            entries: group.entries(due.client),
            hits: group.hits,
            now_us: scenario.starts_at_s * 1_000_000 + due.at_us,
        })?;
        if outcome.admitted {
            in_window.add(due.at_us, group.hits);
            in_second.add(due.at_us, 1);
        }
        let attempts = &mut run.result.groups[due.group];
        attempts.is_unlimited =
            !outcome.has_limit && (attempts.tries == 0 || attempts.is_unlimited);
        run.record(&due, outcome);
        run.schedule_next(&due, group, outcome);
    }
    run.result.window_max = (in_window.max.0, in_window.max.1 as f64 / 1e6);
    run.result.one_second_max = in_second.max.0;
    for group in &mut run.result.groups {
        group.waits_s.sort_by(f64::total_cmp);
    }
    Ok(run.result)
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Simulation<'a> {
        let slice_s = scenario.slice_s.unwrap_or(scenario.lasts_s / 12.0);
        let result = SimulationResult {
            groups: scenario
                .groups
                .iter()
                .map(|group| GroupResult { name: group.name.clone(), ..GroupResult::default() })
                .collect(),
            slice_s,
            window_max: (0, 0.0),
            one_second_max: 0,
            last_attempt_s: 0.0,
        };
        let mut run = Simulation {
            scenario,
            schedule: BinaryHeap::new(),
            sequence: 0,
            call_times: Vec::new(),
            random: Random::new(scenario.seed, u64::MAX),
            result,
        };
        for (nth, group) in scenario.groups.iter().enumerate() {
            let caller = |client| {
                let stream = ((nth as u64) << 32) | u64::from(client);
                CallTimes::new(group, client, scenario.lasts_s, Random::new(scenario.seed, stream))
            };
            run.call_times.push((0..group.clients).map(caller).collect());
            for client in 0..group.clients {
                run.schedule_call(nth, client);
            }
        }
        run
    }

    fn push(&mut self, due: ScheduledAttempt) {
        self.sequence += 1;
        self.schedule.push(Reverse(ScheduledAttempt { sequence: self.sequence, ..due }));
    }

    /// Schedules the first attempt of a caller's next call.
    fn schedule_call(&mut self, group: usize, client: u32) {
        let Some(at_s) = self.call_times[group][client as usize].next() else { return };
        let retries_left = match self.scenario.groups[group].when_rejected {
            WhenRejected::GiveUp => 0,
            WhenRejected::Honour { tries } | WhenRejected::Insist { tries, .. } => tries,
        };
        let at_us = to_micros(at_s);
        self.push(ScheduledAttempt {
            at_us,
            sequence: 0,
            group,
            client,
            first_attempt_us: at_us,
            retries_left,
            is_first: true,
        });
    }

    fn record(&mut self, due: &ScheduledAttempt, outcome: AttemptResult) {
        let slice = (due.at_us as f64 / 1e6 / self.result.slice_s) as usize;
        let at_s = due.at_us as f64 / 1e6;
        self.result.last_attempt_s = self.result.last_attempt_s.max(at_s);
        let group = &mut self.result.groups[due.group];
        if group.slices.len() <= slice {
            group.slices.resize(slice + 1, TimeSlice::default());
        }
        group.tries += 1;
        group.offered += u64::from(due.is_first);
        if outcome.admitted {
            group.admitted += 1;
            group.slices[slice].admitted += 1;
            if !due.is_first {
                group.waits_s.push((due.at_us - due.first_attempt_us) as f64 / 1e6);
            }
        } else {
            group.refused += 1;
            group.slices[slice].refused += 1;
            group.first_rejection_s.get_or_insert(at_s);
        }
    }

    /// Schedules the caller's next call if `due` was the first attempt of a call. Schedules a
    /// retry if `due` was rejected and the group's `when_rejected` provides for a retry.
    fn schedule_next(&mut self, due: &ScheduledAttempt, group: &Group, outcome: AttemptResult) {
        if due.is_first {
            self.schedule_call(due.group, due.client);
        }
        if outcome.admitted || due.retries_left == 0 {
            return;
        }
        let wait_s = match (group.when_rejected, outcome.retry_after_us) {
            (WhenRejected::GiveUp, _) | (WhenRejected::Honour { .. }, None) => return,
            (WhenRejected::Insist { after_s, .. }, _) => after_s,
            (WhenRejected::Honour { .. }, Some(wait_us)) => {
                // Same as the service's Retry-After header: spread first, then round up to seconds.
                let spread = f64::from(self.scenario.retry_after_spread_percent) / 100.0;
                let more = wait_us as f64 * spread * self.random.next_fraction();
                wait_us.saturating_add(more as u64).div_ceil(1_000_000).max(1) as f64
            }
        };
        let at_us = due.at_us + to_micros(wait_s);
        let retries_left = due.retries_left - 1;
        self.push(ScheduledAttempt { at_us, retries_left, is_first: false, ..*due });
    }
}

fn to_micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use crate::*;

    fn outcome(admitted: bool, retry_after_us: Option<u64>) -> Result<AttemptResult, Infallible> {
        Ok(AttemptResult { has_limit: true, admitted, retry_after_us })
    }

    fn scenario(groups: &str) -> Scenario {
        let text = format!("{{about: t, policy: '', lasts_s: 10, window_s: 1, groups: {groups}}}");
        Scenario::parse(&text, &[]).unwrap()
    }

    #[test]
    fn every_call_and_every_attempt_is_counted_once() {
        let scenario = scenario(
            "[{name: a, descriptor: 'k=v', arrivals: {constant: {rate: 10}},
               when_rejected: {insist: {after_s: 0.5, tries: 3}}}]",
        );
        let result = run(&scenario, |_| outcome(false, None)).unwrap();
        let group = &result.groups[0];
        assert_eq!((group.offered, group.tries, group.admitted), (100, 400, 0));
        assert_eq!(group.first_rejection_s, Some(0.0));
    }

    #[test]
    fn a_caller_that_honours_retry_after_does_not_retry_earlier() {
        let scenario = scenario(
            "[{name: a, descriptor: 'k=v', arrivals: {burst: {at_s: 1, count: 1}},
               when_rejected: {honour: {tries: 1}}}]",
        );
        let mut times = Vec::new();
        let result = run(&scenario, |attempt| {
            times.push(attempt.now_us);
            outcome(times.len() == 2, Some(1_200_000))
        })
        .unwrap();
        assert_eq!(times[1] - times[0], 2_000_000, "the header says whole seconds, rounded up");
        assert_eq!(result.groups[0].waits_s, [2.0]);
        assert_eq!(result.groups[0].wait_quantile_s(0.99), Some(2.0));
    }

    #[test]
    fn a_call_admitted_on_its_first_attempt_has_no_wait() {
        let waited =
            GroupResult { admitted: 10, waits_s: vec![1.0, 7.0], ..GroupResult::default() };
        assert_eq!(
            (waited.wait_quantile_s(0.5), waited.wait_quantile_s(0.99)),
            (Some(0.0), Some(7.0))
        );
        assert_eq!(GroupResult::default().wait_quantile_s(0.5), None);
    }

    #[test]
    fn the_largest_window_is_found_wherever_it_starts() {
        let scenario = scenario(
            "[{name: a, descriptor: 'k=v', arrivals: {burst: {at_s: 2.9, count: 5}}},
              {name: b, descriptor: 'k=v', arrivals: {burst: {at_s: 3.1, count: 7}}},
              {name: c, descriptor: 'k=v', arrivals: {burst: {at_s: 3.95, count: 9}}}]",
        );
        let result = run(&scenario, |_| outcome(true, None)).unwrap();
        assert_eq!(result.window_max, (16, 3.1));
    }
}
