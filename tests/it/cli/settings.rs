//! Settings: their sources and precedence, how they are printed, what warnings they cause.

use crate::support::http::get;
use crate::support::redis_server::{Server, redis_cli};
use crate::support::tidegate_process::{
    FIVE_A_DAY, Tidegate, directory, ran, run, run_with, tidegate,
};

fn printed(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = tidegate();
    command.args(["serve", "--print-settings"]).args(arguments);
    ran(command.envs(environment.iter().copied())).with_code(0).out
}

fn line<'a>(printed: &'a str, name: &str) -> &'a str {
    let is = |line: &&str| line.trim_start_matches("# ").starts_with(&format!("{name}: "));
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
    let parts = |name: &str| {
        let (value, origin) = line(&printed, name).split_once("  # ").expect("a comment");
        (value.trim_end().to_owned(), origin.to_owned())
    };
    let expected = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    assert_eq!(parts("grpc-port"), expected("grpc-port: 4", "flag"));
    assert_eq!(parts("streams"), expected("streams: 5", "environment TIDEGATE_STREAMS"));
    let place = |line: u32| format!("settings file {file}:{line}");
    assert_eq!(parts("connections"), expected("connections: 8", &place(2)));
    assert_eq!(parts("threads"), expected("threads: 9", &place(3)));
    assert_eq!(parts("drain-delay"), expected("drain-delay: 5s", "default"));
}

#[test]
fn printed_settings_are_a_settings_file_with_the_same_values() {
    let odd = [
        ("PROMETHEUS_PATH", "/team='a': #1,b=\"2\""),
        ("LIMIT_LIMIT_HEADER", "yes"),
        ("LIMIT_REMAINING_HEADER", "0x1F"),
        ("LIMIT_RESET_HEADER", "1e3"),
        ("CONFIG_GRPC_XDS_NODE_ID", "007"),
        ("NEAR_LIMIT_RATIO", "0.80"),
        ("TIDEGATE_LIMIT_NAME_HEADER", "null"),
        ("TIDEGATE_DRAIN_DELAY", "1m30s"),
        ("TIDEGATE_HARD_LIMIT", "2m"),
        ("GRPC_HOST", "::1"),
    ];
    let first = printed(&["--policy", "a b.yaml", "c.yaml"], &odd);
    let files = directory(&[("s.yaml", &first)]);
    let file = files.path().join("s.yaml").display().to_string();
    let second = printed(&["--settings", &file], &[]);
    let values = |printed: &str| -> Vec<String> {
        let value =
            |line: &str| line.rsplit_once("  # ").expect("an origin").0.trim_end().to_owned();
        printed.lines().map(value).collect()
    };
    assert_eq!(values(&first), values(&second));
    // A setting without a flag is a comment.
    let mut keys = second.lines().filter(|line| !line.starts_with("# "));
    assert!(keys.all(|line| line.contains("  # settings file ")), "{second}");
}

#[test]
fn a_printed_secret_is_a_comment_that_a_settings_file_ignores() {
    let first =
        printed(&[], &[("REDIS_URL", "redis://ann:hunter2@h:1"), ("REDIS_AUTH", "hunter2")]);
    assert!(line(&first, "redis-url").starts_with("# redis-url: redis://(hidden)@h:1"));
    let files = directory(&[("s.yaml", &first)]);
    let file = files.path().join("s.yaml").display().to_string();
    let second = printed(&["--settings", &file, "--redis-url", "h:1"], &[]);
    assert!(line(&second, "redis-url").starts_with("redis-url: 'h:1'"), "{second}");
    assert!(line(&second, "redis-auth").ends_with("  # default"), "{second}");
}

#[test]
fn short_help_fits_on_a_screen_and_names_the_long_one() {
    let help = run(&["serve", "-h"]).with_code(0).out;
    assert!(help.lines().count() <= 40, "{help}");
    assert!(help.contains("--redis-url") && help.contains("--help lists all"), "{help}");
    assert!(!help.contains("--xds-tls"), "{help}");
}

#[test]
fn help_has_headings_and_says_what_a_value_looks_like() {
    let help = run(&["serve", "--help"]).with_code(0).out;
    for part in [
        "\nPolicy files:\n",
        "\nPorts:\n",
        "\nRedis:\n",
        "--redis-type <single|sentinel|cluster>",
        "--drain-delay <DURATION>",
        "--grpc-port <PORT>",
        "--shadow-mode [<true|false>]",
    ] {
        assert!(help.contains(part), "{part:?} in\n{help}");
    }
    assert!(!help.contains("<VALUE>"), "{help}");
}

#[test]
fn bills_are_charged_by_default_in_place_of_envoyproxy_ratelimit() {
    assert!(line(&printed(&[], &[]), "charge").ends_with("  # default"));
    let root = [("RUNTIME_ROOT", "/data")];
    assert!(line(&printed(&[], &root), "charge").ends_with("  # default"));
    let drop_in = |arguments: &[&str]| {
        let mut command = tidegate();
        command.args(["--print-settings"]).args(arguments).envs(root);
        ran(&mut command).with_code(0).out
    };
    let told = drop_in(&[]);
    assert!(line(&told, "charge").starts_with("charge: billed "));
    assert!(line(&told, "charge").ends_with("  # default as ratelimit"));
    let given = drop_in(&["--charge", "admitted"]);
    assert!(line(&given, "charge").starts_with("charge: admitted "));
    assert!(line(&given, "charge").ends_with("  # flag"));
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
    assert!(line(&printed, "redis-url").contains("redis://(hidden)@h:1"));
    let secret = [("TIDEGATE_KEY_SECRET", "hunter2")];
    let serving = Tidegate::with_files(&[("policy.yaml", FIVE_A_DAY)], &[], &secret);
    let config = get(serving.port("debug"), "/config").body;
    assert!(config.contains("key-secret") && !config.contains("hunter2"), "{config}");
    assert!(!serving.log().contains("hunter2"));
}

#[test]
fn an_invalid_settings_file_is_not_quoted_and_an_endless_one_is_bounded() {
    for text in ["hunter2\n", "- hunter2\n", "redis-auth: hunter2: x\n", "redis-auth: [hunter2]\n"]
    {
        let ran = run_with(&[("s.yaml", text)], &["serve", "--settings", "s.yaml"]).with_code(64);
        assert!(!ran.err.contains("hunter2"), "{text:?}: {}", ran.err);
    }
    let endless = run(&["serve", "--settings", "/dev/zero"]).with_code(64);
    assert!(endless.err.contains("more than 1048576 bytes"), "{}", endless.err);
}

#[test]
fn a_boolean_flag_needs_no_value() {
    let printed = printed(&["--shadow-mode", "--quota-mode=false"], &[]);
    for (name, value) in [("shadow-mode", "true"), ("quota-mode", "false")] {
        assert!(line(&printed, name).starts_with(&format!("{name}: {value} ")), "{printed}");
        assert!(line(&printed, name).ends_with("  # flag"), "{printed}");
    }
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

#[test]
fn explain_names_the_key_that_redis_has_after_a_call() {
    let limit = |name: &str, lines: &str| {
        format!(
            "  - key: {name}\n    rate_limit: {{unit: hour, requests_per_unit: 100, {lines}}}\n"
        )
    };
    let tiers = |method: &str| {
        let classes = match method {
            "shared" => "{gold: {floor: 0%}, free: {floor: 50%}}",
            _ => "{gold: {share: 30%}, free: {share: 20%}}",
        };
        let tiers = format!("tiers: {{method: {method}, classes: {classes}}}");
        limit(method, &format!("algorithm: token_bucket, burst: 100, {tiers}"))
    };
    let algorithms =
        ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"];
    let mut policy = "domain: edge\ndescriptors:\n".to_owned();
    algorithms.iter().for_each(|name| policy += &limit(name, &format!("algorithm: {name}")));
    policy += "  - key: calendar\n    rate_limit: {unit: day, requests_per_unit: 100, \
               align: calendar, time_zone: Europe/Paris}\n";
    policy += "  - key: concurrency\n    rate_limit: {algorithm: concurrency, \
               requests_per_unit: 5, lease: 60}\n";
    let methods = ["shared", "separate", "hybrid"];
    methods.iter().for_each(|method| policy += &tiers(method));
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    let serving = Tidegate::policy(&policy, &["--redis-url", &url, "--redis-budget", "2s"]);
    for name in [&algorithms[..], &["calendar", "concurrency"], &methods].concat() {
        let descriptor = format!("{name}=gold");
        run(&["ask", &serving.port("grpc").to_string(), "edge", &descriptor]).with_code(0);
        let explain = ["explain", "--policy", "p.yaml", "edge", &descriptor];
        let told = run_with(&[("p.yaml", &policy)], &explain).with_code(0).out;
        let key = told.lines().find_map(|line| line.trim().strip_prefix("in Redis "));
        let key = key.unwrap_or_else(|| panic!("{told}"));
        let found = redis_cli(&["-p", &server.port.to_string(), "EXISTS", key]);
        assert_eq!(found.trim(), "1", "{key} of {name}");
    }
}
