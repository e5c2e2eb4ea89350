//! Exit codes: 64 flags and settings, 65 policy, 69 an address that cannot be bound or resolved.

use std::net::TcpListener;

use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, ran, run, tidegate};

const TWO_FAULTS: &str = "
domain: edge
descriptors:
  - key: a
    rate_limit: {unit: hours, requests_per_unit: 1}
  - key: b
    rate_limit: {unit: day, requests_per_unit: -1}
";

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
fn a_setting_out_of_bounds_ends_with_64_and_names_its_origin() {
    let ran = run(&["serve", "--grpc-port", "70000", "--redis-type", "disk"]).with_code(64);
    assert!(ran.err.contains("--grpc-port (from flag): \"70000\": must be from 0"), "{}", ran.err);
    assert!(ran.err.contains("--redis-type (from flag)"), "all faults at once: {}", ran.err);
}

#[test]
fn no_policy_at_all_ends_with_64() {
    assert!(run(&["serve"]).with_code(64).err.contains("--policy"));
}

#[test]
fn an_invalid_policy_ends_with_65_and_lists_every_error() {
    let files = directory(&[("p.yaml", TWO_FAULTS)]);
    let path = files.path().join("p.yaml").display().to_string();
    for arguments in [["check", &path].to_vec(), ["serve", "--policy", &path].to_vec()] {
        let ran = run(&arguments).with_code(65);
        assert!(ran.err.contains("p.yaml:5:") && ran.err.contains("p.yaml:7:"), "{}", ran.err);
    }
}

#[test]
fn check_shows_source_lines_and_serve_writes_one_line_for_each_error() {
    let files = directory(&[("p.yaml", TWO_FAULTS)]);
    let path = files.path().join("p.yaml").display().to_string();
    let checked = run(&["check", &path]).with_code(65).err;
    let line = TWO_FAULTS.lines().nth(4).expect("a fifth line");
    assert!(checked.contains("p.yaml:5:") && checked.contains("^"), "{checked}");
    assert!(checked.contains(&format!("\n5 | {line}\n  | ")), "{checked}");
    let served = run(&["serve", "--policy", &path]).with_code(65).err;
    assert_eq!(served.lines().count(), 2, "{served}");
    for line in served.lines() {
        assert!(line.starts_with("error: ") && line.contains("p.yaml:"), "{line}");
    }
}

#[test]
fn a_missing_file_and_an_empty_directory_end_with_65() {
    let empty = directory(&[(".hidden.yaml", FIVE_A_DAY), ("readme.txt", "no policy")]);
    let path = empty.path().display().to_string();
    let ran = run(&["serve", "--policy", &path]).with_code(65);
    assert!(ran.err.contains("no .yaml or .yml file"), "{}", ran.err);
    run(&["check", &format!("{path}/absent.yaml")]).with_code(65);
}

#[test]
fn a_file_above_the_maximum_size_ends_with_65() {
    let large = format!("{FIVE_A_DAY}# {}\n", "x".repeat(4_096));
    let files = directory(&[("p.yaml", &large)]);
    let path = files.path().display().to_string();
    let ran = run(&["serve", "--policy", &path, "--policy-file-size", "2KiB"]).with_code(65);
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
    let files = directory(&[("p.yaml", without_effect)]);
    let path = files.path().display().to_string();
    let ran = run(&["check", &path]).with_code(0);
    assert!(ran.err.contains("warning: "), "{}", ran.err);
    run(&["check", "--strict", &path]).with_code(65);
}

#[test]
fn an_address_in_use_ends_with_69() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let files = directory(&[("p.yaml", FIVE_A_DAY)]);
    let path = files.path().display().to_string();
    let ours = ["--grpc-port", "--http-port", "--debug-port"];
    for flag in ours {
        let mut command = tidegate();
        command.args(["serve", "--policy", &path, "--grpc-host", "127.0.0.1"]);
        command.args(["--http-host", "127.0.0.1"]);
        for each in ours {
            command.args([each, if each == flag { &port } else { "0" }]);
        }
        let ran = ran(&mut command).with_code(69);
        let way_out = format!("127.0.0.1:{port}: cannot listen: Address already in use");
        assert!(ran.err.contains(&way_out), "{flag}: {}", ran.err);
        assert!(ran.err.contains(&format!("choose another with {flag}\n")), "{}", ran.err);
    }
}

#[test]
fn ask_without_an_answer_ends_with_69() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("bound").to_string();
    drop(free);
    let ran = run(&["ask", &address, "edge", "client=ann"]).with_code(69);
    assert!(ran.err.contains(&address), "{}", ran.err);
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
    let files = directory(&[("p.yaml", FIVE_A_DAY)]);
    let path = files.path().display().to_string();
    for header in ["content-length", ":status", "x y"] {
        run(&["serve", "--policy", &path, "--limit-name-header", header]).with_code(64);
    }
}
