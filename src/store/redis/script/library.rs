//! The Lua scripts as the service runs them: blocks joined, first line cut, hashed once.
//!
//! The first line of a file in `lua/` is `#!lua`, so that tests run it strictly: from Redis 7 on a
//! server then refuses a script that touches two cluster slots. In production the line is cut off:
//! with it a full Redis refuses the whole script, without it refusals are still decided and only a
//! charge fails; and a call costs 5 % less.
//!
//! Not here: the arguments (`args`), the replies (`reply`), loading them (the connections).

use std::sync::LazyLock;

/// A script, and the name that EVALSHA calls it by.
#[derive(Debug, PartialEq, Eq)]
pub struct Script {
    /// The name of its file in `lua/`, for logs.
    pub name: &'static str,
    /// What SCRIPT LOAD sends.
    pub text: String,
    /// The SHA1 of the text, in hex: what EVALSHA names.
    pub sha: String,
}

/// The files of `lua/`, as they are.
pub mod files {
    /// Decides a call of one check of a bucket.
    pub const BUCKET: &str = include_str!("../../../../lua/bucket.lua");
    /// Decides a call of one check of a fixed window.
    pub const FIXED_WINDOW: &str = include_str!("../../../../lua/fixed_window.lua");
    /// Decides a call of one check of a sliding window.
    pub const SLIDING_WINDOW: &str = include_str!("../../../../lua/sliding_window.lua");
    /// Blocks: sliding logs.
    pub const SLIDING_LOG: &str = include_str!("../../../../lua/sliding_log.lua");
    /// Blocks: slots and their leases.
    pub const CONCURRENCY: &str = include_str!("../../../../lua/concurrency.lua");
    /// Blocks: hybrid classes.
    pub const HYBRID: &str = include_str!("../../../../lua/hybrid.lua");
    /// Blocks: calendar windows.
    pub const CALENDAR: &str = include_str!("../../../../lua/calendar.lua");
    /// Decides a call of several checks that only take.
    pub const TAKES: &str = include_str!("../../../../lua/takes.lua");
    /// Decides every other call.
    pub const APPLY: &str = include_str!("../../../../lua/apply.lua");
    /// Gives charges back by their receipts.
    pub const REFUND: &str = include_str!("../../../../lua/refund.lua");
}

/// What tests run strictly; production cuts it off.
const STRICT: &str = "#!lua\n";

/// A line that stands for a block, from here on `<file>.<block>`.
const INSERT: &str = "-- insert ";

/// The scripts of one way of running them.
#[derive(Debug)]
pub struct Scripts {
    /// One check of a bucket.
    pub bucket: Script,
    /// One check of a fixed window.
    pub fixed_window: Script,
    /// One check of a sliding window.
    pub sliding_window: Script,
    /// Several checks that only take.
    pub takes: Script,
    /// Any call.
    pub apply: Script,
    /// Receipts.
    pub refund: Script,
}

impl Scripts {
    /// Every script, for SCRIPT LOAD on a new connection.
    pub fn each(&self) -> [&Script; 6] {
        let alone = [&self.fixed_window, &self.bucket, &self.sliding_window];
        let [window, bucket, sliding] = alone;
        [window, bucket, sliding, &self.takes, &self.apply, &self.refund]
    }

    fn make(strict: bool) -> Scripts {
        let script = |name, file: &str| {
            let joined = joined(file);
            let text = if strict { joined } else { joined.replacen(STRICT, "", 1) };
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Script { name, text, sha }
        };
        Scripts {
            bucket: script("bucket", files::BUCKET),
            fixed_window: script("fixed_window", files::FIXED_WINDOW),
            sliding_window: script("sliding_window", files::SLIDING_WINDOW),
            takes: script("takes", files::TAKES),
            apply: script("apply", files::APPLY),
            refund: script("refund", files::REFUND),
        }
    }
}

/// As the service runs them.
pub static PRODUCTION: LazyLock<Scripts> = LazyLock::new(|| Scripts::make(false));

/// As tests run them: strictly. Needs Redis 7.
pub static STRICTLY: LazyLock<Scripts> = LazyLock::new(|| Scripts::make(true));

/// A file with every line `-- insert <file>.<block>` replaced by that block.
fn joined(file: &str) -> String {
    let mut text = String::with_capacity(file.len() * 2);
    join(&mut text, "", file.lines());
    text
}

fn join<'a>(text: &mut String, indent: &str, lines: impl Iterator<Item = &'a str>) {
    for line in lines {
        let code = line.trim_start();
        let place = code.strip_prefix(INSERT).and_then(|place| place.split_once('.'));
        if let Some((from, name)) = place {
            let indent = format!("{indent}{}", &line[..line.len() - code.len()]);
            join(text, &indent, &mut block(source(from), name) as &mut dyn Iterator<Item = &str>);
        } else {
            if !code.is_empty() {
                text.push_str(indent);
            }
            text.push_str(line);
            text.push('\n');
        }
    }
}

fn source(name: &str) -> &'static str {
    match name {
        "bucket" => files::BUCKET,
        "fixed_window" => files::FIXED_WINDOW,
        "sliding_window" => files::SLIDING_WINDOW,
        "sliding_log" => files::SLIDING_LOG,
        "concurrency" => files::CONCURRENCY,
        "hybrid" => files::HYBRID,
        "calendar" => files::CALENDAR,
        _ => files::REFUND,
    }
}

/// The lines between `-- begin <name>: …` and `-- end <name>`.
fn block<'a>(file: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let is = move |line: &str, word: &str| {
        line.trim_start()
            .strip_prefix(word)
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    };
    file.lines()
        .skip_while(move |line| !is(line, "-- begin "))
        .skip(1)
        .take_while(move |line| !is(line, "-- end "))
        .filter(|line| {
            let code = line.trim_start();
            !code.starts_with("--") || code.starts_with(INSERT)
        })
}
