//! `tidegate top`: shows the first keys of each limit, over all replicas that the service asks.
//!
//! Not here: what is counted (`telemetry::top_keys`), the request (`app::admin_client`).

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::admin_commands::DebugAddress;
use super::terminal;
use crate::app::{self, Failure};
use crate::domain::escaped;

/// Pause between two requests on a terminal, 1 s.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);

/// Moves the cursor to the top left, and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Args, Debug)]
#[command(after_help = TOP_HELP)]
pub(super) struct Top {
    /// What to count: hits used, checks rejected, or checks that leave a key near its limit
    #[arg(long, default_value = "rejected", value_parser = ["used", "rejected", "near"])]
    by: String,
    /// Time over which to count: the last 10 seconds, hour, or day
    #[arg(long, default_value = "now", value_parser = ["now", "last_hour", "last_day"])]
    window: String,
    #[command(flatten)]
    port: DebugAddress,
    /// Print once, also on a terminal
    #[arg(long)]
    once: bool,
    /// Print the JSON of /top, once
    #[arg(long)]
    json: bool,
}

const TOP_HELP: &str = "\
Examples:
  tidegate top --by used
  kubectl exec POD -- tidegate top --by near --window last_hour

A replica with --peers answers for all replicas, and names those that did not answer. On a terminal,
the list is refreshed every second.";

impl Top {
    pub(super) fn run(self) -> Result<(), Failure> {
        let repeats = terminal::stdout_is_terminal() && !self.once && !self.json;
        loop {
            let text =
                app::get_from_debug_port(&self.port.debug, "/top", &[("by", self.by.as_str())])?;
            if self.json {
                return terminal::print(&text);
            }
            let report = serde_json::from_str(&text).map_err(|_| {
                Failure::Unavailable(format!("{}: not a debug port of Tidegate", self.port.debug))
            })?;
            let table = self.format(&report);
            if !repeats {
                return terminal::print(&table);
            }
            terminal::print(&format!("{CLEAR}{table}"))?;
            thread::sleep(REFRESH_PAUSE);
        }
    }

    /// Formats a report as a table.
    fn format(&self, report: &Value) -> String {
        let window = &report[&self.window];
        let replicas = list(&report["replicas"]);
        let answered = replicas.iter().filter(|replica| replica["answered"] == true).count();
        let mut table = format!(
            "{} in the last {} s, {answered} of {} replicas\n",
            self.by,
            window["seconds"],
            replicas.len()
        );
        for replica in replicas.iter().filter(|replica| replica["answered"] != true) {
            let (name, reason) = (text(&replica["name"]), text(&replica["reason"]));
            let _ = writeln!(table, "no answer from {name}: {reason}");
        }
        for limit in list(&window["limits"]) {
            let (rule, name) = (text(&limit["rule"]), text(&limit["limit"]));
            let shadow = if limit["shadow"] == true { " (passed)" } else { "" };
            let _ = writeln!(table, "\n{rule} {name}{shadow}: {}", limit["count"]);
            for key in list(&limit["keys"]) {
                let bounds = format!("{}..{}", key["count"], key["count_at_most"]);
                let used = format!("{} %", key["used_percent"]);
                let used = if self.by == "rejected" { "" } else { &used };
                let (key, counter) = (text(&key["key"]), text(&key["counter"]));
                let _ = writeln!(table, "{bounds:>24} {used:>5}  {key}  {counter}");
            }
        }
        table
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a text so that it cannot control the terminal; empty for null.
fn text(value: &Value) -> String {
    value.as_str().map(escaped).unwrap_or_default().to_string()
}
