//! A changed policy takes effect; an invalid one is reported and does not.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::http::{get, post};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, asked, directory, metric, tidegate};
use crate::support::wait::until;

fn serving(files: tempfile::TempDir, path: &Path) -> Tidegate {
    let mut command = tidegate();
    command.args(["serve", "--policy"]).arg(path);
    Tidegate::start(&mut command, files)
}

fn limit_is(serving: &Tidegate, number: &str) -> bool {
    let listed = get(serving.port("debug"), "/rlconfig").body;
    listed.contains(&format!("requests_per_unit={number},"))
}

fn until_limit_is(serving: &Tidegate, number: &str) {
    until(&format!("a limit of {number}"), || limit_is(serving, number).then_some(()));
}

fn with_limit(number: &str) -> String {
    FIVE_A_DAY.replace(": 5}", &format!(": {number}}}"))
}

#[test]
fn a_changed_file_takes_effect_and_counters_stay() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    assert!(serving.ask("ann").contains("4 left"));
    fs::write(serving.directory().join("policy.yaml"), with_limit("7")).expect("writable");
    until_limit_is(&serving, "7");
    assert!(serving.ask("ann").contains("limit daily 7 per year, 5 left"));
    let metrics = get(serving.port("http"), "/metrics").body;
    assert!(metrics.contains("tidegate_config_load_success_total 2"), "{metrics}");
    assert!(metrics.contains(r#"hits_total{domain="edge",rule="edge.client"} 2"#), "{metrics}");
}

#[test]
fn an_invalid_policy_is_logged_and_the_last_good_one_stays() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let path = serving.directory().join("policy.yaml");
    fs::write(&path, with_limit("-1")).expect("writable");
    let fault = serving.logged_in_time("policy error");
    assert!(
        fault["error"].as_str().is_some_and(|fault| fault.contains("policy.yaml:5:")),
        "{fault}"
    );
    assert!(limit_is(&serving, "5"));
    let metrics = get(serving.port("http"), "/metrics").body;
    assert!(metrics.contains("tidegate_config_load_error_total 1\n"), "once, not each poll");
    assert!(metrics.contains("tidegate_config_last_reload_successful 0\n"), "{metrics}");
    fs::write(&path, with_limit("8")).expect("writable");
    until_limit_is(&serving, "8");
    let metrics = get(serving.port("http"), "/metrics").body;
    assert!(metrics.contains("tidegate_config_last_reload_successful 1\n"), "{metrics}");
}

#[test]
fn a_deleted_file_leaves_the_last_good_policy_until_it_returns() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let path = serving.directory().join("policy.yaml");
    fs::remove_file(&path).expect("removable");
    serving.logged_in_time("policy not reloaded, the last good one stays in force");
    assert!(serving.ask("ann").contains("4 left"));
    fs::write(&path, with_limit("6")).expect("writable");
    until_limit_is(&serving, "6");
}

#[test]
fn the_swapped_links_of_a_config_map_are_followed() {
    let files =
        directory(&[("mount/..1/p.yaml", FIVE_A_DAY), ("mount/..2/p.yaml", &with_limit("9"))]);
    let mount = files.path().join("mount");
    symlink("..1", mount.join("..data")).expect("a link");
    symlink("..data/p.yaml", mount.join("p.yaml")).expect("a link");
    let serving = serving(files, &mount);
    assert_eq!(serving.logged_in_time("ready")["files"], 1, "the same file by two ways is one");
    symlink("..2", mount.join("..new")).expect("a link");
    fs::rename(mount.join("..new"), mount.join("..data")).expect("a swap");
    until_limit_is(&serving, "9");
}

#[test]
fn a_file_added_to_a_directory_is_read() {
    let files = directory(&[("limits/a.yaml", FIVE_A_DAY)]);
    let limits = files.path().join("limits");
    let serving = serving(files, &limits);
    let other = with_limit("11").replace("edge", "other");
    fs::write(limits.join("b.yaml"), other).expect("writable");
    until_limit_is(&serving, "11");
    assert!(limit_is(&serving, "5"));
}

#[test]
fn a_loop_of_links_is_an_error() {
    let files = directory(&[("limits/a.yaml", FIVE_A_DAY)]);
    let limits = files.path().join("limits");
    symlink(".", limits.join("loop")).expect("a link");
    let mut command = tidegate();
    command.args(["check"]).arg(&limits);
    crate::support::tidegate_process::ran(&mut command).with_code(65);
}

/// A second domain, so that a directory can hold both.
fn other_domain(number: &str) -> String {
    with_limit(number).replace("edge", "other")
}

#[test]
fn a_change_takes_effect_while_other_files_keep_changing() {
    let files = directory(&[("limits/a.yaml", FIVE_A_DAY), ("limits/b.yaml", &other_domain("21"))]);
    let limits = files.path().join("limits");
    let mut command = tidegate();
    command.args(["serve", "--policy"]).arg(&limits);
    let serving = Tidegate::start(&mut command, files);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // At most twice as long as the test is patient.
            for round in 0..1_200 {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                // One policy file is written in place, by one write because it may be read, and
                // other files come and go.
                let noisy = OpenOptions::new().write(true).open(limits.join("b.yaml"));
                let text = format!("{}# {round:06}\n", other_domain("22"));
                noisy.expect("a file").write_all(text.as_bytes()).expect("writable");
                let passing = limits.join(format!("c{round}.yaml"));
                fs::write(&passing, "domain: [").expect("writable");
                thread::sleep(Duration::from_millis(50));
                fs::remove_file(&passing).expect("removable");
            }
        });
        fs::write(limits.join("a.yaml"), with_limit("7")).expect("writable");
        until_limit_is(&serving, "7");
        stop.store(true, Ordering::Relaxed);
    });
    until_limit_is(&serving, "22");
    assert!(serving.logged("policy error").is_none(), "{}", serving.log());
}

#[test]
fn a_policy_file_that_changes_at_every_poll_is_named() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let path = serving.directory().join("policy.yaml");
    let mut rounds = 0..;
    let warning = until("a warning", || {
        let round = rounds.next().expect("endless");
        let file = OpenOptions::new().write(true).open(&path).expect("a file");
        let text = format!("{}# {round:06}\n", with_limit("8"));
        file.write_at(text.as_bytes(), 0).expect("writable");
        serving.logged("a policy file changes each time that it is read")
    });
    assert_eq!(warning["polls"], 10);
    assert!(warning["file"].as_str().is_some_and(|file| file.ends_with("policy.yaml")));
    assert!(limit_is(&serving, "8"), "it has been in force for some polls");
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

#[test]
fn a_fifo_in_place_of_a_file_blocks_nothing() {
    let files = [("policy.yaml", FIVE_A_DAY), ("token", "t"), ("password", "p")];
    let server = crate::support::redis_server::Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    let redis = ["--redis-url", &url, "--redis-timeout", "100ms"];
    let secrets = ["--debug-token-file", "token", "--redis-auth-file", "password"];
    let serving = Tidegate::with_files(&files, &[redis, secrets].concat(), &[]);
    for name in ["policy.yaml", "token", "password"] {
        let path = serving.directory().join(name);
        fs::remove_file(&path).expect("removable");
        make_fifo(&path);
    }
    serving.logged_in_time("policy not reloaded, the last good one stays in force");
    serving.logged_in_time("cannot read the debug token file");
    serving.logged_in_time("cannot read the Redis password file");
    for _ in 0..4 {
        assert_eq!(post(serving.port("debug"), "/override/delete?kind=mode", "").status, 503);
    }
    assert_eq!(get(serving.port("http"), "/healthz").status, 200);
    assert!(serving.ask("ann").contains("4 left"));
    let path = serving.directory().join("policy.yaml");
    fs::remove_file(&path).expect("removable");
    fs::write(&path, with_limit("8")).expect("writable");
    until_limit_is(&serving, "8");
}

#[test]
fn a_fifo_as_secret_is_an_error_at_the_start() {
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let fifo = files.path().join("secret");
    make_fifo(&fifo);
    let mut command = tidegate();
    command.args(["serve", "--policy"]).arg(files.path().join("policy.yaml"));
    command.arg("--key-secret-file").arg(&fifo);
    let ran = crate::support::tidegate_process::ran(&mut command).with_code(64);
    assert!(ran.err.contains("not a regular file"), "{}", ran.err);
}

#[test]
fn sighup_reloads_at_once() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let path = serving.directory().join("policy.yaml");
    serving.signal(Signal::HUP);
    serving.logged_in_time("policy files read again, nothing has changed");
    fs::write(&path, with_limit("9")).expect("writable");
    serving.signal(Signal::HUP);
    until_limit_is(&serving, "9");
}

#[test]
fn a_reload_drops_cached_refusals() {
    let server = crate::support::redis_server::Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    let serving = Tidegate::policy(FIVE_A_DAY, &["--redis-url", &url, "--redis-budget", "5s"]);
    let status = || asked(&serving, "ann");
    let spared = || metric(&serving, "redis_spared_total");
    while status() == 200 {}
    // A cached refusal lives for a second at most, so one reload might find an expired one.
    for number in 20..23 {
        let policy = format!(
            "{FIVE_A_DAY}  - {{key: k, rate_limit: {{unit: day, requests_per_unit: {number}}}}}\n"
        );
        assert_eq!(status(), 429);
        fs::write(serving.directory().join("policy.yaml"), policy).expect("writable");
        // Sooner than the next poll, so that a refusal is still cached.
        serving.signal(Signal::HUP);
        until_limit_is(&serving, &number.to_string());
        // The policy is replaced just before the cache is cleared.
        thread::sleep(Duration::from_millis(20));
        let before = spared();
        assert_eq!(status(), 429);
        assert_eq!(spared(), before, "the store is asked after a reload");
    }
    assert!(spared() > 0, "the cache is in use");
}

const THREE_RULES: &str = "
domain: edge
descriptors:
  - key: client
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: path
    value: /login
    rate_limit: {unit: year, requests_per_unit: 5}
---
domain: mail
descriptors:
  - key: client
    rate_limit: {unit: year, requests_per_unit: 5}
";

#[test]
fn a_reload_says_what_has_changed() {
    let rules = |count: usize| {
        let rule = |at| format!("  - key: k{at:02}\n    rate_limit: {{unit: year}}\n");
        (0..count).map(rule).collect::<String>()
    };
    for (from, to, changes) in [
        (
            "unit: year, requests_per_unit: 5}\n  - key: path",
            "unit: day}\n  - key: path",
            "1 rule changed: edge.client",
        ),
        ("/login", "/logout", "1 rule removed: edge.path_/login, 1 rule added: edge.path_/logout"),
        (
            "domain: mail",
            "domain: mails",
            "1 domain removed: mail, 1 domain added: mails, 1 rule removed: mail.client, 1 rule added: mails.client",
        ),
        (
            "descriptors:\n  - key: client",
            "# moved\n\ndescriptors:\n  - key: client",
            "no domain and no rule",
        ),
        (
            "descriptors:\n  - key: client",
            "charge: always\ndescriptors:\n  - key: client",
            "1 domain changed: edge, 2 rules changed: edge.client edge.path_/login",
        ),
        (
            "    value: /login\n    rate_limit",
            "    value: /login\n    shadow_mode: true\n    rate_limit",
            "1 rule changed: edge.path_/login",
        ),
        (
            "descriptors:\n  - key: client",
            &format!("descriptors:\n{}  - key: client", rules(7)),
            "7 rules added: edge.k00 edge.k01 edge.k02 edge.k03 edge.k04 and 2 more",
        ),
        (
            "  - key: path\n    value: /login\n    rate_limit: {unit: year, requests_per_unit: 5}\n",
            "",
            "1 rule removed: edge.path_/login",
        ),
    ] {
        let serving = Tidegate::domains(THREE_RULES, &[]);
        let changed = THREE_RULES.replacen(from, to, 1);
        assert_ne!(changed, THREE_RULES, "{from}");
        Tidegate::write_domains(serving.directory(), &changed);
        let line = serving.logged_in_time("policy reloaded");
        assert_eq!(line["changes"], changes, "{line}\n{changed}");
        assert_eq!(line["files"], 2, "{line}");
    }
}

#[test]
fn a_reload_that_drops_or_renames_a_domain_with_traffic_warns() {
    const DROPPED: &str = "the new policy drops a domain that has traffic: its calls have no limit";
    let (_, mail) = THREE_RULES.split_once("---\n").expect("a second domain");
    let other = "---\ndomain: files\ndescriptors:\n  - key: a\n    rate_limit: {unit: day}\n";
    for (policy, advice) in [
        (
            THREE_RULES.replacen("domain: edge", "domain: edges", 1),
            Some("was it renamed to edges?"),
        ),
        (
            THREE_RULES.replacen("domain: edge", "domain: gateway", 1),
            Some("was it renamed to gateway?"),
        ),
        (
            THREE_RULES.replacen("domain: edge", "domain: Edge", 1) + other,
            Some("was it renamed to Edge?"),
        ),
        (mail.to_owned(), Some("restore the domain, or change the domain in the caller")),
        (mail.to_owned() + other + &other.replace("files", "logs"), Some("restore the domain")),
        // The other domain has no traffic.
        (THREE_RULES.replacen("domain: mail", "domain: mails", 1), None),
    ] {
        let serving = Tidegate::domains(THREE_RULES, &[]);
        serving.ask("ann");
        Tidegate::write_domains(serving.directory(), &policy);
        serving.logged_in_time("policy reloaded");
        let Some(advice) = advice else {
            until_rules(&serving, "mails.client");
            assert!(serving.logged(DROPPED).is_none(), "{}", serving.log());
            continue;
        };
        let line = serving.logged_in_time(DROPPED);
        assert_eq!((&line["level"], &line["domain"]), (&"WARN".into(), &"edge".into()), "{line}");
        assert_eq!(line["calls"], 1, "{line}");
        let text = line["advice"].as_str().expect("advice");
        assert!(text.contains(advice), "{text}");
    }
}

fn until_rules(serving: &Tidegate, rule: &str) {
    let is_listed = || get(serving.port("debug"), "/rlconfig").body.contains(rule).then_some(());
    until("the new policy", is_listed);
}
