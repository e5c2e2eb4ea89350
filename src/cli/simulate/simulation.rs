//! Runs a scenario: the real decider on simulated time.
//!
//! Not here: where the traffic comes from (`traffic`), how the result is shown (`report`,
//! `chart`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::scenario::{Group, Scenario, WhenRefused};
use super::traffic::{Calls, Random};
use crate::domain::Micros;

/// What the engine says to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// It may pass.
    pub admitted: bool,
    /// How long to wait, if that helps.
    pub retry_after: Option<Micros>,
}

/// What became of a group's calls.
#[derive(Debug, Clone, Default)]
pub struct GroupRan {
    /// Its name.
    pub name: String,
    /// Calls that were wanted, each counted once however often it was tried.
    pub offered: u64,
    /// Tries.
    pub tries: u64,
    /// Tries that were admitted.
    pub admitted: u64,
    /// Tries that were refused.
    pub refused: u64,
    /// When the first try was refused, in seconds after the beginning.
    pub first_refusal_s: Option<f64>,
    /// Waits of the calls that were admitted after a refusal, from the first try to the admitted
    /// one, in seconds, the shortest first.
    pub waits_s: Vec<f64>,
    /// Admitted and refused tries by slice of time.
    pub slices: Vec<Slice>,
}

impl GroupRan {
    /// The part of the tries that was admitted; 1 where nobody tried.
    pub fn accepted(&self) -> f64 {
        if self.tries == 0 { 1.0 } else { self.admitted as f64 / self.tries as f64 }
    }

    /// How long that share (0 to 1) of the admitted calls waited at most, in seconds; `None` if none
    /// was admitted. Calls that were admitted at the first try waited for 0 s.
    pub fn wait_s(&self, share: f64) -> Option<f64> {
        let last = self.admitted.checked_sub(1)?;
        let at_once = self.admitted.saturating_sub(self.waits_s.len() as u64);
        let nth = (last as f64 * share).ceil() as u64;
        let waited = nth.checked_sub(at_once).and_then(|nth| self.waits_s.get(nth as usize));
        Some(waited.copied().unwrap_or(0.0))
    }
}

/// A slice of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slice {
    /// Tries that were admitted.
    pub admitted: u64,
    /// Tries that were refused.
    pub refused: u64,
}

/// A finished run.
#[derive(Debug, Clone)]
pub struct Ran {
    /// By group, in the scenario's order.
    pub groups: Vec<GroupRan>,
    /// The length of a slice, in seconds.
    pub slice_s: f64,
    /// The largest number of hits admitted in any interval of the scenario's window, and when such
    /// an interval began, in seconds after the beginning.
    pub window_max: (u64, f64),
    /// The largest number of calls that reached the backend in any second.
    pub second_max: u64,
    /// When the last call was answered, in seconds after the beginning.
    pub ended_s: f64,
}

/// The largest sum in any window, in one pass (a two-pointer sweep over the events).
#[derive(Debug)]
struct WindowMax {
    length_us: u64,
    inside: VecDeque<(u64, u64)>,
    sum: u64,
    max: (u64, u64),
}

impl WindowMax {
    fn new(length_us: u64) -> WindowMax {
        WindowMax { length_us, inside: VecDeque::new(), sum: 0, max: (0, 0) }
    }

    fn add(&mut self, at_us: u64, amount: u64) {
        while let Some(&(oldest, gone)) = self.inside.front() {
            if oldest + self.length_us > at_us {
                break;
            }
            self.inside.pop_front();
            self.sum -= gone;
        }
        self.inside.push_back((at_us, amount));
        self.sum += amount;
        if self.sum > self.max.0 {
            self.max = (self.sum, self.inside.front().map_or(at_us, |&(oldest, _)| oldest));
        }
    }
}

/// A try that is due. Ordered by time, then by the order in which it was planned, so that a run is
/// the same every time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at_us: u64,
    planned: u64,
    group: usize,
    client: u32,
    first_us: u64,
    tries_left: u32,
    fresh: bool,
}

struct Run<'a> {
    scenario: &'a Scenario,
    due: BinaryHeap<Reverse<Due>>,
    planned: u64,
    callers: Vec<Vec<Calls>>,
    random: Random,
    ran: Ran,
}

/// Runs a scenario against `ask(group, client, now)`.
///
/// Callers that retry are followed for as long again as calls are generated, and no longer.
///
/// # Errors
///
/// The first one of `ask`.
pub fn run<E>(
    scenario: &Scenario,
    mut ask: impl FnMut(&Group, u32, Micros) -> Result<Said, E>,
) -> Result<Ran, E> {
    let mut run = Run::new(scenario);
    let mut in_window = WindowMax::new(micros(scenario.window_s));
    let mut in_second = WindowMax::new(1_000_000);
    while let Some(Reverse(due)) = run.due.pop() {
        if due.at_us > micros(scenario.lasts_s * 2.0) {
            continue;
        }
        let group = &scenario.groups[due.group];
        let now = Micros(scenario.starts_at_s * 1_000_000 + due.at_us);
        let said = ask(group, due.client, now)?;
        if said.admitted {
            in_window.add(due.at_us, group.hits);
            in_second.add(due.at_us, 1);
        }
        run.note(&due, said);
        run.plan_again(&due, group, said);
    }
    run.ran.window_max = (in_window.max.0, in_window.max.1 as f64 / 1e6);
    run.ran.second_max = in_second.max.0;
    for group in &mut run.ran.groups {
        group.waits_s.sort_by(f64::total_cmp);
    }
    Ok(run.ran)
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Run<'a> {
        let slice_s = scenario.slice_s.unwrap_or(scenario.lasts_s / 12.0);
        let ran = Ran {
            groups: scenario
                .groups
                .iter()
                .map(|group| GroupRan { name: group.name.clone(), ..GroupRan::default() })
                .collect(),
            slice_s,
            window_max: (0, 0.0),
            second_max: 0,
            ended_s: 0.0,
        };
        let mut run = Run {
            scenario,
            due: BinaryHeap::new(),
            planned: 0,
            callers: Vec::new(),
            random: Random::new(scenario.seed, u64::MAX),
            ran,
        };
        for (nth, group) in scenario.groups.iter().enumerate() {
            let caller = |client| {
                let stream = ((nth as u64) << 32) | u64::from(client);
                Calls::of(group, client, scenario.lasts_s, Random::new(scenario.seed, stream))
            };
            run.callers.push((0..group.clients).map(caller).collect());
            for client in 0..group.clients {
                run.plan_fresh(nth, client);
            }
        }
        run
    }

    fn push(&mut self, due: Due) {
        self.planned += 1;
        self.due.push(Reverse(Due { planned: self.planned, ..due }));
    }

    fn plan_fresh(&mut self, group: usize, client: u32) {
        let Some(at_s) = self.callers[group][client as usize].next() else { return };
        let tries_left = match self.scenario.groups[group].when_refused {
            WhenRefused::GiveUp => 0,
            WhenRefused::Honour { tries } | WhenRefused::Insist { tries, .. } => tries,
        };
        let at_us = micros(at_s);
        let first =
            Due { at_us, planned: 0, group, client, first_us: at_us, tries_left, fresh: true };
        self.push(first);
    }

    fn note(&mut self, due: &Due, said: Said) {
        let slice = (due.at_us as f64 / 1e6 / self.ran.slice_s) as usize;
        let at_s = due.at_us as f64 / 1e6;
        self.ran.ended_s = self.ran.ended_s.max(at_s);
        let group = &mut self.ran.groups[due.group];
        if group.slices.len() <= slice {
            group.slices.resize(slice + 1, Slice::default());
        }
        group.tries += 1;
        group.offered += u64::from(due.fresh);
        if said.admitted {
            group.admitted += 1;
            group.slices[slice].admitted += 1;
            if !due.fresh {
                group.waits_s.push((due.at_us - due.first_us) as f64 / 1e6);
            }
        } else {
            group.refused += 1;
            group.slices[slice].refused += 1;
            group.first_refusal_s.get_or_insert(at_s);
        }
    }

    fn plan_again(&mut self, due: &Due, group: &Group, said: Said) {
        if due.fresh {
            self.plan_fresh(due.group, due.client);
        }
        if said.admitted || due.tries_left == 0 {
            return;
        }
        let wait_s = match (group.when_refused, said.retry_after) {
            (WhenRefused::GiveUp, _) | (WhenRefused::Honour { .. }, None) => return,
            (WhenRefused::Insist { after_s, .. }, _) => after_s,
            (WhenRefused::Honour { .. }, Some(wait)) => {
                // As the service writes the header: spread first, then whole seconds, rounded up.
                let spread = f64::from(self.scenario.retry_after_spread_percent) / 100.0;
                let more = wait.0 as f64 * spread * self.random.fraction();
                Micros(wait.0.saturating_add(more as u64)).ceil_secs().max(1) as f64
            }
        };
        let at_us = due.at_us + micros(wait_s);
        self.push(Due { at_us, tries_left: due.tries_left - 1, fresh: false, ..*due });
    }
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn said(admitted: bool, retry_after: Option<Micros>) -> Result<Said, Infallible> {
        Ok(Said { admitted, retry_after })
    }

    fn scenario(groups: &str) -> Scenario {
        let text = format!("{{about: t, policy: '', lasts_s: 10, window_s: 1, groups: {groups}}}");
        Scenario::read(&text, &[]).unwrap()
    }

    #[test]
    fn every_call_is_counted_once_and_every_try_too() {
        let scenario = scenario(
            "[{name: a, descriptor: 'k=v', arrivals: {constant: {rate: 10}},
               when_refused: {insist: {after_s: 0.5, tries: 3}}}]",
        );
        let ran = run(&scenario, |_, _, _| said(false, None)).unwrap();
        let group = &ran.groups[0];
        assert_eq!((group.offered, group.tries, group.admitted), (100, 400, 0));
        assert_eq!(group.first_refusal_s, Some(0.0));
    }

    #[test]
    fn a_caller_who_honours_the_wait_comes_back_then_and_not_earlier() {
        let scenario = scenario(
            "[{name: a, descriptor: 'k=v', arrivals: {burst: {at_s: 1, count: 1}},
               when_refused: {honour: {tries: 1}}}]",
        );
        let mut times = Vec::new();
        let ran = run(&scenario, |_, _, now| {
            times.push(now.0);
            said(times.len() == 2, Some(Micros(1_200_000)))
        })
        .unwrap();
        assert_eq!(times[1] - times[0], 2_000_000, "the header says whole seconds, rounded up");
        assert_eq!(ran.groups[0].waits_s, [2.0]);
        assert_eq!(ran.groups[0].wait_s(0.99), Some(2.0));
    }

    #[test]
    fn a_call_that_passed_at_once_waited_for_nothing() {
        let waited = GroupRan { admitted: 10, waits_s: vec![1.0, 7.0], ..GroupRan::default() };
        assert_eq!((waited.wait_s(0.5), waited.wait_s(0.99)), (Some(0.0), Some(7.0)));
        assert_eq!(GroupRan::default().wait_s(0.5), None);
    }

    #[test]
    fn the_largest_window_is_found_wherever_it_begins() {
        let scenario = scenario(
            "[{name: a, descriptor: 'k=v', arrivals: {burst: {at_s: 2.9, count: 5}}},
              {name: b, descriptor: 'k=v', arrivals: {burst: {at_s: 3.1, count: 7}}},
              {name: c, descriptor: 'k=v', arrivals: {burst: {at_s: 3.95, count: 9}}}]",
        );
        let ran = run(&scenario, |_, _, _| said(true, None)).unwrap();
        assert_eq!(ran.window_max, (16, 3.1));
    }
}
