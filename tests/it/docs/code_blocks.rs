//! The pages are run: every fenced block says what it is, and is tried as that.
//!
//! `yaml policy` compiles without a warning · `yaml test` passes beside `config/first.yaml` · `yaml defaults` are valid ·
//! `yaml envoy` is accepted by Envoy as the descriptors of a host · `yaml envoy lines` is in `config/envoy.yaml` · `sh run`
//! runs, line by line, beside `config/first.yaml` being served · `sh make` names targets of the Makefile · `sh newcomer` is
//! followed by `tests/newcomer` · `sh redis` and `text acl` are tried in `redis_page` · `sh debug`, `json answer` and
//! `text answer` in `debug_port_page` · `toml library`, `yaml library`, `rust library` and `text library` are a crate and
//! what it prints, in `library::new_crate` · `js client` and `text client` are a program and what it prints, in
//! `tests/clients` · `text output` is what the block before it printed last, but for numbers · `text recorded` is checked
//! in `performance_page` · `text` is a drawing.

use std::fs;
use std::process::Command;

use tempfile::TempDir;
use tidegate::policy::{Options, PolicyDefaults, Source};

use super::shipped_policies::assert_flawless;
use crate::envoy::bootstrap::{Bootstrap, repository};
use crate::envoy::envoy_process::validate;
use crate::envoy::tidegate_behind_envoy::Tidegate;
use crate::support::tidegate_process;

const PAGES: [&str; 33] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "charts/tidegate/README.md",
    "charts/tidegate/RUNBOOK.md",
    "docs/ADMIN.md",
    "docs/ALGORITHMS.md",
    "docs/API-USERS.md",
    "docs/BUDGETS.md",
    "docs/CHOOSING.md",
    "docs/COMPARED.md",
    "docs/CONTROL_PLANES.md",
    "docs/DEPLOYING.md",
    "docs/ENVOY.md",
    "docs/INTEGRATIONS.md",
    "docs/LANGUAGES.md",
    "docs/LAYERS.md",
    "docs/LIBRARY.md",
    "docs/METRICS.md",
    "docs/MIGRATION.md",
    "docs/OPERATING.md",
    "docs/PERFORMANCE.md",
    "docs/POLICY.md",
    "docs/README.md",
    "docs/REDIS.md",
    "docs/SECURITY.md",
    "docs/SETTINGS.md",
    "docs/SUMMARY.md",
    "clients/README.md",
    "config/examples/failed-logins/README.md",
    "load/README.md",
    "load/scenarios/README.md",
];

/// Short enough to read in five minutes.
const README_LINES_MAX: usize = 220;

pub(super) struct Block {
    pub(super) kind: String,
    pub(super) text: String,
    pub(super) place: String,
}

fn page(name: &str) -> String {
    fs::read_to_string(repository(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(super) fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for name in PAGES {
        let mut open: Option<Block> = None;
        for (number, line) in page(name).lines().enumerate() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(kind), None) => {
                    let place = format!("{name}:{}", number + 1);
                    open = Some(Block { kind: kind.to_owned(), text: String::new(), place });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{name}: a block without an end");
    }
    blocks
}

fn of_kind(kind: &str) -> Vec<Block> {
    blocks().into_iter().filter(|block| block.kind == kind).collect()
}

#[test]
fn every_block_says_what_it_is() {
    const KINDS: [&str; 22] = [
        "yaml policy",
        "yaml test",
        "yaml defaults",
        "yaml envoy",
        "yaml envoy lines",
        "sh run",
        "sh make",
        "sh newcomer",
        "sh redis",
        "sh debug",
        "json answer",
        "text answer",
        "toml library",
        "yaml library",
        "rust library",
        "text library",
        "js client",
        "text client",
        "text acl",
        "text output",
        "text recorded",
        "text",
    ];
    for Block { kind, place, .. } in blocks() {
        assert!(KINDS.contains(&kind.as_str()), "{place}: {kind:?} is none of {KINDS:?}");
    }
}

#[test]
fn the_readme_stays_short() {
    assert!(page("README.md").lines().count() <= README_LINES_MAX);
}

#[test]
fn every_link_leads_to_a_file_or_a_heading() {
    for name in PAGES {
        let text = page(name);
        let directory = repository(name).parent().expect("a directory").to_owned();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.starts_with("http")) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = if path.is_empty() { repository(name) } else { directory.join(path) };
            assert!(file.exists(), "{name}: {link}");
            if !heading.is_empty() {
                let text = fs::read_to_string(&file).expect("a page");
                assert!(headings(&text).any(|h| h == heading), "{name}: {link}");
            }
        }
    }
}

#[test]
fn every_path_in_the_contributing_guide_exists() {
    let text = page("CONTRIBUTING.md");
    let directories = ["src/", "lua/", "tests/", "docs/", "config/", "load/", "charts/", ".ci/"];
    let quoted = text.split('`').skip(1).step_by(2);
    let paths =
        quoted.filter(|text| directories.iter().any(|directory| text.starts_with(directory)));
    for path in paths.filter(|path| !path.contains("NAME")) {
        assert!(repository(path).exists(), "CONTRIBUTING.md: {path}");
    }
}

fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter_map(|line| line.strip_prefix("#")).map(|line| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        kept.chars()
            .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-')
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    })
}

#[test]
fn every_file_of_defaults_on_a_page_is_valid() {
    let defaults = of_kind("yaml defaults");
    assert!(!defaults.is_empty());
    for Block { text, place, .. } in defaults {
        let source = Source { name: place, text: text.into_bytes() };
        PolicyDefaults::read(&source, &Options::default())
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn every_policy_on_a_page_is_flawless() {
    let policies = of_kind("yaml policy");
    assert!(!policies.is_empty());
    for Block { text, place, .. } in policies {
        assert_flawless(&place, &text);
    }
}

#[test]
fn every_test_file_on_a_page_passes() {
    let tests = of_kind("yaml test");
    assert!(!tests.is_empty());
    for Block { text, place, .. } in tests {
        let first = page("config/first.yaml");
        let files = tidegate_process::directory(&[("first.yaml", &first), ("t.yaml", &text)]);
        let file = files.path().join("t.yaml").display().to_string();
        let ran = tidegate_process::run(&["test", &file]);
        assert_eq!(ran.code, 0, "{place}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn envoy_accepts_every_list_of_descriptors_on_a_page() {
    let directory = TempDir::new().expect("a temporary directory");
    for Block { text, place, .. } in of_kind("yaml envoy") {
        let file = directory.path().join("envoy.json");
        Bootstrap::shipped().with_rate_limits(&text).write(&file);
        let output = validate(&file);
        assert!(output.status.success(), "{place}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn envoy_lines_on_a_page_are_those_of_the_shipped_configuration() {
    let shipped = page("config/envoy.yaml");
    let shipped: Vec<&str> = shipped.lines().collect();
    let shown = of_kind("yaml envoy lines");
    assert!(!shown.is_empty());
    for Block { text, place, .. } in shown {
        let lines: Vec<&str> = text.lines().collect();
        let is_there = shipped.windows(lines.len()).any(|window| {
            let indent = window[0].len() - window[0].trim_start().len();
            let dedented = window.iter().map(|line| line.get(indent..).unwrap_or_default());
            dedented.eq(lines.iter().copied())
        });
        assert!(is_there, "{place}: not in config/envoy.yaml:\n{text}");
    }
}

#[test]
fn every_make_target_on_a_page_exists() {
    let makefile = page("Makefile");
    for Block { text, place, .. } in of_kind("sh make") {
        for line in text.lines() {
            let target = line.strip_prefix("make ").unwrap_or_else(|| panic!("{place}: {line}"));
            let rule = format!("{target}:");
            assert!(makefile.lines().any(|line| line.starts_with(&rule)), "{place}: {line}");
        }
    }
}

#[test]
fn every_command_on_a_page_runs_and_prints_what_the_page_shows() {
    let served = Tidegate::start(&repository("config/first.yaml"), &[]);
    let mut printed = String::new();
    for Block { kind, text, place } in blocks() {
        match kind.as_str() {
            "sh run" => {
                for line in text.lines() {
                    printed = run(line, &served, &place);
                }
            }
            "text output" => {
                let (shown, printed) = (without_numbers(&text), without_numbers(&printed));
                assert!(printed.ends_with(&shown), "{place}: {printed}");
            }
            _ => {}
        }
    }
}

/// Commands that need a cluster, a token, or other replicas do not run here; their flags are checked.
#[test]
fn every_command_on_a_page_has_flags_that_exist() {
    let mut flags = 0;
    for name in PAGES {
        for line in page(name).lines() {
            let in_pod = line.split_once(" -- tidegate ").map(|(_, command)| command);
            let Some(command) = line.trim_start().strip_prefix("tidegate ").or(in_pod) else {
                continue;
            };
            let words: Vec<&str> = command.split_whitespace().collect();
            // A dependency in Cargo.toml, or a shell function that passes its arguments on.
            if !words[0].starts_with(|c: char| c.is_ascii_lowercase()) {
                continue;
            }
            let names = if words[0] == "override" { 2 } else { 1 };
            let help = tidegate_process::run(&[&words[..names], &["--help"]].concat());
            assert_eq!(help.code, 0, "{name}: {line}: {}", help.err);
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                let known = help.out.split([' ', ',', '=', '\n', '[']).any(|word| word == *flag);
                assert!(known, "{name}: {line}: {flag}");
                flags += 1;
            }
        }
    }
    assert!(flags > 0);
}

/// Runs a line of a page; what it printed.
fn run(line: &str, served: &Tidegate, place: &str) -> String {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    assert!(program.ends_with("tidegate"), "{place}: {line}: only tidegate is run here");
    let address = served.grpc.to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(words.map(|word| if word == "localhost:8081" { &address } else { word }))
        .current_dir(repository(""))
        .output()
        .expect("tidegate runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{place}: {line}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Times differ from run to run by a second.
pub(super) fn without_numbers(text: &str) -> String {
    let mut kept = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if kept.ends_with('#') => {}
            '0'..='9' => kept.push('#'),
            _ => kept.push(c),
        }
    }
    kept
}
