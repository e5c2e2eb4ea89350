//! Bounds of overrides.

use super::*;

#[test]
fn an_oversized_override_is_refused_with_its_bound() {
    let replica = replica(&[]);
    let debug = replica.port("debug");
    let long = |name: &str, length: usize| {
        format!("/override?target=edge&mode=deny&permanent=true&{name}={}", "x".repeat(length))
    };
    for (path, text) in [
        (long("reason", 257), "must not be longer than 256 bytes"),
        (long("by", 129), "must not be longer than 128 bytes"),
        ("/override?target=edge&mode=deny".to_owned(), "one of for, until, and permanent"),
        ("/override?target=edge&mode=deny&for=9999999".to_owned(), "for= must be 1 to"),
        ("/override?target=edge&permanent=true".to_owned(), "must change something"),
        ("/override?target=edge&limit=x&permanent=true".to_owned(), "limit must be a whole number"),
    ] {
        let reply = http::order(debug, &path, TOKEN);
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        assert!(reply.body.contains(text), "{path}: {}", reply.body);
    }
    assert_eq!(listed(&replica)["total"], 0);
}

#[test]
fn the_100_001st_override_is_refused() {
    let item =
        |n: usize| format!("{{\"domain\":\"edge\",\"descriptor\":\"client=u{n}\",\"limit\":9}}");
    let items: Vec<String> = (0..100_000).map(item).collect();
    let files = directory(&[("overrides.yaml", &format!("[\n{}\n]\n", items.join(",\n")))]);
    let path = files.path().join("overrides.yaml").display().to_string();
    let replica = replica(&["--overrides", &path]);
    assert_eq!(listed(&replica)["total"], 100_000);
    let order = |descriptor: &str| {
        let path = format!("/override?target=edge&descriptor={descriptor}&limit=7&permanent=true");
        http::order(replica.port("debug"), &path, TOKEN)
    };
    let refused = order("client%3Done_more");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("no room for another override"), "{}", refused.body);
    assert_eq!(order("client%3Du1").status, 200, "one that is replaced");
    assert_eq!(listed(&replica)["total"], 100_000);
}
