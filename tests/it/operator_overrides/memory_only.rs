//! Overrides without Redis, and of the file `--overrides`.

use std::fs;

use super::*;
use crate::support::tidegate_process::{run, run_with};

fn metric_of(replica: &Tidegate, name: &str) -> u64 {
    crate::support::tidegate_process::metric(replica, name)
}

#[test]
fn a_file_is_the_base_and_an_export_is_such_a_file() {
    let files = directory(&[(
        "overrides.yaml",
        "- {domain: edge, mode: shadow, reason: base}\n- {domain: edge, scale: 20%, reason: fifth}\n",
    )]);
    let path = files.path().join("overrides.yaml");
    let replica = replica(&["--overrides", &path.display().to_string()]);
    let debug = replica.port("debug").to_string();
    assert_eq!(reasons(&replica), ["base", "fifth"]);
    let said = order(&replica, "/override?target=edge&mode=deny&for=60&reason=set");
    assert!(said.contains("until its process ends"), "{said}");
    await_reasons([&replica], &["fifth", "set"]);
    // Beneath the tombstone, the override of the file does not return.
    order(&replica, "/override/delete?target=edge&kind=mode");
    await_reasons([&replica], &["fifth"]);
    let exported = run(&["override", "export", "--debug", &debug]).with_code(0).out;
    assert!(exported.contains("\"scale\":\"20%\""), "{exported}");
    fs::write(&path, exported.replace("20%", "40%")).unwrap();
    until("the file to be read", || {
        (listed(&replica)["overrides"][0]["override"]["scale"] == "40%").then_some(())
    });
    assert_eq!([asked(&replica, "a"), asked(&replica, "a"), asked(&replica, "a")], [200, 200, 429]);
    fs::write(&path, "- {domain: edge, scale: 400%}\n").unwrap();
    let logged = replica.logged_in_time("cannot read the overrides file");
    assert!(logged["error"].as_str().unwrap().contains("override 1: "), "{logged}");
    until("the metric", || (metric_of(&replica, "overrides_file_invalid") == 1).then_some(()));
    assert_eq!(reasons(&replica), ["fifth"], "the former content stays in force");
    fs::write(&path, "[]\n").unwrap();
    await_reasons([&replica], &[]);
    assert_eq!(metric_of(&replica, "overrides_file_invalid"), 0);
}

#[test]
fn an_invalid_file_at_the_start_ends_the_process() {
    let twice = "[{domain: edge, mode: deny}, {domain: edge, mode: shadow}]";
    for (text, reason) in [
        ("a: 1", "this is not a list of overrides"),
        ("- {domain: edge}", "override 1: "),
        (twice, "overrides 1 and 2 have the same target and kind"),
    ] {
        let files = [("policy.yaml", FIVE_A_DAY), ("overrides.yaml", text)];
        let ports = ["--grpc-port", "0", "--http-port", "0", "--debug-port", "0"];
        let serve = ["serve", "--policy", "policy.yaml", "--overrides", "overrides.yaml"];
        let ran = run_with(&files, &[&serve[..], &ports].concat());
        assert!(ran.code != 0 && ran.err.contains(reason), "{} {}", ran.code, ran.err);
    }
}

#[test]
fn the_commands_set_list_and_delete() {
    let replica = replica(&[]);
    let token = replica.directory().join("token").display().to_string();
    let debug = replica.port("debug").to_string();
    let side = ["--debug", &debug, "--debug-token-file", &token];
    let set = |arguments: &[&str]| run(&[&["override", "set", "edge"], arguments, &side].concat());
    let said =
        set(&["--scale", "20%", "--for", "1d", "--reason", "T-1", "--by", "ann"]).with_code(0).out;
    assert!(
        said.starts_with("edge: scale 20%, until 2") && said.contains("set by ann: T-1"),
        "{said}"
    );
    for (wrong, text) in [
        (&["--deny"][..], "--for"),
        (&["--permanent"], "--limit"),
        (&["--deny", "--shadow", "--permanent"], "cannot be used with"),
        (&["--deny", "--permanent", "--for", "1d"], "cannot be used with"),
    ] {
        let ran = set(wrong).with_code(64);
        assert!(ran.err.contains(text), "{wrong:?}: {}", ran.err);
    }
    let unknown = ["override", "set", "edgy", "--deny", "--permanent"];
    let ran = run(&[&unknown[..], &side].concat()).with_code(69);
    assert!(ran.err.contains("neither a domain nor a rule"), "{}", ran.err);
    let past = set(&["--deny", "--until", "2020-01-01T00:00:00Z"]).with_code(69);
    assert!(past.err.contains("in the past"), "{}", past.err);
    let list = |more: &[&str]| {
        run(&[&["override", "list", "--debug", &debug], more].concat()).with_code(0).out
    };
    assert!(list(&[]).starts_with("1 in force; known 0 s ago\nedge: scale 20%, "), "{}", list(&[]));
    assert!(list(&["--json"]).contains("\"reason\":\"T-1\""));
    let delete = || run(&[&["override", "delete", "edge"][..], &side].concat());
    assert!(delete().with_code(0).out.starts_with("1 deleted"));
    assert!(delete().with_code(69).err.contains("no such override is set on edge"));
    assert_eq!(list(&[]), "no override is set; known 0 s ago\n");
}
