//! Settings: their sources and precedence, how they are printed, what warnings they cause.

use crate::support::http::get;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, ran, run, tidegate};

fn printed(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = tidegate();
    command.args(["serve", "--print-settings"]).args(arguments);
    ran(command.envs(environment.iter().copied())).with_code(0).out
}

fn line<'a>(printed: &'a str, name: &str) -> &'a str {
    let is = |line: &&str| line.split_whitespace().next() == Some(name);
    printed.lines().find(is).unwrap_or_else(|| panic!("no {name} in:\n{printed}"))
}

#[test]
fn every_setting_is_printed_with_its_origin() {
    let files = directory(&[("s.yaml", "streams: 7\nconnections: 8\nthreads: 9\ngrpc-port: 1\n")]);
    let file = files.path().join("s.yaml").display().to_string();
    let printed = printed(
        &["--settings", &file, "--grpc-port", "4"],
        &[("GRPC_PORT", "2"), ("TIDEGATE_STREAMS", "5"), ("TIDEGATE_CONNECTIONS", "")],
    );
    assert!(line(&printed, "grpc-port").ends_with("4  (flag)"));
    assert!(line(&printed, "streams").ends_with("5  (environment TIDEGATE_STREAMS)"));
    assert!(line(&printed, "connections").ends_with("8  (settings file)"));
    assert!(line(&printed, "threads").ends_with("9  (settings file)"));
    assert!(line(&printed, "drain-delay").ends_with("5s  (default)"));
}

#[test]
fn bills_are_charged_by_default_in_place_of_envoyproxy_ratelimit() {
    assert!(line(&printed(&[], &[]), "charge").ends_with("admitted  (default)"));
    let root = [("RUNTIME_ROOT", "/data")];
    assert!(line(&printed(&[], &root), "charge").ends_with("admitted  (default)"));
    let drop_in = |arguments: &[&str]| {
        let mut command = tidegate();
        command.args(["--print-settings"]).args(arguments).envs(root);
        ran(&mut command).with_code(0).out
    };
    let told = drop_in(&[]);
    assert!(line(&told, "charge").ends_with("billed  (default as ratelimit)"));
    assert!(line(&drop_in(&["--charge", "admitted"]), "charge").ends_with("admitted  (flag)"));
}

#[test]
fn secrets_are_never_printed() {
    let secrets = [
        ("REDIS_AUTH", "hunter2"),
        ("REDIS_SENTINEL_AUTH", "hunter2"),
        ("TIDEGATE_KEY_SECRET", "hunter2"),
        ("REDIS_URL", "redis://ann:hunter2@h:1"),
    ];
    let printed = printed(&[], &secrets);
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(line(&printed, "redis-url").contains("redis://ann:(hidden)@h:1"));
    let secret = ("TIDEGATE_KEY_SECRET", "hunter2");
    let files = directory(&[("p.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--policy"]).arg(files.path().join("p.yaml")).envs([secret]);
    let serving = Tidegate::start(&mut command, files);
    let config = get(serving.port("debug"), "/config").body;
    assert!(config.contains("key-secret") && !config.contains("hunter2"), "{config}");
    assert!(!serving.log().contains("hunter2"));
}

#[test]
fn an_invalid_settings_file_is_not_quoted_and_an_endless_one_is_bounded() {
    for text in ["hunter2\n", "- hunter2\n", "redis-auth: hunter2: x\n", "redis-auth: [hunter2]\n"]
    {
        let files = directory(&[("s.yaml", text)]);
        let mut command = tidegate();
        command.args(["serve", "--settings"]).arg(files.path().join("s.yaml"));
        let ran = ran(&mut command).with_code(64);
        assert!(!ran.err.contains("hunter2"), "{text:?}: {}", ran.err);
    }
    let endless = run(&["serve", "--settings", "/dev/zero"]).with_code(64);
    assert!(endless.err.contains("more than 1048576 bytes"), "{}", endless.err);
}

#[test]
fn an_unknown_name_in_the_settings_file_is_rejected() {
    let files = directory(&[("s.yaml", "grpc_port: 1\n")]);
    let mut command = tidegate();
    command.args(["serve", "--settings"]).arg(files.path().join("s.yaml"));
    let ran = ran(&mut command).with_code(64);
    assert!(ran.err.contains("did you mean \"grpc-port\""), "{}", ran.err);
}

#[test]
fn a_misspelt_variable_is_logged_at_the_start() {
    let files = directory(&[("p.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--policy"]).arg(files.path().join("p.yaml"));
    command.env("TIDEGATE_DRAINDELAY", "1s");
    let serving = Tidegate::start(&mut command, files);
    let notice = serving.logged("setting notice").expect("a warning");
    assert_eq!(notice["name"], "TIDEGATE_DRAINDELAY");
    assert!(
        notice["text"].as_str().is_some_and(|text| text.contains("did you mean --drain-delay?"))
    );
}

#[test]
fn a_boolean_flag_needs_no_value() {
    let printed = printed(&["--shadow-mode", "--quota-mode=false"], &[]);
    assert!(line(&printed, "shadow-mode").ends_with("true  (flag)"));
    assert!(line(&printed, "quota-mode").ends_with("false  (flag)"));
}

#[test]
fn policies_can_be_repeated_and_expanded_by_a_shell() {
    let printed = printed(&["--policy", "a.yaml", "b.yaml", "--policy", "c"], &[]);
    assert!(line(&printed, "policy").contains("a.yaml,b.yaml,c"));
}

/// Two files of one domain, `check` of them with this environment and these flags: its exit code.
fn checked(files: &[(&str, &str)], flags: &[&str], environment: &[(&str, &str)]) -> i32 {
    let files = directory(files);
    let mut command = tidegate();
    command.arg("check").arg(files.path().join("limits")).args(flags);
    ran(command.envs(environment.iter().copied()).current_dir(files.path())).code
}

#[test]
fn check_reads_settings_as_serve_does() {
    let other = FIVE_A_DAY.replace("client", "other");
    let merging = "merge-domain-config: true\ngrpc-port: 1\n";
    let files = [("limits/a.yaml", FIVE_A_DAY), ("limits/b.yaml", &other), ("s.yaml", merging)];
    let (ours, theirs) = ("TIDEGATE_MERGE_DOMAIN_CONFIG", "MERGE_DOMAIN_CONFIG");
    let in_file = ["--settings", "s.yaml"];
    for (flags, environment, code) in [
        (&[][..], &[][..], 65),
        (&[], &[(theirs, "true")], 0),
        (&[], &[(ours, "true")], 0),
        (&[], &[(ours, "false"), (theirs, "true")], 65),
        (&[], &[(ours, ""), (theirs, "true")], 0),
        (&in_file, &[], 0),
        (&in_file, &[(theirs, "false")], 65),
        (&["--merge-domain-config"], &[(ours, "false")], 0),
        (&["--merge-domain-config=false"], &[(ours, "true")], 65),
        (&[], &[(ours, "perhaps")], 64),
        (&["--settings", "none.yaml"], &[], 64),
        // What is said for a service and not for its policy is none of its business.
        (&[], &[(ours, "true"), ("GRPC_PORT", "x"), ("TIDEGATE_KEY_SECRET_FILE", "none")], 0),
    ] {
        assert_eq!(checked(&files, flags, environment), code, "{flags:?} {environment:?}");
    }
    let long = format!("{FIVE_A_DAY}# {}\n", "x".repeat(2_000));
    let one = [("limits/a.yaml", long.as_str())];
    assert_eq!(checked(&one, &[], &[("TIDEGATE_POLICY_FILE_SIZE", "1KiB")]), 65);
    assert_eq!(checked(&one, &["--policy-file-size", "4KiB"], &[]), 0);
}

#[test]
fn explain_names_the_same_keys_as_the_service() {
    let files = directory(&[
        ("p.yaml", FIVE_A_DAY),
        ("secret", "s3\n"),
        ("s.yaml", "cache-key-prefix: 'filed:'\nkey-secret-file: secret\n"),
    ]);
    let explained = |flags: &[&str], environment: &[(&str, &str)]| {
        let mut command = tidegate();
        command.args(["explain", "--policy", "p.yaml", "edge", "client=ann"]).args(flags);
        command.envs(environment.iter().copied()).current_dir(files.path());
        let told = ran(&mut command).with_code(0).out;
        let key = told.lines().find_map(|line| line.trim().strip_prefix("in Redis "));
        key.unwrap_or_else(|| panic!("{told}")).to_owned()
    };
    let prefix = "TIDEGATE_CACHE_KEY_PREFIX";
    assert!(explained(&[], &[(prefix, "ours:")]).starts_with("ours:tg1"));
    assert!(explained(&[], &[(prefix, "a:"), ("CACHE_KEY_PREFIX", "b:")]).starts_with("a:tg1"));
    assert!(explained(&["--settings", "s.yaml"], &[]).starts_with("filed:tg1"));
    let secret = explained(&["--key-secret", "s3"], &[]);
    assert_ne!(secret, explained(&[], &[]));
    for (flags, environment) in [
        (&["--key-secret-file", "secret"][..], &[][..]),
        (&[], &[("TIDEGATE_KEY_SECRET_FILE", "secret")]),
        (&[], &[("TIDEGATE_KEY_SECRET", "s3")]),
        (&["--settings", "s.yaml", "--cache-key-prefix", ""], &[]),
    ] {
        assert_eq!(explained(flags, environment), secret, "{flags:?} {environment:?}");
    }
}
