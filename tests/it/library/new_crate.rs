//! A new crate that depends on the library by path, without default features: the files that
//! docs/LIBRARY.md shows.

use std::path::{Path, PathBuf};
use std::process::Command;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// Crates that only the service or Redis needs.
const NOT_NEEDED: [&str; 12] = [
    "axum",
    "clap",
    "h2",
    "hyper",
    "mimalloc",
    "opentelemetry",
    "prost",
    "redis",
    "rustls",
    "tokio",
    "tonic",
    "tracing",
];

/// The block of this kind on the page.
fn block(kind: &str) -> String {
    let page = std::fs::read_to_string(Path::new(REPOSITORY).join("docs/LIBRARY.md")).unwrap();
    let after = page.split(&format!("```{kind}\n")).nth(1).unwrap();
    after.split("```").next().unwrap().to_owned()
}

/// Cargo without network: `cargo test` has fetched every crate that the library needs.
fn cargo(arguments: &[&str], directory: &Path) -> String {
    let mut command = Command::new(env!("CARGO"));
    let output = command.args(arguments).arg("--offline").current_dir(directory).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Writes the page's crate into a directory.
fn write_crate(directory: &Path) {
    let dependencies = block("toml library").replace("../tidegate", REPOSITORY);
    let package = "[package]\nname = \"limited\"\nedition = \"2024\"\n\n[workspace]\n\n";
    let source = directory.join("src");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(directory.join("Cargo.toml"), format!("{package}{dependencies}")).unwrap();
    std::fs::write(source.join("main.rs"), block("rust library")).unwrap();
    std::fs::write(source.join("limits.yaml"), block("yaml library")).unwrap();
    // The same versions as here, which are known to be on this machine.
    std::fs::copy(Path::new(REPOSITORY).join("Cargo.lock"), directory.join("Cargo.lock")).unwrap();
}

#[test]
fn a_new_crate_limits_calls_in_ten_lines() {
    let program = block("rust library");
    let lines = program.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 10, "{lines} lines");
    let directory = tempfile::tempdir().unwrap();
    write_crate(directory.path());
    // Kept between runs, so that only the first one compiles the dependencies.
    let target: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new_crate");
    let printed =
        cargo(&["run", "--quiet", "--target-dir", &target.display().to_string()], directory.path());
    let (passed, sixth) = printed.trim_end().rsplit_once('\n').unwrap();
    let shown = block("text library");
    let (passed_on_page, sixth_on_page) = shown.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(passed, passed_on_page);
    let rejection = "6: admitted false, retry after Some(";
    let seconds = |line: &str| -> u64 {
        let rest = line.strip_prefix(rejection).and_then(|rest| rest.strip_suffix(')'));
        rest.unwrap_or_else(|| panic!("{line}")).parse().unwrap()
    };
    assert_eq!(seconds(sixth_on_page), 720);
    // A bucket of five per hour gains one in 720 s.
    assert!((600..=720).contains(&seconds(sixth)), "{sixth}");
}

#[test]
fn the_library_needs_none_of_the_services_crates() {
    let arguments = ["tree", "--no-default-features", "--edges", "normal", "--prefix", "none"];
    let tree = cargo(&arguments, Path::new(REPOSITORY));
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"jiff"), "{tree}");
    let unwanted: Vec<&&str> = NOT_NEEDED.iter().filter(|name| names.contains(name)).collect();
    assert!(unwanted.is_empty(), "{unwanted:?}");
}
