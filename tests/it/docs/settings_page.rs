//! `docs/SETTINGS.md` is generated from the table of settings.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use tidegate::settings::TABLE;

use crate::envoy::bootstrap::repository;

const HEAD: &str = "\
# Settings

Every setting is a flag (`--grpc-port 8081`), an environment variable (`TIDEGATE_GRPC_PORT`, or the name that
envoyproxy/ratelimit uses), and a key of the settings file (`--settings FILE`, with `grpc-port: 8081`). A flag overrides
the environment, which overrides the file. `tidegate serve --print-settings` prints the values in force. `check` and
`explain` read the settings that concern policy files and counter keys in the same way.
";

const TABLE_HEAD: &str = "\
| flag | default | envoyproxy/ratelimit | meaning |
|---|---|---|---|
";

fn table() -> String {
    let mut page = HEAD.to_owned();
    let mut section = "";
    for row in TABLE {
        if row.section != section {
            section = row.section;
            page.push_str(&format!("\n## {section}\n\n{TABLE_HEAD}"));
        }
        let compat = row.compat_names.join(", ");
        let mut default =
            if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
        if let Some(other) = row.drop_in_default() {
            write!(default, "; as `ratelimit` `{other}`").expect("a string");
        }
        let help = row.help.trim().replace('|', "\\|");
        writeln!(page, "| `--{}` | {default} | {compat} | {help} |", row.name).expect("a string");
    }
    page
}

#[test]
fn the_settings_page_is_up_to_date() {
    let page = fs::read_to_string(repository("docs/SETTINGS.md")).expect("the page");
    if page != table() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("SETTINGS.md");
        fs::write(&file, table()).expect("a writable directory");
        panic!("docs/SETTINGS.md is not the table of settings; {} is", file.display());
    }
}
