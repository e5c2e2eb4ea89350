//! Bounds of overrides, and what many of them cost.

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
        let reply = order_with(debug, &path, TOKEN);
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        assert!(reply.body.contains(text), "{path}: {}", reply.body);
    }
    assert_eq!(listed(&replica)["total"], 0);
}
