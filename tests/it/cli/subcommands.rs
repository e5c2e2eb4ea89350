//! What each subcommand prints.

use std::fs;

use serde_json::Value;

use crate::support::tidegate_process::{
    FIVE_A_DAY, ProcessOutput, Tidegate, directory, ran, run, run_with, tidegate,
};

#[test]
fn check_counts_files_rules_and_warnings() {
    let flawless = FIVE_A_DAY.replace("client", "remote_address");
    let other = flawless.replace("edge", "x");
    let ran = run_with(&[("a.yaml", &flawless), ("b/c.yml", &other)], &["check", "."]).with_code(0);
    assert_eq!(ran.out, "ok: 2 files, 2 rules, 0 warnings\n", "{}", ran.err);
}

#[test]
fn check_groups_notes_by_kind_and_a_start_does_not_log_them() {
    let rule = "  - {key: ':path', value: NAME, rate_limit: {unit: day, requests_per_unit: 5}}\n";
    let rules: String = (0..9).map(|n| rule.replace("NAME", &format!("v{n}"))).collect();
    let policy = format!("domain: edge\ndescriptors:\n{rules}");
    let ran = run_with(&[("p.yaml", &policy)], &["check", "--strict", "p.yaml"]).with_code(0);
    assert!(ran.out.ends_with("ok: 1 file, 9 rules, 0 warnings, 9 notes\n"), "{}", ran.out);
    assert_eq!(ran.err.matches("note: ").count(), 1, "{}", ran.err);
    let fifth = "p.yaml:8:11 and 3 more\n";
    assert!(ran.err.contains("= also at ") && ran.err.contains(fifth), "{}", ran.err);
    let serving = Tidegate::policy(&policy, &[]);
    assert!(!serving.log().contains("policy warning"), "{}", serving.log());
}

/// A policy with an error, a warning's place after it, and a name that formats must escape.
const THREE_KINDS: [(&str, &str); 3] = [
    ("bad: 50%.yaml", "domain: bad\ndescriptors:\n  - key: a\n    vlue: x\n"),
    (
        "warned.yaml",
        "domain: warned\ndescriptors:\n  - {key: remote_address, rate_limit: {unit: day, \
         requests_per_unit: 5}}\n  - key: tenant\n",
    ),
    (
        "noted.yaml",
        "domain: noted\ndescriptors:\n  - {key: ':path', value: a, rate_limit: {unit: day, \
         requests_per_unit: 5}}\n",
    ),
];

/// Runs `check --format` on one of these files, in its directory.
fn checked(format: &str, nth: usize, more: &[&str]) -> ProcessOutput {
    let check = ["check", "--format", format, THREE_KINDS[nth].0];
    run_with(&THREE_KINDS, &[&check, more].concat())
}

#[test]
fn check_reports_in_json() {
    let report = |nth, more: &[&str], code| -> Value {
        let ran = checked("json", nth, more).with_code(code);
        serde_json::from_str(&ran.out).expect("one line of JSON")
    };
    let failed = report(0, &[], 65);
    assert_eq!((&failed["passed"], &failed["rules"]), (&false.into(), &Value::Null));
    let error = &failed["diagnostics"][0];
    let place = (&error["file"], &error["line"], &error["column"]);
    assert_eq!(place, (&"bad: 50%.yaml".into(), &4.into(), &5.into()));
    assert_eq!((&error["severity"], &error["kind"]), (&"error".into(), &"unknown-key".into()));
    assert!(error["message"].as_str().unwrap().contains("did you mean `value`?"));
    let warned = report(1, &[], 0);
    assert_eq!((&warned["passed"], &warned["rules"]), (&true.into(), &1.into()));
    assert_eq!(warned["diagnostics"][0]["severity"], "warning");
    assert_eq!(report(1, &["--strict"], 65)["passed"], false);
    assert_eq!(report(2, &["--strict"], 0)["diagnostics"][0]["severity"], "note");
}

#[test]
fn check_reports_in_commands_of_github() {
    let of = |nth| checked("github", nth, &[]).out;
    let bad = of(0);
    let first = bad.lines().next().unwrap();
    let head =
        "::error file=bad%3A 50%25.yaml,line=4,col=5,title=unknown-key::descriptors[0].vlue: ";
    assert!(first.starts_with(head), "{bad}");
    assert!(bad.lines().all(|line| line.starts_with("::error ")), "{bad}");
    assert!(of(1).lines().any(|line| line.starts_with("::warning ")), "{}", of(1));
    assert!(of(2).lines().all(|line| line.starts_with("::notice ")), "{}", of(2));
}

#[test]
fn check_reads_standard_input() {
    let files = directory(&[("p.yaml", FIVE_A_DAY), ("q.yaml", "domain: 1\nx: y\n")]);
    let piped = |name: &str, more: &[&str]| {
        let mut command = tidegate();
        let input = std::fs::File::open(files.path().join(name)).expect("a file");
        ran(command.args(["check", "-"]).args(more).stdin(input))
    };
    assert!(piped("p.yaml", &[]).with_code(0).out.contains("ok: 1 file, 1 rule"));
    assert!(piped("q.yaml", &[]).with_code(65).err.contains("--> <stdin>:2:1"));
    let more = files.path().join("p.yaml").display().to_string();
    assert!(piped("p.yaml", &[&more]).with_code(64).err.contains("give only one of them"));
    let mut endless = tidegate();
    endless.args(["check", "-"]).stdin(std::fs::File::open("/dev/zero").expect("a device"));
    let ran = ran(&mut endless).with_code(65);
    assert!(ran.err.contains("<stdin>: more than 16777216 bytes"), "{}", ran.err);
}

#[test]
fn check_merges_files_of_one_domain_only_if_configured() {
    let other = FIVE_A_DAY.replace("client", "other");
    let files = [("a.yaml", FIVE_A_DAY), ("b.yaml", &*other)];
    run_with(&files, &["check", "."]).with_code(65);
    run_with(&files, &["check", "--merge-domain-config", "."]).with_code(0);
}

#[test]
fn explain_shows_the_step_the_rule_the_counter_and_the_answer() {
    let explain = |more: &[&str]| {
        let explain = ["explain", "--policy", "p.yaml", "edge", "client=ann"];
        run_with(&[("p.yaml", FIVE_A_DAY)], &[&explain, more].concat()).with_code(0)
    };
    let shown = explain(&["other=x"]);
    for part in ["client=ann: default", "edge.client", "daily", "key {", "OK, 4 left", "no limit"] {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }
    let again = explain(&["other=x"]);
    assert!(again.out.contains("OK, 4 left"), "it counts nothing that lasts: {}", again.out);
    let key = |text: &str| text.lines().find(|line| line.contains("key {")).unwrap().to_owned();
    assert_ne!(key(&explain(&["--key-secret", "s3"]).out), key(&shown.out));
}

#[test]
fn check_and_explain_ignore_empty_variables() {
    let files = directory(&[("p.yaml", FIVE_A_DAY)]);
    let path = files.path().display().to_string();
    let explain = ["explain", "--policy", &path, "edge", "client=ann"];
    for arguments in [&["check", &path][..], &explain] {
        let mut command = tidegate();
        ran(command.args(arguments).env("MERGE_DOMAIN_CONFIG", "")).with_code(0);
    }
}

#[test]
fn explain_rejects_invalid_requests_and_escapes_control_characters() {
    let explain = |domain: &str, descriptors: &[&str]| {
        let explain = ["explain", "--policy", "p.yaml", domain];
        run_with(&[("p.yaml", FIVE_A_DAY)], &[&explain, descriptors].concat())
    };
    assert!(explain("", &["client=ann"]).with_code(64).err.contains("domain"));
    let long = ["k=v"; 161].join(",");
    assert!(explain("edge", &[&long]).with_code(64).err.contains("at most 160"));
    assert!(explain("edge", &["client=ann"; 2_049]).with_code(64).err.contains("at most 2048"));
    let odd = explain("e\u{1b}[31m\n", &["client=\u{1b}[31m\n"]).with_code(0).out;
    assert!(!odd.contains('\u{1b}') && odd.contains("\\u{1b}[31m\\n"), "{odd}");
}

#[test]
fn ask_prints_text_or_json() {
    let serving = Tidegate::policy(FIVE_A_DAY, &["--limit-name-header", "x-limited-by"]);
    let target = serving.port("grpc").to_string();
    let ask = |more: &[&str]| {
        let arguments = [&["ask", &target, "edge", "client=ann"], more].concat();
        run(&arguments).with_code(0).out
    };
    assert!(ask(&["--hits", "0"]).contains("OK, limit daily 5 per year, 5 left"));
    let repeated = ask(&["--repeat", "6"]);
    assert_eq!(repeated.lines().filter(|line| *line == "OK").count(), 5, "{repeated}");
    assert!(repeated.contains("OVER_LIMIT, limit daily 5 per year, 0 left, retry after "));
    assert!(repeated.to_lowercase().contains("x-limited-by: daily"), "{repeated}");
    let json: Value = serde_json::from_str(&ask(&["--json"])).expect("a line of JSON");
    assert_eq!(json["overallCode"], "OVER_LIMIT");
}

#[test]
fn ask_reads_several_descriptors_and_escaped_commas() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let target = serving.port("grpc").to_string();
    let ran = run(&["ask", &target, "edge", r"client=a\,b", "unknown=x"]).with_code(0);
    assert!(ran.out.contains("unknown=x: OK, no limit"), "{}", ran.out);
    run(&["ask", &target, "edge", "=x"]).with_code(64);
}

#[test]
fn ask_takes_a_url_and_adds_no_hint_to_json() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    let target = format!("http://{}/", serving.port("grpc"));
    let known = run(&["ask", &target, "edge", "client=ann"]).with_code(0);
    assert!(known.out.contains("4 left") && known.err.is_empty(), "{}", known.err);
    let json = run(&["ask", &target, "egde", "client=ann", "--json"]).with_code(0);
    assert!(json.err.is_empty(), "{}", json.err);
}

#[test]
fn ask_refunds_hits() {
    let bucket = "
domain: edge
descriptors:
  - key: client
    rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 5}
";
    let serving = Tidegate::policy(bucket, &[]);
    let target = serving.port("grpc").to_string();
    let ask = |more: &[&str]| {
        run(&[&["ask", &target, "edge", "client=ann"], more].concat()).with_code(0).out
    };
    assert!(ask(&["--hits", "4"]).contains("1 left"));
    ask(&["--hits", "3", "--refund"]);
    assert!(ask(&["--hits", "0"]).contains("4 left"));
}

#[test]
fn schema_is_json_and_completions_are_for_every_shell() {
    let schema: Value = serde_json::from_str(&run(&["schema"]).with_code(0).out).expect("JSON");
    assert!(schema.get("$schema").is_some(), "{schema}");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]).with_code(0).out;
        assert!(script.contains("tidegate"), "{shell}");
        let suggests_values = ["bash", "fish", "zsh"].contains(&shell);
        assert!(!suggests_values || script.contains("sentinel"), "{shell}");
    }
}

#[test]
fn the_examples_of_help_that_need_no_service_work_in_the_repository() {
    let help = run(&["--help"]).with_code(0).out;
    let mut tried = 0;
    for example in ["check ", "explain "] {
        let lines = help.lines().filter_map(|line| line.trim().strip_prefix("tidegate "));
        for line in lines.filter(|line| line.starts_with(example)) {
            // The description follows after at least two blanks.
            let command = line.split("  ").next().unwrap();
            let mut tidegate = tidegate();
            tidegate.args(command.split(' ')).current_dir(env!("CARGO_MANIFEST_DIR"));
            let ran = ran(&mut tidegate).with_code(0);
            assert!(!ran.out.contains("no limit: "), "{command}: {}", ran.out);
            tried += 1;
        }
    }
    assert!(tried >= 2, "{help}");
}

#[test]
fn man_writes_a_page_for_every_subcommand_with_every_setting() {
    let pages = directory(&[]);
    run(&["man", &pages.path().display().to_string()]).with_code(0);
    let page = |name: &str| fs::read_to_string(pages.path().join(name)).expect(name);
    assert!(page("tidegate.1").contains(concat!("tidegate ", env!("CARGO_PKG_VERSION"))));
    assert!(
        page("tidegate.1").contains("\n.nf\n\\&  tidegate check config/first.yaml"),
        "one example per line"
    );
    let help = run(&["serve", "--help"]).with_code(0).out;
    let serve = page("tidegate-serve.1").replace('\\', "");
    let flags: Vec<&str> = help
        .split_whitespace()
        .filter(|word| {
            word.starts_with("--")
                && word.chars().skip(2).all(|c| c.is_ascii_lowercase() || c == '-')
        })
        .collect();
    assert!(flags.len() > 100, "{flags:?}");
    for flag in flags {
        assert!(serve.contains(flag), "{flag}");
    }
    let missing = pages.path().join("missing").display().to_string();
    assert!(run(&["man", &missing]).with_code(64).err.contains(&missing));
}

#[test]
fn output_to_a_pipe_has_no_colors() {
    let ran = run_with(&[("p.yaml", "domain: 1\nx: y\n")], &["check", "."]).with_code(65);
    assert!(!ran.err.contains('\x1b') && ran.err.starts_with("error: "), "{:?}", ran.err);
}

/// Twelve calls at once on five a day.
fn burst_of_twelve() -> String {
    let policy = FIVE_A_DAY
        .replace('\n', "\n  ")
        .replace("requests_per_unit: 5", "requests_per_unit: ${limit}");
    format!(
        "about: twelve at once\npolicy: |{policy}\nparameters: {{limit: 5}}\nlasts_s: 10\ngroups:\n  \
         - {{name: ann, descriptor: client=ann, arrivals: {{burst: {{at_s: 1, count: 12}}}}}}\n"
    )
}

#[test]
fn simulate_prints_a_table_of_each_scenario_and_draws_a_chart() {
    let files = directory(&[("s.yaml", &burst_of_twelve())]);
    let path = files.path().join("s.yaml").display().to_string();
    let chart = files.path().join("s.svg");
    let drawn = run(&["simulate", &path, "--svg", &chart.display().to_string()]).with_code(0);
    let line = drawn.out.lines().find(|line| line.starts_with("ann")).expect("a line of ann's");
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..5], ["12", "12", "5", "7"]);
    assert!(drawn.out.contains("reached the backend: 5 calls, at most 5 within a second"));
    let svg = std::fs::read_to_string(chart).expect("a chart");
    assert!(svg.starts_with("<svg ") && svg.contains("ann: 5 of 12"), "{svg}");
    let twice = run(&["simulate", &path, &path]).with_code(0);
    assert_eq!(twice.out, format!("{}\n{}", drawn.out, drawn.out), "every run is the same");
}

#[test]
fn simulate_sweeps_and_sets_a_parameter() {
    let simulate = |arguments: &[&str]| {
        let files = [("s.yaml", &*burst_of_twelve())];
        run_with(&files, &[&["simulate", "s.yaml"], arguments].concat())
    };
    let swept = simulate(&["--sweep", "limit=0,3,20"]).with_code(0).out;
    let column = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
    let admitted: Vec<_> = swept.lines().rev().take(3).filter_map(column).collect();
    assert_eq!(admitted, ["12", "3", "0"], "{swept}");
    assert!(simulate(&["--set", "limit=9"]).with_code(0).out.contains(": 9 calls"));
    simulate(&["--sweep", "limit"]).with_code(64);
    // A chart has one scenario.
    simulate(&["s.yaml", "--svg", "x.svg"]).with_code(64);
}

/// The command that load/scenarios/README.md gives for each chart.
#[test]
fn the_charts_are_what_simulate_draws() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let sweep = ["--sweep", "method=shared,separate,hybrid"];
    for (chart, scenario, more) in [
        ("classes-gold-surges", "classes-1-gold-surges", &sweep[..]),
        ("retry-storm", "retry-storm", &[]),
    ] {
        let files = directory(&[]);
        let drawn = files.path().join("chart.svg").display().to_string();
        let path = root.join(format!("load/scenarios/{scenario}.yaml")).display().to_string();
        run(&[&["simulate", &path, "--svg", &drawn], more].concat()).with_code(0);
        let kept = root.join(format!("load/charts/{chart}.svg"));
        let [kept, drawn] = [kept, drawn.into()].map(|path| std::fs::read_to_string(path).unwrap());
        assert!(kept == drawn, "load/charts/{chart}.svg is not what the command draws now");
    }
}

#[test]
fn explain_shows_the_charge_in_force_and_check_says_when_its_answer_depends_on_it() {
    let run = |policy: &str, arguments: &[&str]| run_with(&[("edge.yaml", policy)], arguments);
    let charge_of = |more: &[&str]| {
        let explain = [&["explain", "--policy", ".", "edge", "client=ann"], more].concat();
        let told = run(FIVE_A_DAY, &explain).with_code(0).out;
        let charge = told.lines().find_map(|line| line.trim().strip_prefix("charge "));
        charge.expect("a charge").to_owned()
    };
    assert_eq!(charge_of(&[]), "admitted");
    assert_eq!(charge_of(&["--charge", "billed"]), "billed");
    assert!(!run(FIVE_A_DAY, &["check", "."]).with_code(0).out.contains("--charge"));
    // More than half of what a bucket of this rate can hold without debt.
    let large = FIVE_A_DAY.replace(" unit:", " algorithm: token_bucket, burst: 500, unit:");
    let check = |more: &[&str]| run(&large, &[&["check", "."], more].concat());
    let told = check(&[]).with_code(0).out;
    assert!(told.contains("with --charge billed, the default in place of"), "{told}");
    check(&["--charge", "billed"]).with_code(65);
    assert!(!check(&["--charge", "admitted"]).with_code(0).out.contains("billed"));
}

#[test]
fn explain_names_the_quota_group_of_a_descriptor() {
    let policy = "
domain: ai
quota_group: [backend, model]
descriptors:
  - key: backend
    descriptors:
      - key: tenant
        rate_limit: {unit: hour, requests_per_unit: 3}
        quota_mode: true
      - key: plain
        rate_limit: {unit: hour, requests_per_unit: 3}
      - key: free
        quota_mode: true
        rate_limit: {unlimited: true}
      - key: class
        quota_mode: true
        rate_limit:
          {algorithm: token_bucket, unit: hour, requests_per_unit: 10, burst: 10,
           tiers: {method: shared, default: none, classes: {gold: {floor: 0%}}}}
  - key: tenant
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 3}
";
    let group = |descriptor: &str| {
        let explain = ["explain", "--policy", "policy.yaml", "ai", descriptor];
        let explained = run_with(&[("policy.yaml", policy)], &explain).with_code(0);
        explained
            .out
            .lines()
            .find_map(|line| line.trim().strip_prefix("quota group of ").map(str::to_owned))
    };
    assert_eq!(group("backend=b1,tenant=ann").as_deref(), Some("backend=b1, no model"));
    assert_eq!(group("backend=b1,plain=x"), None, "no quota");
    assert_eq!(group("backend=b1,free=x"), None, "no limit, so no effect on a group");
    assert_eq!(group("backend=b1,class=gold").as_deref(), Some("backend=b1, no model"));
    assert_eq!(group("backend=b1,class=iron"), None, "no class, so no limit");
    assert_eq!(group("tenant=ann"), None, "a group of its own");
}
