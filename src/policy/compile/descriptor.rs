//! Reads `descriptors`: the tree of nodes and rules of one file.
//!
//! Not here: the keys of a single limit (`rate_limit`), warnings about the whole tree (`warnings`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::limit_context::{LimitContext, LimitDefaults};
use super::rate_limit;
use super::rate_limit::RateLimit;
use super::{metadata, response_body};
use crate::policy::compiled_policy::{NodeSpec, RuleSpec, SourceLocation, ValueSpec};
use crate::policy::diagnostic::{DiagnosticKind, Target, quoted};
use crate::policy::lookup::matcher::CHECKS_MAX;
use crate::policy::syntax::keywords::{self, Key};
use crate::policy::syntax::reader::{ErrorReported, Reader};

/// Reads a list of descriptors and their children. Returns each node with its position in the list.
/// Reports duplicates and invalid descriptors, and leaves out the invalid ones.
pub(crate) fn read_list(
    reader: &mut Reader<'_>,
    key: &Key,
    defaults: LimitDefaults<'_>,
    path: &mut Vec<String>,
) -> Vec<(usize, NodeSpec)> {
    let mut nodes = Vec::new();
    let mut seen: HashMap<NodeIdentity, usize> = HashMap::new();
    // The reader has already reported what is wrong.
    let _ = reader.for_each(key, |reader, at| {
        let key = read_key(reader);
        let value = reader.read_string(&keywords::VALUE).map(Option::unwrap_or_default);
        if let (Ok(key), Ok(value)) = (&key, &value) {
            match seen.entry(NodeIdentity::of(key, value)) {
                Entry::Occupied(first) => {
                    let first = reader.location_in_list(*first.get());
                    reader.report_duplicate(&duplicate_message(key, value), &first);
                }
                Entry::Vacant(unseen) => drop(unseen.insert(at)),
            }
        }
        nodes.push((at, read_node(reader, (key, value), defaults, path)?));
        Ok(())
    });
    nodes
}

/// Hash of the key and the value of a node. A list may have 250,000 nodes, whose texts and places
/// would take ten times as much memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeIdentity([u8; 16]);

impl NodeIdentity {
    /// Returns the identity of a node with this key and value.
    pub(crate) fn of(key: &str, value: &str) -> NodeIdentity {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&key.len().to_le_bytes());
        hasher.update(key.as_bytes());
        hasher.update(value.as_bytes());
        let mut identity = [0; 16];
        hasher.finalize_xof().fill(&mut identity);
        NodeIdentity(identity)
    }
}

/// Returns the error message for a descriptor that occurs twice on one level, in one file or in
/// several files of a domain.
pub(crate) fn duplicate_message(key: &str, value: &str) -> String {
    let key = quoted(key);
    if value.is_empty() {
        format!("a second descriptor with key {key} and no value; merge the two, or remove one")
    } else {
        let value = quoted(value);
        format!(
            "a second descriptor with key {key} and value {value}; merge the two, or remove one"
        )
    }
}

fn read_node(
    reader: &mut Reader<'_>,
    (key, value): (Result<String, ErrorReported>, Result<String, ErrorReported>),
    defaults: LimitDefaults<'_>,
    path: &mut Vec<String>,
) -> Result<NodeSpec, ErrorReported> {
    path.push(key.clone().unwrap_or_default());
    path.push(value.clone().unwrap_or_default());
    let rule = read_rule(reader, defaults, path);
    if !defaults.budget.take(1 + rule_limits(&rule), node_bytes(reader, path)) {
        path.truncate(path.len().saturating_sub(2));
        if let Some(message) = defaults.budget.first_error() {
            reader.report(Target::Value, DiagnosticKind::TooLarge, message);
        }
        return Err(ErrorReported);
    }
    let children = read_list(reader, &keywords::CHILDREN, defaults, path);
    path.truncate(path.len().saturating_sub(2));
    let share_threshold = read_share_threshold(reader, &value);
    let value_to_metric = reader.read_boolean(&keywords::VALUE_TO_METRIC);
    Ok(NodeSpec {
        key: key?.into(),
        value: match value? {
            text if text.is_empty() => ValueSpec::Any,
            text if text.contains('*') => ValueSpec::Pattern(text.into()),
            text => ValueSpec::Exact(text.into()),
        },
        share_threshold: share_threshold?,
        value_to_metric: value_to_metric?,
        rule: rule?,
        children: children.into_iter().map(|(_, node)| node).collect(),
    })
}

fn rule_limits(rule: &Result<Option<RuleSpec>, ErrorReported>) -> usize {
    rule.as_ref().ok().and_then(Option::as_ref).map_or(0, |rule| rule.limits.len())
}

/// Returns an estimate of the text that a compiled node takes, in bytes: its path, which a rule's
/// name in metrics repeats, its place in the policy, and its `metadata` and `body`.
fn node_bytes(reader: &Reader<'_>, path: &[String]) -> usize {
    /// Length of one step of a place, such as `descriptors[1234].`.
    const STEP_BYTES: usize = 18;
    let path: usize = path.iter().map(String::len).sum::<usize>() + path.len() / 2 * STEP_BYTES;
    [&keywords::METADATA, &keywords::RULE_BODY, &keywords::RATE_LIMIT, &keywords::RATE_LIMITS]
        .into_iter()
        .fold(path, |bytes, key| bytes + reader.text_bytes(key))
}

fn read_key(reader: &mut Reader<'_>) -> Result<String, ErrorReported> {
    match reader.read_string(&keywords::KEY)? {
        Some(key) if !key.is_empty() => Ok(key),
        Some(_) => {
            let message = "`key` is empty; name the descriptor entry, such as remote_address";
            Err(reader.report_key(&keywords::KEY, DiagnosticKind::Missing, message))
        }
        None => {
            let message = "a descriptor needs `key: NAME`, such as remote_address";
            Err(reader.report(Target::Value, DiagnosticKind::Missing, message))
        }
    }
}

fn read_share_threshold(
    reader: &mut Reader<'_>,
    value: &Result<String, ErrorReported>,
) -> Result<bool, ErrorReported> {
    let share = reader.read_boolean(&keywords::SHARE_THRESHOLD)?;
    if share && value.as_ref().is_ok_and(|value| !value.contains('*')) {
        let message = "`share_threshold` needs a `value` with `*`: it makes all values of a \
                       pattern share one counter";
        return Err(reader.report_key(
            &keywords::SHARE_THRESHOLD,
            DiagnosticKind::Conflict,
            message,
        ));
    }
    Ok(share)
}

/// Reads the rule of a descriptor: its limits, and other keys of the rule, such as `shadow_mode`
/// and `body`. Returns `None` if the descriptor has neither `rate_limit` nor `rate_limits`.
fn read_rule(
    reader: &mut Reader<'_>,
    defaults: LimitDefaults<'_>,
    path: &[String],
) -> Result<Option<RuleSpec>, ErrorReported> {
    let limits = read_limits(reader, defaults, path);
    let shadow_mode = reader.read_boolean(&keywords::SHADOW_MODE);
    let quota_mode = reader.read_boolean(&keywords::QUOTA_MODE);
    let detailed_metric = reader.read_boolean(&keywords::DETAILED_METRIC);
    let metadata = reader.read_value(&keywords::METADATA, metadata::read);
    let body = reader.read_map(&keywords::RULE_BODY, response_body::read);
    let has_limit = reader.is_set(&keywords::RATE_LIMIT) || reader.is_set(&keywords::RATE_LIMITS);
    let has_unused_body = reader.is_set(&keywords::RULE_BODY) && !has_limit;
    if has_unused_body && body.is_ok() {
        let message = "`body` has no effect on a descriptor without a limit; add a `rate_limit`, or \
                       remove `body`";
        reader.report_key(&keywords::RULE_BODY, DiagnosticKind::Conflict, message);
    }
    let (limits, shadow_mode, quota_mode) = (limits?, shadow_mode?, quota_mode?);
    let (detailed_metric, metadata, body) = (detailed_metric?, metadata?, body?);
    if limits.is_empty() {
        return Ok(None);
    }
    let single = limits.first().filter(|_| reader.is_set(&keywords::RATE_LIMIT));
    Ok(Some(RuleSpec {
        name: single.and_then(|limit| limit.name.clone()),
        replaces: limits.iter().flat_map(|limit| limit.replaces.iter().cloned()).collect(),
        limits: limits.into_iter().filter_map(|limit| limit.limit).collect(),
        shadow_mode,
        quota_mode,
        detailed_metric,
        metadata: metadata.map(Arc::new),
        body,
        location: Some(reader.current_location()),
    }))
}

/// Reads `rate_limit` or `rate_limits`. Returns an empty list if the descriptor has neither, and
/// reports an error if it has both.
fn read_limits(
    reader: &mut Reader<'_>,
    defaults: LimitDefaults<'_>,
    path: &[String],
) -> Result<Vec<RateLimit>, ErrorReported> {
    let context = LimitContext { defaults, path, in_list: false };
    let single = reader.read_map(&keywords::RATE_LIMIT, |reader| rate_limit::read(reader, context));
    let list = read_rate_limits(reader, LimitContext { in_list: true, ..context });
    if reader.is_set(&keywords::RATE_LIMIT) && reader.is_set(&keywords::RATE_LIMITS) {
        let message = "`rate_limit` and `rate_limits` cannot be used together; move the limit into \
                       the list";
        let (key, kind) = (&keywords::RATE_LIMITS, DiagnosticKind::Conflict);
        return Err(reader.report_key(key, kind, message));
    }
    let (single, list) = (single?, list?);
    Ok(single.into_iter().chain(list).collect())
}

fn read_rate_limits(
    reader: &mut Reader<'_>,
    context: LimitContext<'_>,
) -> Result<Vec<RateLimit>, ErrorReported> {
    let mut seen: HashMap<String, SourceLocation> = HashMap::new();
    let limits = reader.for_each(&keywords::RATE_LIMITS, |reader, _| {
        let limit = rate_limit::read(reader, context)?;
        let message = "an entry of `rate_limits` needs a `name` of its own: it is part of its \
                       counters' keys";
        let name = reader.require(limit.name.as_deref(), Target::Value, message)?;
        if let Some(first) = seen.get(name) {
            let message = format!("a second limit has the name {}; rename it", quoted(name));
            return Err(reader.report_duplicate(&message, first));
        }
        seen.insert(name.to_owned(), reader.current_location());
        Ok(limit)
    })?;
    let Some(limits) = limits else { return Ok(Vec::new()) };
    let message = match limits.len() {
        0 => "`rate_limits` is empty, so it limits nothing; remove it".to_owned(),
        1..=CHECKS_MAX => return Ok(limits),
        _ => format!("a call can have at most {CHECKS_MAX} checks; remove some limits"),
    };
    Err(reader.report_key(&keywords::RATE_LIMITS, DiagnosticKind::TooLarge, message))
}
