//! What an operator asks for, on the command line or the debug port, as an override.
//!
//! Not here: the bounds of an override (`policy`), the routes (`admin`).

use serde_json::{Map, Value};

use super::OperatorOverrides;
use crate::admin::Query;
use crate::domain::{Micros, escaped, parse_descriptor};
use crate::policy::{OverrideEntry, Policy};

impl OperatorOverrides {
    /// Returns the override that the parameters describe.
    ///
    /// # Errors
    ///
    /// Returns a message for the operator if the parameters are invalid, or the policy has no such target.
    pub(crate) fn parse(&self, query: &Query) -> Result<OverrideEntry, String> {
        let target = query.required("target")?;
        let is_permanent = match query.value("permanent") {
            None => false,
            Some("true") => true,
            Some(_) => return Err(query.usage.to_owned()),
        };
        let lifetime = query.parse_lifetime()?;
        let mut fields = Map::new();
        let is_field = |(name, _): &(&str, &str)| !["target", "permanent", "for"].contains(name);
        for (name, text) in query.pairs().filter(is_field) {
            let value = match name {
                "limit" | "burst" => match text.parse::<u64>() {
                    Ok(number) => Value::from(number),
                    Err(_) => return Err(format!("{name} must be a whole number")),
                },
                _ => Value::from(text),
            };
            fields.insert(name.to_owned(), value);
        }
        let (domain, rule) = split_target(&self.loaded(), target)?;
        fields.insert("domain".to_owned(), Value::from(domain));
        if let Some(rule) = rule {
            fields.insert("rule".to_owned(), Value::from(rule));
        }
        let mut entry = OverrideEntry::from_json(&Value::Object(fields).to_string())?;
        let lifetime = lifetime.map(|lifetime| lifetime.as_micros() as u64);
        let ends = usize::from(entry.until.is_some()) + usize::from(lifetime.is_some());
        if ends + usize::from(is_permanent) != 1 {
            return Err("give the end of the override: one of for, until, and permanent".to_owned());
        }
        if let Some(lifetime) = lifetime {
            entry.until = Some(Micros(self.now().0.saturating_add(lifetime)));
        }
        Ok(entry)
    }

    /// Returns the ids of the overrides that an operator selects. Without a target, these are all of a
    /// kind that apply to domains and rules, not to values.
    ///
    /// # Errors
    ///
    /// Returns a message for the operator if there is no such override.
    pub(crate) fn select(&self, query: &Query) -> Result<Vec<String>, String> {
        let [target, descriptor, limit_name, kind] =
            ["target", "descriptor", "limit_name", "kind"].map(|name| query.value(name));
        if target.is_none() && (kind.is_none() || descriptor.is_some()) {
            return Err(query.usage.to_owned());
        }
        let entries = descriptor.map_or(Ok(Vec::new()), parse_descriptor)?;
        let state = self.state.lock();
        let is_selected = |entry: &OverrideEntry| {
            let of_target = target.is_none_or(|target| {
                let rule = entry.target.rule.as_deref();
                rule.unwrap_or(&entry.target.domain) == target
            });
            of_target
                && entry.target.entries == entries
                && kind.is_none_or(|kind| entry.change.kind() == kind)
                && (limit_name.is_none() || entry.target.limit_name == limit_name.map(Into::into))
        };
        let selected = state.in_force.iter().filter(|(_, entry)| is_selected(entry));
        let ids: Vec<String> = selected.map(|(id, _)| id.clone()).collect();
        match (ids.is_empty(), target) {
            (true, Some(target)) => Err(format!("no such override is set on {target}")),
            (_, None) | (false, Some(_)) => Ok(ids),
        }
    }
}

/// Returns the domain, and the rule if `target` is the path of one.
fn split_target(policy: &Policy, target: &str) -> Result<(String, Option<String>), String> {
    if policy.has_domain(target) {
        return Ok((target.to_owned(), None));
    }
    match policy.rules().iter().find(|rule| *rule.path == *target) {
        Some(rule) => Ok((policy.domain_name(rule).to_owned(), Some(target.to_owned()))),
        None => Err(format!(
            "the policy has neither a domain nor a rule `{}`; give a path as /rlconfig lists it",
            escaped(target)
        )),
    }
}
