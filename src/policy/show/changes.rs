//! What a new policy changes: domains and rules that are added, removed, or changed, for the log.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::view::RuleView;
use crate::domain::escaped_prefix;
use crate::policy::lookup::tree::{Domain, Policy, Rule};

/// Maximum number of names listed for each kind of change.
const LISTED_MAX: usize = 5;
/// Maximum length of a listed name, in bytes.
const NAME_BYTES_MAX: usize = 64;

impl Policy {
    /// Describes what has changed since `former`, with counts and the first names of each kind. A
    /// rule has changed if its limits, its modes, its metadata, or its body have.
    pub fn describe_changes(&self, former: &Policy) -> String {
        let domains = [former, self].map(|policy| {
            let domains = policy.tree.domains.iter();
            domains.map(|domain| (&*domain.name, domain)).collect::<BTreeMap<_, _>>()
        });
        let rules = [former, self].map(|policy| {
            policy.rules().iter().map(|rule| (&*rule.path, rule)).collect::<BTreeMap<_, _>>()
        });
        let is_same_domain = |old: &&Domain, new: &&Domain| {
            let lists = (&old.hash_tag, &old.quota_group, &old.http);
            (old.accounting, old.charge) == (new.accounting, new.charge)
                && lists == (&new.hash_tag, &new.quota_group, &new.http)
        };
        let is_same_rule = |old: &&Rule, new: &&Rule| {
            // A rule that was only moved to another line is the same.
            let limits = |view| RuleView { file: None, line: None, path: None, ..view };
            (&old.metadata, &old.body) == (&new.metadata, &new.body)
                && limits(former.view(old)) == limits(self.view(new))
        };
        let mut changes = describe("domain", &domains, is_same_domain);
        changes.extend(describe("rule", &rules, is_same_rule));
        if changes.is_empty() { "no domain and no rule".to_owned() } else { changes.join(", ") }
    }
}

/// Describes the differences between two versions of a list: an item for each kind of change.
fn describe<T>(
    kind: &str,
    [old, new]: &[BTreeMap<&str, T>; 2],
    is_same: impl Fn(&T, &T) -> bool,
) -> Vec<String> {
    let is_changed = |name: &str| match (old.get(name), new.get(name)) {
        (Some(before), Some(after)) => !is_same(before, after),
        _ => false,
    };
    let removed = old.keys().filter(|name| !new.contains_key(*name)).collect::<Vec<_>>();
    let changed = new.keys().filter(|name| is_changed(name)).collect();
    let added = new.keys().filter(|name| !old.contains_key(*name)).collect();
    let changes = [("removed", removed), ("changed", changed), ("added", added)];
    let describe = |(change, names): (&str, Vec<&&str>)| {
        let plural = if names.len() == 1 { "" } else { "s" };
        let mut text = format!("{} {kind}{plural} {change}:", names.len());
        for name in names.iter().take(LISTED_MAX) {
            text = text + " " + &escaped_prefix(name.as_bytes(), NAME_BYTES_MAX);
        }
        if names.len() > LISTED_MAX {
            // Writing into a String cannot fail.
            let _ = write!(text, " and {} more", names.len() - LISTED_MAX);
        }
        text
    };
    changes.into_iter().filter(|(_, names)| !names.is_empty()).map(describe).collect()
}
