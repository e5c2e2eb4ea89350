//! Redis' CPU per check of every kind of script call, and how much of it `decide.lua` saves.
//!
//! `cargo bench -- script-calls` prints the figures of this checkout. `script-calls --record FILE`
//! writes its calls to a file. `script-calls --against FILE` alternates the calls of another checkout
//! with the calls of this one on the same server, and prints both and their ratio.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use redis::{ConnectionLike, Value};
use tidegate::domain::{
    Algorithm, Bucket, Charge, ChargeRecord, Check, Concurrency, FixedWindow, Hits, Holder, Hybrid,
    Limit, Micros, Op, Receipt, Refill, Role, SlidingLog, SlidingWindow, Unit, Window,
};
use tidegate::store::redis::script::arguments::Encoder;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::script::msgpack::Packed;

use super::redis_server::RedisServer;
use super::scripts::encode_call;
use super::{Scale, cpu, memory};

/// Counters of each row.
const KEYS: usize = 1_000;
/// Commands in a pipeline.
const DEPTH: usize = 32;

/// Calls of one kind, packed as they are sent.
struct Row {
    name: String,
    checks: usize,
    calls: Vec<Vec<u8>>,
}

/// What a checkout sends: its scripts and its calls.
struct Recording {
    scripts: Vec<String>,
    rows: Vec<Row>,
}

pub fn run(scale: Scale, mut options: impl Iterator<Item = String>) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let ours = Recording::ours(Micros(now.as_micros() as u64));
    match (options.next().as_deref(), options.next()) {
        (Some("--record"), Some(path)) => ours.write(&path),
        (Some("--against"), Some(path)) => compare(scale, Some(&Recording::read(&path)), &ours),
        (None, _) => compare(scale, None, &ours),
        (Some(other), _) => panic!("{other} is neither --record FILE nor --against FILE"),
    }
}

/// Prints each of our rows, and beside it what the other checkout's row of that name costs.
fn compare(scale: Scale, before: Option<&Recording>, after: &Recording) {
    let recordings: Vec<&Recording> = before.into_iter().chain([after]).collect();
    let server = Server::with(&recordings);
    println!(
        "\nRedis' CPU per check, microseconds, in pipelines (median of {} pairs)",
        scale.pairs
    );
    println!("{:<30} {:>8} {:>8} {:>8}", "call", "before", "after", "ratio");
    for row in &after.rows {
        let other = before.and_then(|before| before.rows.iter().find(|one| one.name == row.name));
        let (mut a, mut b, mut ratios) = (vec![], vec![], vec![]);
        server.cost(row, scale);
        for _ in 0..scale.pairs {
            let one = other.map_or(f64::NAN, |other| server.cost(other, scale));
            let two = server.cost(row, scale);
            a.push(one);
            b.push(two);
            ratios.push(two / one);
        }
        let [a, b, ratio] = [a, b, ratios].map(cpu::median);
        let [a, ratio] = [a, ratio].map(|number| match number.is_nan() {
            true => "-".to_owned(),
            false => format!("{number:.2}"),
        });
        println!("{:<30} {a:>8} {b:>8.2} {ratio:>8}", row.name);
    }
}

struct Server {
    redis: RedisServer,
}

impl Server {
    fn with(recordings: &[&Recording]) -> Server {
        let redis = RedisServer::start();
        let mut connection = redis.client().get_connection().unwrap();
        for script in recordings.iter().flat_map(|recording| &recording.scripts) {
            redis::cmd("SCRIPT").arg("LOAD").arg(script).exec(&mut connection).unwrap();
        }
        Server { redis }
    }

    /// Redis' CPU per check, microseconds.
    fn cost(&self, row: &Row, scale: Scale) -> f64 {
        let mut connection = self.redis.client().get_connection().unwrap();
        let batches: Vec<Vec<u8>> = row.calls.chunks_exact(DEPTH).map(<[_]>::concat).collect();
        let before = cpu::of_process(self.redis.pid());
        let mut done = 0;
        for batch in batches.iter().cycle() {
            let replies = connection.req_packed_commands(batch, 0, DEPTH).unwrap();
            let is_error = |reply: &&Value| matches!(reply, Value::ServerError(_));
            assert_eq!(replies.iter().find(is_error), None, "{}", row.name);
            done += DEPTH * row.checks;
            if done >= scale.calls / 5 {
                break;
            }
        }
        (cpu::of_process(self.redis.pid()) - before).as_secs_f64() * 1e6 / done as f64
    }
}

impl Recording {
    fn ours(now: Micros) -> Recording {
        let scripts = PRODUCTION.all().iter().map(|script| script.text.clone()).collect();
        Recording { scripts, rows: rows(now) }
    }

    /// Texts with their lengths before them: the number of scripts, those, then of each row its
    /// name, its checks, the number of its calls, and those.
    fn write(&self, path: &str) {
        let mut file = fs::File::create(path).unwrap();
        let mut text = |bytes: &[u8]| {
            file.write_all(&(bytes.len() as u64).to_le_bytes()).unwrap();
            file.write_all(bytes).unwrap();
        };
        text(self.scripts.len().to_string().as_bytes());
        self.scripts.iter().for_each(|script| text(script.as_bytes()));
        for row in &self.rows {
            text(row.name.as_bytes());
            text(row.checks.to_string().as_bytes());
            text(row.calls.len().to_string().as_bytes());
            row.calls.iter().for_each(|call| text(call));
        }
    }

    fn read(path: &str) -> Recording {
        let bytes = fs::read(path).unwrap();
        let mut rest = &bytes[..];
        let mut next = || {
            let (len, after) = rest.split_first_chunk()?;
            let (text, after) = after.split_at(u64::from_le_bytes(*len) as usize);
            rest = after;
            Some(text.to_vec())
        };
        let string = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let count = |bytes: Vec<u8>| string(bytes).parse::<usize>().unwrap();
        let scripts = count(next().unwrap());
        let scripts = (0..scripts).map(|_| string(next().unwrap())).collect();
        let mut rows = Vec::new();
        while let Some(name) = next() {
            let (checks, calls) = (count(next().unwrap()), count(next().unwrap()));
            let calls = (0..calls).map(|_| next().unwrap()).collect();
            rows.push(Row { name: string(name), checks, calls });
        }
        Recording { scripts, rows }
    }
}

/// What each check of a row does: to which limit, and what role it has.
type Kind<'a> = (&'a Arc<Limit>, Op, Role);

const TAKE: Op = Op::Take { cost: Hits::ONE };
const REFUND: Op = Op::Refund { cost: Hits::ONE };

#[allow(clippy::too_many_lines, reason = "one entry for each kind of call")]
fn rows(now: Micros) -> Vec<Row> {
    let [window, bucket] = memory::algorithms().map(|(_, limit)| limit);
    let hour = Micros::from_secs(3_600);
    let refill = Refill::Credits { hits: Hits(7), window: hour };
    let of_bucket = |burst, floor| {
        Algorithm::Bucket(Bucket {
            burst: Hits(burst),
            debt_burst: Hits(burst),
            refill,
            floor: Hits(floor),
            leaky: true,
        })
    };
    let credits = memory::limit(of_bucket(100_000, 0));
    let floored = memory::limit(of_bucket(100_000, 9));
    let none = Algorithm::FixedWindow(FixedWindow {
        hits: Hits::ZERO,
        window: Window::Epoch { length: hour },
    });
    let none = memory::limit(none);
    let day = Window::Calendar(tidegate::policy::calendar(Unit::Day, "Europe/Berlin").unwrap());
    let day = FixedWindow { hits: Hits(1_000_000), window: day };
    let day = memory::limit(Algorithm::FixedWindow(day));
    let sliding = SlidingWindow { hits: Hits(1_000_000), length: hour };
    let sliding = memory::limit(Algorithm::SlidingWindow(sliding));
    let log = SlidingLog { hits: Hits(1_000), length: Micros::SECOND };
    let log = memory::limit(Algorithm::SlidingLog(log));
    let slots = Concurrency { slots: Hits(1_000), lease: Micros::from_secs(60) };
    let slots = memory::limit(Algorithm::Concurrency(slots));
    let classes = Hybrid {
        burst: Hits(1_000_000),
        expiry_burst: Hits(1_000_000),
        hits: Hits(1_000),
        window: Micros::from_secs(60),
        shares: [20, 20, 20].into(),
        class: 0,
        floor_percent: 0,
    };
    let classes = memory::limit(Algorithm::Hybrid(classes));
    let always =
        |limit: &Arc<Limit>| Arc::new(Limit { charge: Charge::Always, ..Limit::clone(limit) });
    let debts = [&window, &bucket, &credits, &sliding].map(always);

    let take = |limit| (limit, TAKE, Role::Required);
    let shadow = |limit| (limit, TAKE, Role::Shadow);
    let row = |name: &str, kinds: &[Kind<'_>]| calls(name, kinds, now, true);
    let mut rows = vec![
        row("window", &[take(&window)]),
        row("window, refused", &[take(&none)]),
        row("bucket", &[take(&bucket)]),
        row("bucket, credits", &[take(&credits)]),
        row("bucket, credits, floor", &[take(&floored)]),
        row("sliding window", &[take(&sliding)]),
        row("2 windows", &[take(&window); 2]),
        row("10 windows", &[take(&window); 10]),
        row("10 buckets", &[take(&bucket); 10]),
        row("window, bucket, credits", &[take(&window), take(&bucket), take(&credits)]),
        row("window, shadow bucket", &[take(&window), shadow(&bucket)]),
        row("10 windows, 1 shadow", &[&[take(&window); 9][..], &[shadow(&window)]].concat()),
        row("window, peek bucket", &[take(&window), (&bucket, Op::PEEK, Role::Required)]),
        row("10 windows, all peek", &[(&window, Op::PEEK, Role::Required); 10]),
        row("window, debt bucket", &[take(&window), take(&debts[1])]),
        row("10 windows, all debts", &[take(&debts[0]); 10]),
        row("bucket, refund window", &[take(&bucket), (&window, REFUND, Role::Required)]),
        row("window, quota bucket", &[take(&window), (&bucket, TAKE, Role::Quota(0))]),
        row("sliding log", &[take(&log)]),
        row("slot", &[take(&slots)]),
        row("hybrid class", &[take(&classes)]),
        row("calendar window", &[take(&day)]),
        row("bucket, slot", &[take(&bucket), take(&slots)]),
        row("window, sliding window", &[take(&window), take(&sliding)]),
        row("window, bucket, floor", &[take(&window), take(&floored)]),
        calls("one window twice", &[take(&window); 2], now, false),
        by_apply("window", &window, b'w', &WINDOW_NUMBERS, 1),
        by_apply("bucket", &bucket, b'b', &[1_000_000, 3_600_000_000, 3_600, 1, 0], 1),
        by_apply(
            "sliding window",
            &sliding,
            b's',
            &[1_000_000, 1_000_000, 3_600_000_000, 1_000],
            1,
        ),
        by_apply("10 windows", &window, b'w', &WINDOW_NUMBERS, 10),
    ];
    for (name, limit, debt) in [
        ("window", &window, &debts[0]),
        ("bucket", &bucket, &debts[1]),
        ("credits", &credits, &debts[2]),
        ("sliding", &sliding, &debts[3]),
    ] {
        rows.push(row(&format!("{name}, peek"), &[(limit, Op::PEEK, Role::Required)]));
        rows.push(row(&format!("{name}, refund"), &[(limit, REFUND, Role::Required)]));
        rows.push(row(&format!("{name}, debt"), &[take(debt)]));
        rows.push(receipts(&format!("{name}, receipt"), limit, now));
    }
    rows
}

fn encoder() -> Encoder {
    Encoder::new(Prefix::default(), &PRODUCTION, false)
}

/// Calls with a check of each kind, of different counters or all of one.
fn calls(name: &str, kinds: &[Kind<'_>], now: Micros, different: bool) -> Row {
    let call = |nth: usize| {
        let mut checks = Vec::new();
        for (at, (limit, op, role)) in kinds.iter().enumerate() {
            let key = memory::key((nth + if different { at } else { 0 }) % KEYS);
            let holder = Some(Holder(nth as u128));
            checks.push(Check { key, limit, op: *op, role: *role, holder, may_block: true });
        }
        encode_call(&encoder(), &checks, now).command.get_packed_command()
    };
    Row { name: name.to_owned(), checks: kinds.len(), calls: (0..KEYS).map(call).collect() }
}

fn receipts(name: &str, limit: &Arc<Limit>, now: Micros) -> Row {
    let hour = 3_600_000_000;
    let call = |nth: usize| {
        // Taken later than now: nothing has refilled since.
        let (at, window) = (Micros(now.0 + hour), Micros(now.0 - now.0 % hour));
        let taken = ChargeRecord { hits: Hits::ONE, at, window, entry: 0 };
        let receipt = Receipt { key: memory::key(nth), limit: Arc::clone(limit), taken };
        encoder().encode_refund(&[receipt], None).command.get_packed_command()
    };
    Row { name: name.to_owned(), checks: 1, calls: (0..KEYS).map(call).collect() }
}

/// `limit` of `algorithm/fixed_window.lua`, without the nil at its end.
const WINDOW_NUMBERS: [u64; 3] = [1_000_000, 1_000_000, 3_600_000_000];

/// What `decide.lua` saves for such a call: the same by `decide_call.lua`.
fn by_apply(name: &str, limit: &Arc<Limit>, letter: u8, numbers: &[u64], checks: usize) -> Row {
    let mut list = Packed::default();
    for at in 1..=checks {
        list.push_string(&[letter]);
        list.push_string(b"take");
        list.push_string(b"required");
        list.push_number(1);
        list.push_numbers(numbers.iter().copied());
        list.pad_to(at * (5 + numbers.len()));
    }
    let call = |nth: usize| {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&PRODUCTION.apply.sha).arg(checks);
        for at in 0..checks {
            let key = memory::key((nth + at) % KEYS);
            command.arg(Prefix::default().key(&key, &limit.algorithm).as_slice());
        }
        command.arg("").arg("all_or_nothing").arg(5 + numbers.len()).arg(list.as_slice());
        command.get_packed_command()
    };
    Row {
        name: format!("{name}, by decide_call.lua"),
        checks,
        calls: (0..KEYS).map(call).collect(),
    }
}
