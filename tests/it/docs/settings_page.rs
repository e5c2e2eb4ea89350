//! `docs/SETTINGS.md` and the chart's list of settings are generated from the table of settings.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use tidegate::settings::TABLE;

use crate::envoy::bootstrap::repository;

const HEAD: &str = "\
# Settings

A setting is a flag (`--grpc-port 8081`), an environment variable (`TIDEGATE_GRPC_PORT`, or the name that
envoyproxy/ratelimit or OpenTelemetry uses), and a key of the settings file (`--settings FILE`, with `grpc-port: 8081`). A
flag overrides the environment, which overrides the file. `tidegate serve --print-settings` prints the values in force.
`check` and `explain` read the settings that concern policy files and counter keys in the same way. The
[last table](#environment-variables-without-a-flag) lists further variables of envoyproxy/ratelimit and OpenTelemetry.
";

const TABLE_HEAD: &str = " | default | envoyproxy/ratelimit, OpenTelemetry | meaning |
|---|---|---|---|
";

fn table() -> String {
    let mut page = HEAD.to_owned();
    let mut section = "";
    for row in TABLE.iter().filter(|row| row.section != "Tests") {
        if row.section != section {
            section = row.section;
            let kind = if row.has_flag() { "flag" } else { "variable" };
            page.push_str(&format!("\n## {section}\n\n| {kind}{TABLE_HEAD}"));
        }
        let compat = row.compat_names.join(", ");
        let mut default =
            if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
        if let Some(other) = row.drop_in_default() {
            write!(default, "; as `ratelimit` `{other}`").expect("a string");
        }
        let help = row.help.trim().replace('|', "\\|");
        let hyphens = if row.has_flag() { "--" } else { "" };
        let name = row.name;
        writeln!(page, "| `{hyphens}{name}` | {default} | {compat} | {help} |").expect("a string");
    }
    page
}

fn assert_generated(name: &str, expected: &str) {
    let page = fs::read_to_string(repository(name)).expect("the page");
    if page != expected {
        let file_name = Path::new(name).file_name().expect("a file");
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file_name);
        fs::write(&file, expected).expect("a writable directory");
        panic!("{name} is not the table of settings; {} is", file.display());
    }
}

#[test]
fn the_settings_page_is_up_to_date() {
    assert_generated("docs/SETTINGS.md", &table());
}

/// The chart rejects any other name in its value `settings`.
#[test]
fn the_chart_knows_every_setting() {
    let rows = TABLE.iter().filter(|row| row.has_flag());
    let names: String = rows.map(|row| format!("{}\n", row.name)).collect();
    assert_generated("charts/tidegate/files/settings.txt", &names);
}
