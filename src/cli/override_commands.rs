//! `tidegate override` and `tidegate switch`: change limits of a running service, and list the changes.
//!
//! Both send their requests to the debug port through `app`. Not here: what a change means (`policy`).

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use serde_json::Value;

use super::admin_commands::{DebugAddress, DebugPortFlags};
use super::terminal;
use super::usage_errors::DESCRIPTORS_PLACEHOLDER;
use crate::app::{self, Failure};
use crate::settings;

#[derive(Args, Debug)]
#[command(after_help = OVERRIDE_HELP, subcommand_required = true)]
pub(super) struct Override {
    #[command(subcommand)]
    action: OverrideAction,
}

const OVERRIDE_HELP: &str = "\
Examples:
  tidegate override set edge api_token=acme --limit 500 --for 7d --reason T-42 --debug-token-file token
  tidegate override set edge --scale 20% --for 10m --debug-token-file token
  tidegate override delete edge api_token=acme --debug-token-file token
  tidegate override export > overrides.yaml

With Redis, an override applies to all replicas within a second, and survives restarts. It keeps the
counters.";

#[derive(Debug, Subcommand)]
enum OverrideAction {
    /// Set an override, replacing one of the same kind on the same target
    Set(Box<SetOverride>),
    /// List the overrides in force
    List {
        #[command(flatten)]
        port: DebugAddress,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Delete the overrides of a target
    Delete(DeleteOverride),
    /// Print the overrides in force as a file for --overrides
    Export {
        #[command(flatten)]
        port: DebugAddress,
    },
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
#[command(group = ArgGroup::new("end").required(true))]
struct SetOverride {
    #[command(flatten)]
    port: DebugPortFlags,
    /// Domain, or path of a rule as listed by /rlconfig
    target: String,
    /// Values to which the override applies, as k=v,k2=v2 (* matches any text); default: all
    #[arg(value_name = DESCRIPTORS_PLACEHOLDER)]
    descriptor: Option<String>,
    /// Requests per unit, or number of slots
    #[arg(long, group = "change", value_name = "NUMBER")]
    limit: Option<u32>,
    /// Burst of a bucket; default: in proportion to --limit
    #[arg(long, group = "change", value_name = "NUMBER")]
    burst: Option<u64>,
    /// Day on which calendar months or years start, such as 15 or 04-01
    #[arg(long, group = "change", value_name = "DAY")]
    anchor: Option<String>,
    /// Name of the limit, on a rule with several limits
    #[arg(long, value_name = "NAME")]
    limit_name: Option<String>,
    /// Let every call pass, without counting
    #[arg(long, group = "change", conflicts_with_all = ["limit", "burst", "anchor"])]
    unlimited: bool,
    /// Reject every call, without counting
    #[arg(long, group = "change", conflicts_with_all = ["limit", "burst", "anchor", "unlimited"])]
    deny: bool,
    /// Count, but let every call pass
    #[arg(long, group = "change", conflicts_with_all = ["limit", "burst", "anchor", "unlimited", "deny"])]
    shadow: bool,
    /// Percentage of the limits in force, from 1% to 100%
    #[arg(long, group = "change", value_name = "PERCENT", conflicts_with_all = ["limit", "burst", "anchor", "unlimited", "deny", "shadow"])]
    scale: Option<String>,
    /// End the override after this time, such as 7d or 10m, at most 30 days
    #[arg(long, group = "end", value_name = "DURATION", value_parser = parse_lifetime)]
    r#for: Option<Duration>,
    /// End the override at this time, such as 2026-12-01T00:00:00Z
    #[arg(long, group = "end", value_name = "TIME")]
    until: Option<String>,
    /// Keep the override until it is deleted
    #[arg(long, group = "end")]
    permanent: bool,
    /// Why, such as the number of a ticket
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who sets the override; default: $USER, or operator
    #[arg(long, env = "USER", default_value = "operator", value_name = "NAME")]
    by: String,
}

#[derive(Args, Debug)]
struct DeleteOverride {
    #[command(flatten)]
    port: DebugPortFlags,
    /// Domain, or path of a rule
    target: String,
    /// Values of the override, as in the list; default: overrides of the whole target
    #[arg(value_name = DESCRIPTORS_PLACEHOLDER)]
    descriptor: Option<String>,
    /// Only those of this limit
    #[arg(long, value_name = "NAME")]
    limit_name: Option<String>,
    /// Only those of this kind: numbers, scale or mode
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
}

/// Parses a lifetime: days (`7d`), or a duration as in the settings (`30s`).
fn parse_lifetime(input: &str) -> Result<Duration, String> {
    let days = input.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    let hours = days.map(|days| format!("{}h", days.saturating_mul(24)));
    settings::parse_lifetime(hours.as_deref().unwrap_or(input))
}

impl Override {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.action {
            OverrideAction::Set(set) => set.run(),
            OverrideAction::List { port, json: true } => {
                terminal::print(&port.read_all(|item| format!("{item}\n"))?.0.concat())
            }
            OverrideAction::List { port, json: false } => terminal::print(&port.list()?),
            OverrideAction::Delete(DeleteOverride {
                port,
                target,
                descriptor,
                limit_name,
                kind,
            }) => {
                let optional =
                    [("descriptor", descriptor), ("limit_name", limit_name), ("kind", kind)];
                port.post("/override/delete", &parameters(&target, &optional))
            }
            OverrideAction::Export { port } => {
                let (items, _) = port.read_all(|item| item["override"].to_string())?;
                terminal::print(&format!("[\n{}\n]\n", items.join(",\n")))
            }
        }
    }
}

impl DebugAddress {
    /// Lists all overrides, one per line, with the age of what the replica knows.
    fn list(&self) -> Result<String, Failure> {
        let (lines, age) = self.read_all(|item| {
            let is_matched = item["matched"] == true;
            let note = if is_matched { "" } else { " (unmatched: the policy lacks the target)" };
            format!("{}{note}\n", item["text"].as_str().unwrap_or_default())
        })?;
        let count = match lines.len() {
            0 => "no override is set".to_owned(),
            count => format!("{count} in force"),
        };
        Ok(format!("{count}; known {age} s ago\n{}", lines.concat()))
    }

    /// Reads all pages of the list, and formats each item. Returns them with the age of what the replica
    /// knows, in seconds.
    fn read_all(&self, format: impl Fn(&Value) -> String) -> Result<(Vec<String>, Value), Failure> {
        let (mut items, mut after) = (Vec::new(), String::new());
        loop {
            let text = app::get_from_debug_port(&self.debug, "/overrides", &[("after", &*after)])?;
            let page: Value = serde_json::from_str(&text)
                .map_err(|_| Failure::Unavailable(format!("{}: not a list", self.debug)))?;
            items.extend(page["overrides"].as_array().into_iter().flatten().map(&format));
            match page["next"].as_str() {
                Some(next) if *next > *after => after = next.to_owned(),
                Some(_) | None => return Ok((items, page["known_seconds_ago"].clone())),
            }
        }
    }
}

fn parameters<'a>(
    target: &'a str,
    optional: &'a [(&'a str, Option<String>)],
) -> Vec<(&'a str, &'a str)> {
    let given = optional.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
    [("target", target)].into_iter().chain(given).collect()
}

impl SetOverride {
    fn run(self) -> Result<(), Failure> {
        let modes = [("unlimited", self.unlimited), ("deny", self.deny), ("shadow", self.shadow)];
        let mode = modes.into_iter().find(|(_, is_set)| *is_set).map(|(mode, _)| mode.to_owned());
        let optional = [
            ("descriptor", self.descriptor),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("burst", self.burst.map(|burst| burst.to_string())),
            ("anchor", self.anchor),
            ("limit_name", self.limit_name),
            ("mode", mode),
            ("scale", self.scale),
            ("for", self.r#for.map(|lifetime| lifetime.as_secs().to_string())),
            ("until", self.until),
            ("permanent", self.permanent.then(|| "true".to_owned())),
            ("reason", self.reason),
            ("by", Some(self.by).filter(|by| !by.is_empty())),
        ];
        self.port.post("/override", &parameters(&self.target, &optional))
    }
}

#[derive(Args, Debug)]
#[command(after_help = SWITCH_COMMAND_HELP)]
pub(super) struct Switch {
    #[command(flatten)]
    port: DebugPortFlags,
    /// Domain, or path of a rule as listed by /rlconfig
    target: String,
    /// Override to set (shadow, allow, deny or a percentage such as 20%), or delete to remove those set
    to: String,
    /// Remove the override after this time, such as 10m, or this many seconds; not with delete
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    r#for: Option<Duration>,
}

const SWITCH_COMMAND_HELP: &str = "\
Examples:
  tidegate switch edge 20% --for 10m --debug-token-file token     a fifth of every limit
  tidegate switch edge.api_token shadow --debug-token-file token
  tidegate switch edge delete --debug-token-file token

Sets or deletes an override of a domain or a rule: see `tidegate override`. Without --for, it applies
until it is deleted.";

impl Switch {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Switch { port, target, to, r#for } = self;
        if to == "delete" {
            return match r#for {
                Some(_) => Err(Failure::Usage("--for cannot be used with delete".to_owned())),
                None => port.post("/override/delete", &[("target", &*target)]),
            };
        }
        let is_scale = to.ends_with('%');
        let mode = if to == "allow" { "unlimited".to_owned() } else { to };
        let seconds = r#for.map(|lifetime| lifetime.as_secs().to_string());
        let permanent = seconds.is_none().then(|| "true".to_owned());
        let (kind, other) = if is_scale { ("scale", "mode") } else { ("mode", "scale") };
        let optional = [(kind, Some(mode)), ("for", seconds), ("permanent", permanent)];
        let set = port.send("/override", &parameters(&target, &optional))?;
        // Replaces an override of the other kind with the same target; usually there is none.
        let _ = port.send("/override/delete", &[("target", &*target), ("kind", other)]);
        terminal::print(&set)
    }
}
