//! Text tables with the results of a simulation.

use std::fmt::Write;

use crate::LabeledResult;
use crate::scenario::Scenario;
use crate::simulation::{GroupResult, SimulationResult};

/// Formats the result of one run as two tables: totals per group, and attempts over time.
pub(super) fn format_report(scenario: &Scenario, result: &SimulationResult) -> String {
    let mut rows = vec![header_row(&["group"], &["of all admitted"])];
    let all: u64 = result.groups.iter().map(|group| group.admitted).sum();
    for group in &result.groups {
        let mut row = vec![group.name.clone()];
        row.extend(format_result_columns(group));
        row.push(format_percent(group.admitted, all));
        rows.push(row);
    }
    let (most, from_s) = result.window_max;
    let mut out = format!("{}\n\n{}", scenario.about.trim(), format_table(&rows));
    // Writing into a String cannot fail.
    let _ = writeln!(
        out,
        "\nmost hits admitted within {} s: {most}, from {from_s:.3} s on\nreached the backend: {all} \
         calls, at most {} within a second\n",
        scenario.window_s, result.one_second_max
    );
    out + &format_attempts_over_time(result)
}

/// Formats the results of a sweep as a table with one row for each combination of parameter value
/// and group.
pub(super) fn format_sweep(
    scenario: &Scenario,
    parameter: &str,
    results: &[LabeledResult],
) -> String {
    let most = format!("most in {} s", scenario.window_s);
    let mut rows = vec![header_row(&[parameter, "group"], &[&most, "most in 1 s"])];
    for LabeledResult { label, result } in results {
        for (nth, group) in result.groups.iter().enumerate() {
            // Columns about the whole run are filled only in its first line.
            let first = |text: String| if nth == 0 { text } else { String::new() };
            let mut row = vec![first(label.clone().unwrap_or_default()), group.name.clone()];
            row.extend(format_result_columns(group));
            row.extend([
                first(result.window_max.0.to_string()),
                first(result.one_second_max.to_string()),
            ]);
            rows.push(row);
        }
    }
    format!("{}\n\n{}", scenario.about.trim(), format_table(&rows))
}

const RESULT_COLUMNS: [&str; 8] = [
    "calls",
    "tries",
    "admitted",
    "rejected",
    "accepted",
    "first rejection",
    "half waited",
    "99 % waited",
];

fn header_row(before: &[&str], after: &[&str]) -> Vec<String> {
    [before, &RESULT_COLUMNS, after].concat().iter().map(|&word| word.to_owned()).collect()
}

/// Formats the result columns of a group. The waits of admitted calls are measured from the first
/// attempt.
fn format_result_columns(group: &GroupResult) -> [String; 8] {
    let seconds = |s: f64| format!("{s:.1} s");
    let waited = |share| group.wait_quantile_s(share).map_or("-".to_owned(), seconds);
    [
        group.offered.to_string(),
        group.tries.to_string(),
        group.admitted.to_string(),
        group.refused.to_string(),
        format_percent(group.admitted, group.tries),
        group.first_rejection_s.map_or("never".to_owned(), seconds),
        waited(0.5),
        waited(0.99),
    ]
}

fn format_percent(part: u64, all: u64) -> String {
    if all == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / all as f64) }
}

fn format_attempts_over_time(result: &SimulationResult) -> String {
    let slices = result.groups.iter().map(|group| group.slices.len()).max().unwrap_or_default();
    let names = result.groups.iter().map(|group| group.name.clone());
    let mut rows: Vec<Vec<String>> =
        vec![std::iter::once("from".to_owned()).chain(names).collect()];
    for nth in 0..slices {
        let mut row = vec![format!("{:.1} s", nth as f64 * result.slice_s)];
        for group in &result.groups {
            let slice = group.slices.get(nth).copied().unwrap_or_default();
            row.push(format!("{} / {}", slice.admitted, slice.refused));
        }
        rows.push(row);
    }
    format!("admitted / rejected tries over time\n{}", format_table(&rows))
}

/// Formats rows as a text table, with words aligned left and numbers aligned right.
fn format_table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let cell = |row: &Vec<String>, nth: usize| row.get(nth).map_or(0, |text| text.chars().count());
    let widths: Vec<usize> = (0..columns)
        .map(|nth| rows.iter().map(|row| cell(row, nth)).max().unwrap_or_default())
        .collect();
    let digit = |text: &String| text.starts_with(|c: char| c.is_ascii_digit());
    let numbers: Vec<bool> = (0..columns)
        .map(|nth| nth > 0 && rows.iter().skip(1).any(|row| row.get(nth).is_some_and(digit)))
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for ((text, &width), &number) in row.iter().zip(&widths).zip(&numbers) {
            // Writing into a String cannot fail.
            let _ = if number {
                write!(line, "{text:>width$}  ")
            } else {
                write!(line, "{text:<width$}  ")
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_right_and_words_left() {
        let rows = [["who", "calls", "first"], ["ann", "7", "never"], ["benjamin", "12", "never"]];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|&cell| cell.to_owned()).collect()).collect();
        let expected = "who       calls  first\nann           7  never\nbenjamin     12  never\n";
        assert_eq!(format_table(&rows), expected);
    }
}
