//! Bounds of overrides, and what many of them cost.

#![allow(clippy::disallowed_methods, reason = "prints how long changes take")]

use std::fs;
use std::time::{Duration, Instant};

use tidegate::store::redis::script::library::LUA_FILES;

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
        order_with(replica.port("debug"), &path, TOKEN)
    };
    let refused = order("client%3Done_more");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("no room for another override"), "{}", refused.body);
    assert_eq!(order("client%3Du1").status, 200, "one that is replaced");
    assert_eq!(listed(&replica)["total"], 100_000);
}

/// Prints what 100,000 overrides cost: memory, the time until a second replica follows, and CPU while idle.
///
/// Takes minutes, so it only runs with `TIDEGATE_OVERRIDE_FIGURES=1`.
#[test]
#[allow(clippy::too_many_lines, reason = "one run, from its start to its end")]
fn figures_of_100_000_overrides() {
    if std::env::var_os("TIDEGATE_OVERRIDE_FIGURES").is_none() {
        return;
    }
    let write = LUA_FILES.iter().find(|(path, _)| *path == "override_write.lua").unwrap().1;
    let server = Server::start(&[]);
    let first = replica_on(&server, &[]);
    let empty = first.kib("VmRSS");
    let cpu = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<u64> = stat
            .rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .skip(11)
            .take(2)
            .map(|it| it.parse().unwrap())
            .collect();
        // Ticks of 10 ms.
        (fields[0] + fields[1]) * 10
    };
    let started = Instant::now();
    for page in 0..200 {
        let mut words = vec!["EVAL".to_owned(), write.to_owned(), "2".to_owned()];
        words.extend(["records", "versions"].map(|name| format!("tg1o:{{overrides}}:{name}")));
        for n in page * 500..(page + 1) * 500 {
            let (id, body) = (
                format!("[\"edge\",null,\"client=user-{n}\",null,\"numbers\"]"),
                format!(
                    "{{\"domain\":\"edge\",\"descriptor\":\"client=user-{n}\",\"limit\":500,\"until\":\"2099-01-01T00:00:00Z\",\"set_at\":\"2026-01-01T00:00:00Z\",\"reason\":\"T-{n}\",\"by\":\"ann\"}}"
                ),
            );
            words.extend([id, "0".to_owned(), "now".to_owned(), body]);
        }
        server.ask(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    println!("written to Redis in {:?}", started.elapsed());
    let follows = |replica: &Tidegate| {
        until("all to be known", || (listed(replica)["total"] == 100_000).then_some(()));
    };
    follows(&first);
    println!("followed by the first replica {:?} after the first write", started.elapsed());
    let started = Instant::now();
    let second = replica_on(&server, &[]);
    follows(&second);
    println!("a second replica has them {:?} after its start", started.elapsed());
    let redis_cpu = || {
        let info = redis::from_redis_value::<String>(server.ask(&["INFO", "cpu"])).unwrap();
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
                .unwrap()
        };
        (field("used_cpu_user:") + field("used_cpu_sys:")) * 1_000.0
    };
    let before = (cpu(first.id()), cpu(second.id()), redis_cpu());
    let idle = Duration::from_secs(20);
    std::thread::sleep(idle);
    let seconds = idle.as_secs_f64();
    println!(
        "idle CPU, ms per s: replicas {:.1} and {:.1}, Redis {:.2}",
        (cpu(first.id()) - before.0) as f64 / seconds,
        (cpu(second.id()) - before.1) as f64 / seconds,
        (redis_cpu() - before.2) / seconds
    );
    println!(
        "memory of a replica: {empty} KiB without, {} and {} KiB with 100,000",
        first.kib("VmRSS"),
        second.kib("VmRSS")
    );
    let started = Instant::now();
    order(&first, "/override?target=edge&descriptor=client%3Duser-7&limit=3&permanent=true");
    println!("one change took {:?} on the replica that took it", started.elapsed());
    let changed =
        |replica: &Tidegate| (5..20).any(|_| asked(replica, "user-7") == 429).then_some(());
    until("the change", || changed(&second));
    println!("and held on the second replica after {:?}", started.elapsed());
    let memory = redis::from_redis_value::<u64>(server.ask(&[
        "MEMORY",
        "USAGE",
        "tg1o:{overrides}:records",
        "SAMPLES",
        "0",
    ]))
    .unwrap();
    println!("memory of Redis for the records: {memory} bytes");
    server.ask(&["FLUSHALL"]);
    let started = Instant::now();
    let count = || {
        redis::from_redis_value::<u64>(server.ask(&["HLEN", "tg1o:{overrides}:records"])).unwrap()
    };
    until("Redis to have them again", || (count() == 100_001).then_some(()));
    println!("an emptied Redis had them again after {:?}", started.elapsed());
}
