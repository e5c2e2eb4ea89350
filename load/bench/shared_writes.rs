//! What the calls of one write cost Redis: by a script call each, and by one script call that they
//! share; windows also by INCRBY and EXPIRE, one of each per counter.
//!
//! A write of one call is the same on both sides. Instructions, counted by valgrind, hardly vary.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::{Cmd, ConnectionLike, Value};
use tidegate::domain::{Accounting, Call, Check, Hits, Limit, Micros};
use tidegate::store::redis::script::arguments::Encoder;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::script::write_calls::WriteCalls;

use super::redis_server::{self, RedisServer};
use super::scripts::encode_call;
use super::{Scale, memory};

/// Checks of each call.
const LIMITS: [usize; 3] = [1, 2, 10];
/// Calls of each write.
const CALLS: [usize; 3] = [1, 8, 32];
/// Checks that are counted, of each side.
const COUNTED_CHECKS: usize = 6_400;
/// Hits that each counter has before: so many that no bucket is full again, and its key expired, while
/// the others are counted.
const FIRST_COST: Hits = Hits(800_000);
/// Only calendar windows look at it.
const NOW: Micros = Micros::ZERO;

/// A way to send the calls of a write.
#[derive(Clone, Copy)]
enum Side {
    OneByOne,
    Shared,
    Plain,
}

pub fn run(scale: Scale) {
    println!("redis-server {}", redis_server::version());
    println!("\nInstructions of Redis per call, counted by valgrind; random counters");
    println!(
        "{:<14} {:>6} {:>8} {:>6} {:>11} {:>8} {:>6} {:>8}",
        "algorithm", "limits", "counters", "calls", "one by one", "shared", "ratio", "INCRBY"
    );
    for counters in [1, 1_000, scale.keys[0].min(1_000_000)] {
        for (name, limit) in memory::algorithms() {
            let server = filled(&limit, counters);
            let mut connection = server.client().get_connection().unwrap();
            for limits in LIMITS.into_iter().filter(|limits| *limits <= counters) {
                for calls in CALLS {
                    let mut cost = |side| {
                        cost(&server, &mut connection, side, &limit, [counters, limits, calls])
                    };
                    let (one_by_one, shared) = (cost(Side::OneByOne), cost(Side::Shared));
                    let plain = match name {
                        "fixed_window" => format!("{:.0}", cost(Side::Plain)),
                        _ => "-".to_owned(),
                    };
                    println!(
                        "{name:<14} {limits:>6} {counters:>8} {calls:>6} {one_by_one:>11.0} \
                         {shared:>8.0} {:>6.2} {plain:>8}",
                        shared / one_by_one
                    );
                }
            }
        }
    }
}

/// A counted server that has the counters, each with hits.
fn filled(limit: &Arc<Limit>, counters: usize) -> RedisServer {
    let server = RedisServer::start();
    let mut connection = server.client().get_connection().unwrap();
    let load = |connection: &mut redis::Connection| {
        for script in PRODUCTION.all() {
            redis::cmd("SCRIPT").arg("LOAD").arg(&script.text).exec(connection).unwrap();
        }
    };
    load(&mut connection);
    for first in (0..counters).step_by(1_024) {
        let calls: Vec<Vec<usize>> =
            (first..counters.min(first + 1_024)).map(|nth| vec![nth]).collect();
        let commands = shared(&calls, limit, FIRST_COST);
        send(&mut connection, &commands);
    }
    let server = server.restart_counted();
    load(&mut server.client().get_connection().unwrap());
    server
}

/// Instructions per call of a side.
fn cost(
    server: &RedisServer,
    connection: &mut redis::Connection,
    side: Side,
    limit: &Arc<Limit>,
    [counters, limits, calls]: [usize; 3],
) -> f64 {
    let mut random = random_numbers(calls as u64);
    let writes = (COUNTED_CHECKS / limits / calls).max(8);
    let mut write = || {
        let mut call = || {
            let mut places: Vec<usize> = Vec::new();
            while places.len() < limits {
                let place = (random() % counters as u64) as usize;
                if !places.contains(&place) {
                    places.push(place);
                }
            }
            places
        };
        let calls: Vec<Vec<usize>> = (0..calls).map(|_| call()).collect();
        match side {
            Side::OneByOne => one_by_one(&calls, limit),
            Side::Shared => shared(&calls, limit, Hits::ONE),
            Side::Plain => plain(&calls, limit),
        }
    };
    let writes: Vec<Vec<Cmd>> = (0..writes).map(|_| write()).collect();
    // The first builds what the server keeps.
    send(connection, &writes[0]);
    server.count_from_now();
    writes.iter().for_each(|commands| send(connection, commands));
    server.counted() / (writes.len() * calls) as f64
}

/// The xorshift64* generator.
fn random_numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
}

fn send(connection: &mut redis::Connection, commands: &[Cmd]) {
    let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
    let replies = connection.req_packed_commands(&packed, 0, commands.len()).unwrap();
    let is_error = |reply: &&Value| matches!(reply, Value::ServerError(_));
    assert_eq!(replies.iter().find(is_error), None);
}

fn encoder() -> Encoder {
    Encoder::new(Prefix::default(), &PRODUCTION, false)
}

fn checks<'a>(places: &[usize], limit: &'a Arc<Limit>, cost: Hits) -> Vec<Check<'a>> {
    places.iter().map(|place| memory::check(limit, memory::key(*place), cost)).collect()
}

fn one_by_one(calls: &[Vec<usize>], limit: &Arc<Limit>) -> Vec<Cmd> {
    let command = |places: &Vec<usize>| {
        let checks = checks(places, limit, Hits::ONE);
        encode_call(&encoder(), &checks, NOW).command
    };
    calls.iter().map(command).collect()
}

/// As many script calls as the calls need.
fn shared(calls: &[Vec<usize>], limit: &Arc<Limit>, cost: Hits) -> Vec<Cmd> {
    let mut writes = vec![WriteCalls::default()];
    for places in calls {
        let checks = checks(places, limit, cost);
        let (accounting, now) = (Accounting::AllOrNothing, NOW);
        let call = Call { checks: &checks, accounting, now, deadline: None };
        if !writes.last().is_some_and(|write| write.fits(&call, None)) {
            writes.push(WriteCalls::default());
        }
        writes.last_mut().expect("there is one").add(&encoder(), &call, None);
    }
    writes.iter().map(|write| write.encode(&encoder(), false).command).collect()
}

/// What a client writes that charges each window of a write by one command.
fn plain(calls: &[Vec<usize>], limit: &Arc<Limit>) -> Vec<Cmd> {
    let mut costs: BTreeMap<usize, u64> = BTreeMap::new();
    for place in calls.iter().flatten() {
        *costs.entry(*place).or_default() += 1;
    }
    let key = |place: &usize| Prefix::default().key(&memory::key(*place), &limit.algorithm);
    let mut commands = Vec::new();
    for (place, cost) in &costs {
        let mut command = redis::cmd("INCRBY");
        command.arg(key(place).as_slice()).arg(*cost);
        commands.push(command);
    }
    for place in costs.keys() {
        let mut command = redis::cmd("EXPIRE");
        command.arg(key(place).as_slice()).arg(3_601).arg("NX");
        commands.push(command);
    }
    commands
}
