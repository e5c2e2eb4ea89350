//! The Lua scripts as the service runs them: files bundled, first line cut, hashed once.
//!
//! A script names another file of `lua/` by `loadfile('path')`, as in stock Lua: a function of the
//! file's text. Redis has no files, so [`bundled`] puts that function in its place.
//!
//! The first line of a file in `lua/` is `#!lua`, so that tests run it strictly: from Redis 7 on, a
//! server then refuses a script that touches two cluster slots. In production the line is cut off:
//! with it a full Redis refuses the whole script, without it refusals are still decided and only a
//! charge fails; and a call costs 5 % less.
//!
//! Not here: the arguments (`arguments`), the replies (`reply`), loading the scripts (`client`).

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

macro_rules! lua {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../lua/", $path)))),*]
    };
}

/// The files of `lua/` as they are, by their path there.
pub const FILES: &[(&str, &str)] = lua![
    "single_fixed_window.lua",
    "single_bucket.lua",
    "single_sliding_window.lua",
    "multi_check.lua",
    "apply.lua",
    "refund.lua",
    "algorithms.lua",
    "algorithm/fixed_window.lua",
    "algorithm/bucket.lua",
    "algorithm/sliding_window.lua",
    "algorithm/sliding_log.lua",
    "algorithm/concurrency.lua",
    "algorithm/hybrid.lua",
    "clock.lua",
    "get.lua",
    "ttl.lua",
];

/// The first line of each file.
const STRICT: &str = "#!lua\n";

/// The scripts of one way of running them.
#[derive(Debug)]
pub struct Scripts {
    /// A call of one check of a fixed window.
    pub single_fixed_window: Script,
    /// A call of one check of a bucket.
    pub single_bucket: Script,
    /// A call of one check of a sliding window.
    pub single_sliding_window: Script,
    /// A call of several checks of different fixed windows and buckets.
    pub multi_check: Script,
    /// Any call.
    pub apply: Script,
    /// Refunds by receipts.
    pub refund: Script,
}

impl Scripts {
    /// Every script, for SCRIPT LOAD on a new connection.
    pub fn each(&self) -> [&Script; 6] {
        [
            &self.single_fixed_window,
            &self.single_bucket,
            &self.single_sliding_window,
            &self.multi_check,
            &self.apply,
            &self.refund,
        ]
    }

    fn bundle(first_line: &str) -> Scripts {
        let script = |name: &'static str| {
            let text = format!("{first_line}{}", bundled(&format!("{name}.lua")));
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Script { name, text, sha }
        };
        Scripts {
            single_fixed_window: script("single_fixed_window"),
            single_bucket: script("single_bucket"),
            single_sliding_window: script("single_sliding_window"),
            multi_check: script("multi_check"),
            apply: script("apply"),
            refund: script("refund"),
        }
    }
}

/// As the service runs them.
pub static PRODUCTION: LazyLock<Scripts> = LazyLock::new(|| Scripts::bundle(""));

/// As tests run them: strictly. Needs Redis 7.
pub static STRICTLY: LazyLock<Scripts> = LazyLock::new(|| Scripts::bundle(STRICT));

/// A file's text without its first line and comments, every `loadfile('path')` replaced by a
/// function of that file's text. A path that is no file stays, and Redis refuses the script.
fn bundled(path: &str) -> String {
    let file = FILES.iter().find(|(name, _)| *name == path);
    let (_, text) = file.copied().unwrap_or_default();
    let mut bundle = String::new();
    for line in text.strip_prefix(STRICT).unwrap_or(text).lines() {
        if !line.trim_start().starts_with("--") {
            bundle_line(&mut bundle, line);
            bundle.push('\n');
        }
    }
    bundle
}

fn bundle_line(bundle: &mut String, line: &str) {
    let call = line.split_once("loadfile('");
    match call.and_then(|(before, call)| Some((before, call.split_once("')")?))) {
        Some((before, (path, after))) if FILES.iter().any(|(name, _)| *name == path) => {
            bundle.push_str(before);
            bundle.push_str("(function(...)\n");
            bundle.push_str(&bundled(path));
            bundle.push_str("end)");
            bundle_line(bundle, after);
        }
        Some(_) | None => bundle.push_str(line),
    }
}
