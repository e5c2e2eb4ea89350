//! The tables of a run, as text.
//!
//! Not here: the chart (`chart`), the run itself.

use std::fmt::Write;

use super::run::{GroupRan, Ran};
use super::scenario::Scenario;

/// The whole report.
pub fn report(scenario: &Scenario, ran: &Ran) -> String {
    let mut out = format!("{}\n\n", scenario.about.trim());
    by_group(&mut out, ran);
    let (count, from_s) = ran.window_max;
    let _ = writeln!(
        out,
        "\nmost hits admitted within {} s: {count} (from {from_s:.3} s on)\nmost calls that reached the backend within 1 s: {}",
        scenario.window_s, ran.second_max
    );
    over_time(&mut out, ran);
    out
}

/// One line for a sweep: the parameter's value and the groups' admitted calls.
pub fn sweep_line(value: &str, ran: &Ran) -> String {
    let mut out = format!("{value:>12}");
    for group in &ran.groups {
        let _ = write!(out, " {:>12} {:>7.3}", group.admitted, acceptance(group));
    }
    let _ = write!(out, " {:>12}", ran.window_max.0);
    out
}

/// The head of a sweep's table.
pub fn sweep_head(parameter: &str, ran: &Ran) -> String {
    let mut out = format!("{parameter:>12}");
    for group in &ran.groups {
        let _ = write!(out, " {:>12} {:>7}", group.name, "share");
    }
    let _ = write!(out, " {:>12}", "window max");
    out
}

fn acceptance(group: &GroupRan) -> f64 {
    if group.tries == 0 { 1.0 } else { group.admitted as f64 / group.tries as f64 }
}

fn by_group(out: &mut String, ran: &Ran) {
    let _ = writeln!(
        out,
        "{:<20} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>9} {:>9}",
        "group", "calls", "tries", "admitted", "refused", "accepted", "of all", "first 429", "p99 wait"
    );
    let all: u64 = ran.groups.iter().map(|group| group.admitted).sum();
    for group in &ran.groups {
        let share = if all == 0 { 0.0 } else { group.admitted as f64 / all as f64 };
        let first = group.first_refusal_s.map_or("never".to_owned(), |s| format!("{s:.1} s"));
        let _ = writeln!(
            out,
            "{:<20} {:>10} {:>10} {:>10} {:>10} {:>8.3} {:>8.3} {:>9} {:>9}",
            group.name,
            group.offered,
            group.tries,
            group.admitted,
            group.refused,
            acceptance(group),
            share,
            first,
            percentile(&group.waits_s, 0.99).map_or("-".to_owned(), |s| format!("{s:.1} s")),
        );
    }
}

/// The value below which that share of the values lies; `None` of no values.
fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get(((last as f64) * share).ceil() as usize).copied()
}

fn over_time(out: &mut String, ran: &Ran) {
    let slices = ran.groups.iter().map(|group| group.slices.len()).max().unwrap_or_default();
    let _ = write!(out, "\n{:<20}", "from (admitted/refused)");
    for group in &ran.groups {
        let _ = write!(out, " {:>17}", group.name);
    }
    out.push('\n');
    for nth in 0..slices {
        let _ = write!(out, "{:<23}", format!("{:.1} s", nth as f64 * ran.slice_s));
        for group in &ran.groups {
            let slice = group.slices.get(nth).copied().unwrap_or_default();
            let _ = write!(out, " {:>17}", format!("{}/{}", slice.admitted, slice.refused));
        }
        out.push('\n');
    }
}
