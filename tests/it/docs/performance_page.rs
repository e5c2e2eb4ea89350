//! Figures on the pages come from recorded runs: a row of a table from the record that it names, a
//! block from the table of a record, a chart from the growth curves of a record.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../load/bench/curves.rs"]
mod curves;

const PAGE: &str = "docs/PERFORMANCE.md";
/// Pages whose tables name records.
const PAGES: [&str; 2] = ["README.md", "docs/DEPLOYING.md"];
const RECORDS: &str = "load/results";
const CHARTS: &str = "docs/performance";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names and texts of all records.
fn records() -> Vec<(String, String)> {
    let entries = fs::read_dir(repository(RECORDS)).expect("a directory");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("a readable directory").file_name().into_string().expect("a plain name")
    };
    let names: BTreeSet<String> = entries.map(name).collect();
    names.into_iter().map(|name| (name.clone(), read(&format!("{RECORDS}/{name}")))).collect()
}

/// Numbers of a text, as they are written but for commas between thousands.
fn numbers(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let words = text.split(|c| !is_part(c)).map(|word| word.trim_matches(['.', ',']));
    words.filter(|word| !word.is_empty()).map(|word| word.replace(',', "")).collect()
}

/// Whether a record has this number, rounded as the page does.
fn has(record: &str, figure: &str) -> bool {
    let decimals = figure.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let half = 0.5 * 10_f64.powi(-(decimals as i32)) + 1e-9;
    let Ok(wanted) = figure.parse::<f64>() else {
        // A version has two points.
        return record.contains(figure);
    };
    numbers(record)
        .iter()
        .filter_map(|number| number.parse::<f64>().ok())
        .any(|number| (number - wanted).abs() <= half)
}

#[test]
fn a_figure_of_a_table_is_in_the_record_that_its_row_names() {
    let records = records();
    for page in PAGES {
        let mut checked = 0;
        for line in read(page).lines().filter(|line| line.starts_with('|')) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, _, figures, source, _] = cells[..] else { continue };
            let named = records.iter().find(|(name, _)| source.contains(name.as_str()));
            let Some((name, record)) = named else { continue };
            for figure in numbers(figures) {
                assert!(has(record, &figure), "{page}: {figure} is not in {name}: {line}");
                checked += 1;
            }
        }
        assert!(checked > 3, "{page}: {checked} figures in tables");
    }
}

/// The page with each block as the record has it: from the line with which the block begins to the
/// next empty line.
fn with_recorded_blocks(page: &str, records: &str) -> String {
    const FENCE: &str = "```text recorded\n";
    let mut parts = page.split(FENCE);
    let mut fresh = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (block, after) = part.split_once("```").expect("a block ends");
        let first = block.lines().next().unwrap_or_default().trim_end();
        let recorded = records.lines().map(str::trim_end).skip_while(|line| *line != first);
        let lines: Vec<&str> = recorded.take_while(|line| !line.is_empty()).collect();
        assert!(lines.len() > 1, "{PAGE}: no table in {RECORDS} begins with {first:?}");
        fresh = format!("{fresh}{FENCE}{}\n```{after}", lines.join("\n"));
    }
    fresh
}

#[test]
fn the_blocks_of_the_page_are_the_recorded_tables() {
    let all: String = records().into_iter().map(|(_, text)| text + "\n").collect();
    let page = read(PAGE);
    let fresh = with_recorded_blocks(&page, &all);
    if page != fresh {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("PERFORMANCE.md");
        fs::write(&to, fresh).expect("a writable directory");
        panic!("{PAGE} differs from {RECORDS}; the page as it should be: {}", to.display());
    }
}

#[test]
fn a_figure_in_the_text_is_in_a_record_that_the_page_links() {
    let page = read(PAGE);
    let linked = |name: &str| page.contains(&format!("](../{RECORDS}/{name})"));
    let records: String =
        records().into_iter().filter(|(name, _)| linked(name)).map(|(_, text)| text).collect();
    let (mut in_block, mut checked) = (false, 0);
    for line in page.lines() {
        in_block ^= line.starts_with("```");
        if in_block || line.starts_with('|') {
            continue;
        }
        for figure in numbers(line).iter().filter(|figure| figure.contains('.')) {
            assert!(has(&records, figure), "{PAGE}: {figure} is in no linked record: {line}");
            checked += 1;
        }
    }
    assert!(checked > 3, "{checked} figures in the text");
}

#[test]
fn a_number_that_no_record_has_is_found_out() {
    assert!(has("took  5.84 µs", "5.8"));
    assert!(!has("took  5.84 µs", "5.9"));
    assert!(!has("took  5.84 µs", "58"));
    assert!(has("142260 calls/s", "142260"));
    assert!(!has("redis-server 7.0.15", "7.0.16"));
}

#[test]
fn the_charts_are_drawn_from_the_record() {
    for (name, drawn) in curves::draw(&read(&format!("{RECORDS}/bench.txt"))) {
        assert!(drawn.matches("<circle").count() >= 8, "{name} has too few points");
        let kept = fs::read_to_string(repository(&format!("{CHARTS}/{name}"))).unwrap_or_default();
        if kept != drawn {
            let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
            fs::write(&fresh, drawn).expect("a writable directory");
            panic!("{CHARTS}/{name} is not what {RECORDS}/bench.txt gives: {}", fresh.display());
        }
    }
}
