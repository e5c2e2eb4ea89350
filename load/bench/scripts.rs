//! The scripts alone, in pipelines, beside hand-written ones with the same reads, writes, time and
//! reply and nothing else: Redis' CPU per check. And bytes per key.

use std::sync::Arc;

use redis::Cmd;
use tidegate::domain::{Accounting, Algorithm, Call, Charge, Check, Hits, Limit, Micros};
use tidegate::store::redis::script::arguments::{CallScope, Encoder};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::{PRODUCTION, ScriptCall};

use super::redis_server::RedisServer;
use super::{Scale, cpu, memory};

const KEYS: usize = 1_000;
/// Commands in a pipeline.
const DEPTHS: [usize; 2] = [16, 64];

/// A side of a comparison: commands that are sent in turn, and how many checks each is.
struct Side {
    name: &'static str,
    commands: Vec<Cmd>,
    checks: usize,
}

pub fn run(scale: Scale) {
    per_check(scale);
    bytes_per_key(scale);
}

fn per_check(scale: Scale) {
    let server = RedisServer::start();
    let mut connection = server.client().get_connection().unwrap();
    for script in PRODUCTION.all() {
        redis::cmd("SCRIPT").arg("LOAD").arg(&script.text).exec(&mut connection).unwrap();
    }
    let mut load = |text: &str| -> String {
        redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).unwrap()
    };
    let by_hand = [
        load(include_str!("window.lua")),
        load(include_str!("bucket.lua")),
        load(include_str!("windows.lua")),
    ];
    let [window, bucket] = memory::algorithms().map(|(_, limit)| limit);
    let pairs = [
        (ours("fixed_window, 1 check", &window, 1), hand("by hand", &by_hand[0], 1)),
        (ours("token_bucket, 1 check", &bucket, 1), hand("by hand", &by_hand[1], 1)),
        (ours("fixed_window, 2 checks", &window, 2), hand("by hand", &by_hand[2], 2)),
        (ours("fixed_window, 10 checks", &window, 10), hand("by hand", &by_hand[2], 10)),
    ];
    println!(
        "\nRedis' CPU per check, microseconds, in pipelines (median of {} pairs)",
        scale.pairs
    );
    println!(
        "{:<26} {:>6} {:>10} {:>10} {:>8} {:>16}",
        "script", "depth", "ours", "by hand", "ratio", "INCRBY+EXPIRE"
    );
    let plain = incrby_and_expire();
    for depth in DEPTHS {
        for (ours, hand) in &pairs {
            let mut run = |side: &Side| cost(&server, &mut connection, side, depth, scale.calls);
            run(ours);
            run(hand);
            let (mut a, mut b, mut ratios, mut c) = (vec![], vec![], vec![], vec![]);
            for _ in 0..scale.pairs {
                let (one, other) = (run(ours), run(hand));
                a.push(one);
                b.push(other);
                ratios.push(one / other);
                // A pair is one check.
                c.push(2.0 * run(&plain));
            }
            println!(
                "{:<26} {depth:>6} {:>10.2} {:>10.2} {:>8.2} {:>16.2}",
                ours.name,
                cpu::median(a),
                cpu::median(b),
                cpu::median(ratios),
                cpu::median(c)
            );
        }
    }
}

fn cost(
    server: &RedisServer,
    connection: &mut redis::Connection,
    side: &Side,
    depth: usize,
    checks: usize,
) -> f64 {
    let before = cpu::of_process(server.pid());
    let mut done = 0;
    let mut commands = side.commands.iter().cycle();
    while done < checks {
        let mut pipeline = redis::Pipeline::with_capacity(depth);
        for command in commands.by_ref().take(depth) {
            pipeline.add_command(command.clone()).ignore();
        }
        pipeline.exec(connection).expect("every command is answered");
        done += depth * side.checks;
    }
    (cpu::of_process(server.pid()) - before).as_secs_f64() * 1e6 / done as f64
}

/// Only calendar windows look at it.
const NOW: Micros = Micros::ZERO;

/// Encodes a call by itself.
pub fn encode_call(encoder: &Encoder, checks: &[Check<'_>], now: Micros) -> ScriptCall {
    let call = Call { checks, accounting: Accounting::AllOrNothing, now, deadline: None };
    call::encode(encoder, &call, CallScope::default(), None)
}

fn ours(name: &'static str, limit: &Arc<Limit>, checks: usize) -> Side {
    let encoder = Encoder::new(Prefix::default(), &PRODUCTION, false);
    let command = |nth: usize| {
        let checks: Vec<Check<'_>> = (0..checks).map(|at| check(limit, nth + at)).collect();
        encode_call(&encoder, &checks, NOW).command
    };
    Side { name, commands: (0..KEYS).map(command).collect(), checks }
}

fn hand(name: &'static str, sha: &str, checks: usize) -> Side {
    let command = |nth: usize| {
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha).arg(checks);
        for at in 0..checks {
            command.arg(format!("hand{}:{{{:022}}}", checks.min(2), (nth + at) % KEYS));
        }
        // As many bytes in as many arguments as ours bring along.
        match checks {
            1 => command.arg("").arg(1).arg(1_000_000).arg(3_600_000_000_u64),
            _ => command.arg("").arg(vec![1_u8; 3 + checks * 15]),
        };
        command
    };
    Side { name, commands: (0..KEYS).map(command).collect(), checks }
}

fn incrby_and_expire() -> Side {
    let pair = |nth: usize| {
        let key = format!("pair:{{{nth:022}}}");
        let mut incrby = redis::cmd("INCRBY");
        incrby.arg(&key).arg(1);
        let mut expire = redis::cmd("EXPIRE");
        expire.arg(&key).arg(3_600);
        [incrby, expire]
    };
    Side { name: "INCRBY+EXPIRE", commands: (0..KEYS).flat_map(pair).collect(), checks: 1 }
}

fn check(limit: &Arc<Limit>, nth: usize) -> Check<'_> {
    memory::check(limit, memory::key(nth % KEYS), Hits::ONE)
}

/// What a counter takes in Redis: key, value, expiry and their places in its tables.
fn bytes_per_key(scale: Scale) {
    let keys = scale.keys[0];
    println!("\nBytes per key in Redis ({keys} keys, by used_memory)");
    for (name, limit) in memory::algorithms() {
        assert_eq!(limit.charge, Charge::Admitted);
        let server = RedisServer::start();
        let mut connection = server.client().get_connection().unwrap();
        for script in PRODUCTION.all() {
            redis::cmd("SCRIPT").arg("LOAD").arg(&script.text).exec(&mut connection).unwrap();
        }
        let encoder = Encoder::new(Prefix::default(), &PRODUCTION, false);
        let before = server.used_memory();
        for chunk in (0..keys).collect::<Vec<_>>().chunks(256) {
            let mut pipeline = redis::Pipeline::new();
            for nth in chunk {
                // So many that no bucket is full again before the last one is made.
                let check = memory::check(&limit, memory::key(*nth), Hits(500_000));
                let item = encode_call(&encoder, &[check], NOW);
                pipeline.add_command(item.command).ignore();
            }
            pipeline.exec(&mut connection).unwrap();
        }
        let grown = server.used_memory() - before;
        let form = match limit.algorithm {
            Algorithm::FixedWindow(_) => "one integer",
            Algorithm::Bucket(_) => "one integer, arrival form",
            _ => "not measured here",
        };
        println!("{name:<14} {:>6.0} ({form})", grown as f64 / keys as f64);
    }
}
