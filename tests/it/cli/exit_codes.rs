//! Exit codes: 64 flags and settings, 65 policy, 69 an address that cannot be bound or resolved.
//!
//! Not here: those of mistakes with a message of their own (`mistakes`).

use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, run, run_with};

#[test]
fn help_and_version_end_with_0() {
    assert!(run(&["--help"]).with_code(0).out.contains("Examples:"));
    let version = run(&["--version"]).with_code(0).out;
    assert_eq!(version.trim(), concat!("tidegate ", env!("CARGO_PKG_VERSION")));
    for command in ["serve", "check", "explain", "ask", "test", "schema", "completions", "man"] {
        assert!(run(&[command, "--help"]).with_code(0).out.contains("Usage"), "{command}");
    }
}

#[test]
fn a_bad_flag_ends_with_64() {
    for arguments in [&["--nonsense"][..], &["serve", "--nonsense"], &["dance"], &[], &["check"]] {
        run(arguments).with_code(64);
    }
}

#[test]
fn a_missing_file_and_an_empty_directory_end_with_65() {
    let empty = [(".hidden.yaml", FIVE_A_DAY), ("readme.txt", "no policy")];
    let ran = run_with(&empty, &["serve", "--policy", "."]).with_code(65);
    assert!(ran.err.contains("no .yaml or .yml file"), "{}", ran.err);
    run_with(&empty, &["check", "absent.yaml"]).with_code(65);
}

#[test]
fn a_file_above_the_maximum_size_ends_with_65() {
    let large = format!("{FIVE_A_DAY}# {}\n", "x".repeat(4_096));
    let serve = ["serve", "--policy", ".", "--policy-file-size", "2KiB"];
    let ran = run_with(&[("p.yaml", &large)], &serve).with_code(65);
    assert!(ran.err.contains("--policy-file-size"), "{}", ran.err);
}

#[test]
fn a_warning_ends_with_65_only_under_strict() {
    let without_effect = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: tenant
";
    let files = [("p.yaml", without_effect)];
    let ran = run_with(&files, &["check", "."]).with_code(0);
    assert!(ran.err.contains("warning: "), "{}", ran.err);
    run_with(&files, &["check", "--strict", "."]).with_code(65);
}

#[test]
fn ask_about_an_invalid_domain_ends_with_69() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let ran = run(&["ask", &serving.port("grpc").to_string(), "", "client=ann"]).with_code(69);
    assert!(ran.err.contains("InvalidArgument"), "{}", ran.err);
}

#[test]
fn ask_with_an_invalid_address_ends_with_64() {
    for target in ["", "localhost", ":8081", "localhost:99999", "localhost:0", "http://x:1/json"] {
        let ran = run(&["ask", target, "edge", "client=ann"]).with_code(64);
        assert!(ran.err.contains("HOST:PORT"), "{}", ran.err);
    }
}

#[test]
fn a_policy_that_is_a_pipe_ends_with_65_at_once() {
    let files = directory(&[]);
    let path = files.path().join("pipe.yaml").display().to_string();
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("mkfifo runs (coreutils)").success());
    let ran = run(&["check", &path]).with_code(65);
    assert!(ran.err.contains("neither a file nor a directory"), "{}", ran.err);
}

#[test]
fn an_invalid_header_name_ends_with_64() {
    for header in ["content-length", ":status", "x y"] {
        let serve = ["serve", "--policy", ".", "--limit-name-header", header];
        run_with(&[("p.yaml", FIVE_A_DAY)], &serve).with_code(64);
    }
}
