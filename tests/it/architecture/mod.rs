//! Architecture rules, read off the source: allowed imports per module, external crates per module,
//! file heads. A failure names the file, the line and the rule.

mod circles;
mod proved_tests;
pub mod source_reader;

use std::collections::BTreeMap;

use source_reader::{Line, SourceFile, all_files};

/// Every module at the top of `src` with the modules that it may import, from CONTRIBUTING's table.
/// Without those that may import everything.
fn arrows() -> BTreeMap<&'static str, Vec<&'static str>> {
    let rows = include_str!("../../../CONTRIBUTING.md").lines();
    let rows = rows.filter_map(|line| line.split_once(" ─► ")).filter(|row| row.1 != "everything");
    let list = |list: &'static str| list.split(", ").filter(|room| *room != "nothing").collect();
    rows.map(|(room, rooms)| (room.trim_end(), list(rooms))).collect()
}

/// What only some rooms may name of the world outside: the path, the rooms, and why.
const OUTSIDE: &[(&str, &[&str], &str)] = &[
    (
        "tonic",
        &["server", "wire", "control_plane", "telemetry::otlp", "cli"],
        "foreign types stop at the door",
    ),
    ("tonic_health", &["server"], "foreign types stop at the door"),
    ("tonic_reflection", &["server"], "foreign types stop at the door"),
    (
        "prost",
        &["server", "wire", "control_plane", "telemetry::otlp"],
        "foreign types stop at the door",
    ),
    ("prost_types", &["wire", "control_plane"], "foreign types stop at the door"),
    ("axum", &["admin"], "only the HTTP side names its framework"),
    ("clap", &["cli"], "only the command line names its parser"),
    ("clap_complete", &["cli"], "only the command line names its parser"),
    ("clap_mangen", &["cli"], "only the command line names its parser"),
    ("redis", &["store::redis"], "only the Redis store speaks Redis"),
    ("deadpool_redis", &["store::redis"], "only the Redis store speaks Redis"),
    ("rustls_native_certs", &["tls"], "the system's CAs are read in one place"),
    ("saphyr_parser", &["policy::syntax::yaml"], "policies are parsed in one place"),
    // A settings file maps onto a type.
    ("serde_yaml", &["app::process::files_and_env"], "policies are parsed in one place"),
    ("std::env", &["app", "main", "cli::terminal"], "nobody below app reads the environment"),
    // The listener removes a socket that a former process left behind.
    ("std::fs", &["app", "main", "server::listener"], "nobody below app reads a file"),
    ("tokio::fs", &["app"], "nobody below app reads a file"),
];

/// Fails with every broken rule at once.
pub fn none(broken: Vec<String>) {
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// The imports of a file from other modules: the line, and the path below the crate's root.
fn imports(file: &SourceFile) -> impl Iterator<Item = (&Line, String)> {
    let named = |line| file.rooms_named(line).into_iter().map(move |path| (line, path));
    file.lines.iter().flat_map(named).filter(|(_, path)| !starts(path, &file.room))
}

/// All files but the crate's map and the composition root, which may import every module.
fn bound_files() -> impl Iterator<Item = SourceFile> {
    all_files("src").into_iter().filter(|file| !["lib", "app"].contains(&file.room.as_str()))
}

#[test]
fn a_module_imports_only_the_modules_below_it() {
    let (arrows, mut broken) = (arrows(), Vec::new());
    for file in bound_files() {
        let Some(allowed) = arrows.get(&*file.room) else {
            broken.push(format!("{}: module {:?} has no row", file.path, file.room));
            continue;
        };
        for (line, path) in imports(&file) {
            if !allowed.iter().any(|room| may(&path, room)) {
                let (at, room) = (line.number, &file.room);
                let list = allowed.join(", ");
                broken.push(format!(
                    "{}:{at}: {room} may not import {path} (only {list})",
                    file.path
                ));
            }
        }
    }
    none(broken);
}

#[test]
fn every_allowed_import_is_used() {
    let files: Vec<SourceFile> = bound_files().collect();
    let mut broken = Vec::new();
    for (room, allowed) in arrows() {
        for below in allowed {
            let used = files
                .iter()
                .filter(|file| file.room == room)
                .any(|file| imports(file).any(|(_, path)| may(&path, below)));
            if !used {
                broken.push(format!(
                    "{room} may import {below}, and does not: remove the permission"
                ));
            }
        }
    }
    none(broken);
}

/// A re-export would be a way around the table: the importer would name the module in between.
#[test]
fn no_module_re_exports_items_of_another() {
    let mut broken = Vec::new();
    for file in all_files("src") {
        for (line, path) in imports(&file) {
            if line.is_re_export() {
                broken.push(format!("{}:{}: re-exports {path}", file.path, line.number));
            }
        }
    }
    none(broken);
}

fn starts(named: &str, room: &str) -> bool {
    named == room || named.starts_with(&format!("{room}::"))
}

/// `store` alone is the trait, not the stores behind it; the others are whole rooms.
fn may(named: &str, room: &str) -> bool {
    let a_store = starts(named, "store::memory") || starts(named, "store::redis");
    starts(named, room) && !(room == "store" && a_store)
}

#[test]
fn external_crates_stay_in_their_modules() {
    let mut broken = Vec::new();
    for file in all_files("src") {
        for line in file.lines.iter().filter(|line| !line.in_tests) {
            for (word, rooms, why) in OUTSIDE {
                let at_home =
                    rooms.iter().any(|room| file.module == *room || starts(&file.module, room));
                if line.names(word) && !at_home {
                    broken.push(format!(
                        "{}:{}: only {} may name {word}: {why}",
                        file.path,
                        line.number,
                        rooms.join(", ")
                    ));
                }
            }
        }
    }
    none(broken);
}

/// Who may mention the roles of checks: the admission rule, those who assign roles, and those who send
/// them to a script. Each row says why.
const ROLES: &[(&str, &str)] = &[
    ("domain", "domain::Admission is the rule"),
    ("policy::lookup::matcher", "assigns the role of a rule"),
    ("decide", "assigns the roles of the process-wide modes"),
    ("resilience::merge", "assigns the roles that the local checks of a half-answered call have"),
    (
        "store::redis::multi_slot",
        "assigns the roles within one slot, and picks the slot to ask first",
    ),
    ("store::redis::script::arguments", "spells the role for a script"),
    ("store::redis::script::selection", "a script without roles may decide required checks alone"),
];

/// A second admission rule would have to tell required checks from quota checks.
#[test]
fn admission_is_decided_in_one_place() {
    let mut broken = Vec::new();
    for file in all_files("src") {
        let allowed = ROLES.iter().any(|(module, _)| starts(&file.module, module));
        for line in file.lines.iter().filter(|line| !allowed && !line.in_tests) {
            if line.code.contains("Role::Quota") || line.code.contains("Role::Required") {
                let at = line.number;
                broken.push(format!("{}:{at}: call domain::Admission instead", file.path));
            }
        }
    }
    none(broken);
}

/// Replies of scripts are numbers in arrays or lines of text; the modules of the client decode replies
/// of commands.
#[test]
fn script_replies_are_decoded_in_one_place() {
    let mut broken = Vec::new();
    for file in all_files("src/store/redis") {
        let allowed = starts(&file.module, "store::redis::client")
            || ["reply", "call"]
                .iter()
                .any(|name| file.module == format!("store::redis::script::{name}"));
        for line in file.lines.iter().filter(|line| !allowed && !line.in_tests) {
            if line.code.contains("Value::") {
                let at = line.number;
                broken.push(format!("{}:{at}: call script::call::decode instead", file.path));
            }
        }
    }
    none(broken);
}

#[test]
fn the_domain_uses_the_standard_library_only() {
    let mut broken = Vec::new();
    for file in all_files("src/domain") {
        for line in &file.lines {
            let Some(used) = line.code.trim().strip_prefix("use ") else { continue };
            let root = used.split([':', ';', ' ']).next().unwrap_or_default();
            if !["std", "super", "self"].contains(&root) {
                broken.push(format!("{}:{}: domain uses {root}", file.path, line.number));
            }
        }
    }
    none(broken);
}

#[test]
fn every_file_opens_with_its_purpose() {
    let headless = all_files("src").into_iter().filter(|file| !file.text.starts_with("//! "));
    none(
        headless.map(|file| format!("{}: begins without //! and its purpose", file.path)).collect(),
    );
}

/// The root also offers the limiter of library users.
#[test]
fn the_crate_root_is_a_map_without_items() {
    let lib = all_files("src").into_iter().find(|file| file.path == "src/lib.rs").expect("lib.rs");
    let item = |line: &&Line| {
        let code = line.code.trim();
        let is_module = code.starts_with("pub mod ") && code.ends_with(';');
        let is_limiter = code == "mod limiter;" || code.starts_with("pub use limiter::");
        // The inside of a text is not part of the code: the first is `#[cfg(feature = "server")]`.
        let is_attribute =
            ["#[cfg(feature = \"\")]", "#[cfg_attr(doc, doc(hidden))]"].contains(&code);
        !(code.is_empty() || is_module || is_limiter || is_attribute)
    };
    none(lib.lines.iter().filter(item).map(|line| format!("src/lib.rs: {}", line.code)).collect());
}

#[test]
fn no_unsafe_code_and_no_unfinished_code() {
    let mut broken = Vec::new();
    for file in all_files("src") {
        for line in file.lines.iter().filter(|line| !line.in_tests) {
            for word in ["unsafe ", "todo!(", "unimplemented!(", "dbg!("] {
                if line.code.contains(word) {
                    broken.push(format!("{}:{}: {word}", file.path, line.number));
                }
            }
        }
    }
    none(broken);
}

#[test]
fn no_test_is_ignored() {
    let mut broken = Vec::new();
    for file in all_files("src").into_iter().chain(all_files("tests")) {
        for line in &file.lines {
            if line.code.trim_start().starts_with("#[ignore") {
                broken.push(format!("{}:{}: an ignored test", file.path, line.number));
            }
        }
    }
    none(broken);
}

#[test]
fn the_reader_of_the_source_sees_what_it_should() {
    let text = "//! x\nuse crate::{domain::{Hits, Micros}, store::Store};\nlet s = \"crate::wire\"; \
                // crate::wire\nfn f() { super::super::clock::now() }\n#[cfg(test)]\nmod tests {\nuse \
                super::super::super::app;\n}\n";
    let file = SourceFile::parse("src/policy/key.rs", text);
    assert_eq!((file.room.as_str(), file.module.as_str()), ("policy", "policy::key"));
    let named: Vec<Vec<String>> = file.lines.iter().map(|line| file.rooms_named(line)).collect();
    assert_eq!(named[1], ["domain::Hits", "domain::Micros", "store::Store"]);
    assert_eq!(named[2], Vec::<String>::new());
    assert_eq!(named[3], ["clock::now"]);
    assert_eq!(named[6], ["app"]);
    assert!(file.lines[6].in_tests && !file.lines[3].in_tests);
    let map = SourceFile::parse(
        "src/policy/mod.rs",
        "pub use key::{\n    A,\n    B,\n};\nuse self::key::A;\nlet k = key::new(a::key::B);\n",
    );
    let named: Vec<_> = map.lines.iter().map(|line| map.children_named(line, &["key"])).collect();
    assert!(map.lines[0].is_re_export() && !map.lines[4].is_re_export());
    assert_eq!(named[0], ["policy::key::A", "policy::key::B"]);
    assert_eq!(
        (&*named[4], &*named[5]),
        (&["policy::key::A".to_owned()][..], &["policy::key::new".to_owned()][..])
    );
}
