//! Bundles the files of `lua/` into the scripts that Redis runs, and defines a call to one.
//!
//! A file includes another file with `loadfile('path')`, as in stock Lua. Redis has no `loadfile`,
//! so `bundle_file` replaces the call with a function whose body is the included file.
//!
//! Each file starts with the line `#!lua`. With this line, Redis 7 or newer runs the script in
//! strict mode and rejects keys in two cluster slots, unless the line permits them. Tests use
//! strict mode. Production drops the line, because a Redis server at `maxmemory` would reject every
//! call of a script with it. Without the line, only charges fail, and scripts can still refuse
//! calls. Each call also costs 5% less.
//!
//! Not here: arguments (`arguments`), replies (`reply`), loading scripts on a server (`client`).

use std::sync::LazyLock;
use std::time::Instant;

use redis::Cmd;

/// Lua script, with the SHA1 that EVALSHA uses to refer to it.
#[derive(Debug, PartialEq, Eq)]
pub struct Script {
    /// File name in `lua/` without the extension, for logs.
    pub name: &'static str,
    /// Source text that SCRIPT LOAD sends.
    pub text: String,
    /// SHA1 of the text, as 40 hexadecimal digits.
    pub sha: String,
}

impl Script {
    /// Builds the SCRIPT LOAD command for the script.
    pub(crate) fn load_command(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.text);
        command
    }

    /// Returns whether the script refunds charges.
    pub(crate) fn is_refund(&self) -> bool {
        self.name == REFUND
    }
}

/// Encoded call to a Lua script.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    /// Script to call. It is loaded again if the server replies NOSCRIPT.
    pub script: &'static Script,
    /// Encoded command: `EVALSHA <sha> <number of keys> <keys…> <arguments…>`.
    pub command: Cmd,
    /// Hash slot of the keys. `None` if Redis is not a cluster, because
    /// computing the slot costs a checksum of the key.
    pub slot: Option<u16>,
    /// Time by which the caller needs the reply; `None` means no deadline. A connection that cannot
    /// deliver the reply in time rejects the call.
    pub deadline: Option<Instant>,
}

/// Name of the script that decides calls.
pub(crate) const DECIDE: &str = "decide";

/// Name of the script that refunds charges.
const REFUND: &str = "refund";

macro_rules! lua {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../lua/", $path)))),*]
    };
}

/// Path relative to `lua/` and unmodified text of every Lua file.
pub const LUA_FILES: &[(&str, &str)] = lua![
    "decide.lua",
    "decide_call.lua",
    "refund.lua",
    "override_write.lua",
    "override_poll.lua",
    "node_read.lua",
    "algorithms.lua",
    "algorithm/fixed_window.lua",
    "algorithm/bucket.lua",
    "algorithm/budget.lua",
    "holds/end_of.lua",
    "holds/ended.lua",
    "holds/wait.lua",
    "holds/save.lua",
    "algorithm/sliding_window.lua",
    "algorithm/sliding_log.lua",
    "algorithm/concurrency.lua",
    "algorithm/hybrid.lua",
    "algorithm/block.lua",
    "clock.lua",
    "read_string.lua",
    "ttl.lua",
];

/// First line of each Lua file. It enables strict mode, in which Redis 7 or newer rejects a script
/// that accesses keys in several cluster slots.
const SHEBANG: &str = "#!lua\n";

/// First line, in strict mode, of the scripts that decide calls. It permits access to keys in
/// several cluster slots of a node.
const NODE_SHEBANG: &str = "#!lua flags=allow-cross-slot-keys\n";

/// All scripts that the store calls, bundled for either production or strict mode.
#[derive(Debug)]
pub struct Scripts {
    /// Script for the calls of one write: takes and peeks of windows and buckets.
    pub decide: Script,
    /// Script for any call. Slower than `decide`, which is preferred where it applies.
    pub apply: Script,
    /// Script that refunds charges, given their receipts.
    pub refund: Script,
}

impl Scripts {
    /// Returns all scripts, for SCRIPT LOAD on a new connection.
    pub fn all(&self) -> [&Script; 3] {
        [&self.decide, &self.apply, &self.refund]
    }

    fn bundle(line: &str, node_line: &str) -> Scripts {
        let script = |name: &'static str, first_line: &str| {
            let text = format!("{first_line}{}", bundle_file(&format!("{name}.lua")));
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Script { name, text, sha }
        };
        let [decide, apply] = [DECIDE, "decide_call"].map(|name| script(name, node_line));
        Scripts { decide, apply, refund: script(REFUND, line) }
    }
}

/// Scripts of the overrides at run time. They are not called for requests, so connections for requests do
/// not load them.
#[cfg(feature = "server")]
pub(crate) static OVERRIDE_WRITE: LazyLock<redis::Script> =
    LazyLock::new(|| redis::Script::new(&bundle_file("override_write.lua")));
#[cfg(feature = "server")]
pub(crate) static OVERRIDE_POLL: LazyLock<redis::Script> =
    LazyLock::new(|| redis::Script::new(&bundle_file("override_poll.lua")));

/// Scripts in production mode, without the line `#!lua`.
pub static PRODUCTION: LazyLock<Scripts> = LazyLock::new(|| Scripts::bundle("", ""));

/// Scripts in strict mode, for tests. Needs Redis 7 or newer.
pub static STRICT: LazyLock<Scripts> = LazyLock::new(|| Scripts::bundle(SHEBANG, NODE_SHEBANG));

/// Returns the text of a Lua file without its first line and its comments. Replaces each
/// `loadfile('path')` with a function whose body is that file, because Redis has no `loadfile`. An
/// unknown path is not replaced, so that Redis rejects the script.
fn bundle_file(path: &str) -> String {
    let file = LUA_FILES.iter().find(|(name, _)| *name == path);
    let (_, text) = file.copied().unwrap_or_default();
    let mut bundle = String::new();
    for line in text.strip_prefix(SHEBANG).unwrap_or(text).lines() {
        if !line.trim_start().starts_with("--") {
            append_line(&mut bundle, line);
            bundle.push('\n');
        }
    }
    bundle
}

/// Appends `line` to the bundle, and replaces each `loadfile` call in it with a function that
/// contains the file.
fn append_line(bundle: &mut String, line: &str) {
    let call = line.split_once("loadfile('");
    match call.and_then(|(before, call)| Some((before, call.split_once("')")?))) {
        Some((before, (path, after))) if LUA_FILES.iter().any(|(name, _)| *name == path) => {
            bundle.push_str(before);
            bundle.push_str("(function(...)\n");
            bundle.push_str(&bundle_file(path));
            bundle.push_str("end)");
            append_line(bundle, after);
        }
        Some(_) | None => bundle.push_str(line),
    }
}
