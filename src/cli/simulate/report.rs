//! The tables of a run, as text.
//!
//! Not here: the chart (`chart`), the run itself.

use std::fmt::Write;

use super::Shown;
use super::scenario::Scenario;
use super::simulation::{GroupRan, Ran};

/// Everything that is to be said of one run.
pub(super) fn report(scenario: &Scenario, ran: &Ran) -> String {
    let mut rows = vec![head(&["group"], &["of all admitted"])];
    let all: u64 = ran.groups.iter().map(|group| group.admitted).sum();
    for group in &ran.groups {
        let mut row = vec![group.name.clone()];
        row.extend(cells(group));
        row.push(percent(group.admitted, all));
        rows.push(row);
    }
    let (most, from_s) = ran.window_max;
    let mut out = format!("{}\n\n{}", scenario.about.trim(), table(&rows));
    // Writing into a String cannot fail.
    let _ = writeln!(
        out,
        "\nmost hits admitted within {} s: {most}, from {from_s:.3} s on\nreached the backend: {all} \
         calls, at most {} within a second\n",
        scenario.window_s, ran.second_max
    );
    out + &over_time(ran)
}

/// One line for each value of a sweep and each group.
pub(super) fn sweep(scenario: &Scenario, parameter: &str, shown: &[Shown]) -> String {
    let most = format!("most in {} s", scenario.window_s);
    let mut rows = vec![head(&[parameter, "group"], &[&most, "most in 1 s"])];
    for Shown { label, ran } in shown {
        for (nth, group) in ran.groups.iter().enumerate() {
            // What is said of the whole run stands in its first line.
            let first = |text: String| if nth == 0 { text } else { String::new() };
            let mut row = vec![first(label.clone().unwrap_or_default()), group.name.clone()];
            row.extend(cells(group));
            row.extend([first(ran.window_max.0.to_string()), first(ran.second_max.to_string())]);
            rows.push(row);
        }
    }
    format!("{}\n\n{}", scenario.about.trim(), table(&rows))
}

const COLUMNS: [&str; 8] = [
    "calls",
    "tries",
    "admitted",
    "refused",
    "accepted",
    "first refusal",
    "half waited",
    "99 % waited",
];

fn head(before: &[&str], after: &[&str]) -> Vec<String> {
    [before, &COLUMNS, after].concat().iter().map(|&word| word.to_owned()).collect()
}

/// Waits are those of the admitted calls, from their first try on; most wait for 0 s.
fn cells(group: &GroupRan) -> [String; 8] {
    let seconds = |s: f64| format!("{s:.1} s");
    let waited = |share| group.wait_s(share).map_or("-".to_owned(), seconds);
    [
        group.offered.to_string(),
        group.tries.to_string(),
        group.admitted.to_string(),
        group.refused.to_string(),
        percent(group.admitted, group.tries),
        group.first_refusal_s.map_or("never".to_owned(), seconds),
        waited(0.5),
        waited(0.99),
    ]
}

fn percent(part: u64, all: u64) -> String {
    if all == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / all as f64) }
}

fn over_time(ran: &Ran) -> String {
    let slices = ran.groups.iter().map(|group| group.slices.len()).max().unwrap_or_default();
    let names = ran.groups.iter().map(|group| group.name.clone());
    let mut rows: Vec<Vec<String>> =
        vec![std::iter::once("from".to_owned()).chain(names).collect()];
    for nth in 0..slices {
        let mut row = vec![format!("{:.1} s", nth as f64 * ran.slice_s)];
        for group in &ran.groups {
            let slice = group.slices.get(nth).copied().unwrap_or_default();
            row.push(format!("{} / {}", slice.admitted, slice.refused));
        }
        rows.push(row);
    }
    format!("admitted / refused tries over time\n{}", table(&rows))
}

/// Rows below each other: words to the left, numbers to the right, under heads of the same side.
fn table(rows: &[Vec<String>]) -> String {
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
    fn numbers_stand_to_the_right_and_words_to_the_left() {
        let rows = [["who", "calls", "first"], ["ann", "7", "never"], ["benjamin", "12", "never"]];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|&cell| cell.to_owned()).collect()).collect();
        let expected = "who       calls  first\nann           7  never\nbenjamin     12  never\n";
        assert_eq!(table(&rows), expected);
    }
}
