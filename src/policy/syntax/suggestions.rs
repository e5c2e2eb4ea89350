//! Ways out: what a message adds so that the reader of a fault knows what to write instead.
//!
//! Not here: what is a fault (`reader`).

use super::diagnostic::{DiagnosticKind, shown};
use super::keywords::{Level, levels_of};
use super::scalar::{self, Scalar};
use super::yaml::{Node, Value};

/// The way out for what almost is a whole number.
pub(crate) fn number_hint(value: Node<'_>) -> &'static str {
    let text = value.text();
    if matches!(scalar::read(text), Scalar::Int(_)) {
        "; remove the quotes"
    } else if text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()) {
        "; a leading 0 means octal, so remove it"
    } else {
        ""
    }
}

/// Describes a key that `level` does not have.
pub(crate) fn unknown_key(level: Level, name: &str) -> (DiagnosticKind, String) {
    let title = level.title();
    let levels: Vec<&str> = levels_of(name).map(Level::title).collect();
    if !levels.is_empty() {
        let message = format!("`{name}` belongs to {}, not to {title}", levels.join(" or "));
        return (DiagnosticKind::MisplacedKey, message);
    }
    let near = level.keys().find(|key| distance(key.name, name) <= NEAR);
    let way_out = match near {
        Some(key) => format!("did you mean `{}`?", key.name),
        None => {
            let all: Vec<&str> = level.keys().map(|key| key.name).collect();
            format!("{title} takes: {}", all.join(", "))
        }
    };
    (DiagnosticKind::UnknownKey, format!("unknown key {}; {way_out}", shown(name)))
}

/// How many typing slips a key may be away from the one that is offered for it.
const NEAR: usize = 2;

/// The longest key that is looked at for slips; every known key is shorter.
const NEAR_BYTES_MAX: usize = 32;

/// Edit distance: the fewest insertions, deletions and replacements of a byte.
fn distance(known: &str, given: &str) -> usize {
    if given.len() > NEAR_BYTES_MAX {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=given.len()).collect();
    for (i, a) in known.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in given.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[given.len()]
}

/// What a value is, in words.
pub(crate) fn kind_of(value: Node<'_>) -> &'static str {
    match (value.value(), value.core_scalar()) {
        (Value::List(_), _) => "a list",
        (Value::Map(_), _) => "a map",
        (Value::Scalar(..), Scalar::Null) => "nothing",
        (Value::Scalar(..), Scalar::Bool(_)) => "a truth value",
        (Value::Scalar(..), Scalar::Int(_) | Scalar::Float(_)) => "a number",
        (Value::Scalar(..), Scalar::Text) => "text",
    }
}

/// What a file of another program is, and how to get a policy from it; `None` for any other file.
pub(crate) fn file_kind(root: Node<'_>) -> Option<&'static str> {
    if root.get("domain").is_some() {
        return None;
    }
    let kind = root.get("kind").map_or("", Node::text);
    let limits = root.get("rate_limits").unwrap_or(root);
    let first = match limits.value() {
        Value::List(list) => list.get(0).unwrap_or(root),
        Value::Scalar(..) | Value::Map(_) => root,
    };
    let has = |key: &str| first.get(key).is_some();
    if root.get("apiVersion").is_some() {
        Some(if kind == "ConfigMap" { CONFIG_MAP } else { MANIFEST })
    } else if root.get("static_resources").is_some() {
        Some(ENVOY_CONFIGURATION)
    } else if has("actions") {
        Some(ENVOY_ACTIONS)
    } else if has("max_value") && has("seconds") {
        Some(LIMITADOR)
    } else {
        None
    }
}

const CONFIG_MAP: &str = "this is a Kubernetes ConfigMap, not a policy; save the text below one of its `data` keys as a \
     file of its own, or mount the ConfigMap and give its directory as the policy";
const MANIFEST: &str =
    "this is a Kubernetes manifest, not a policy; a policy begins with `domain: NAME`";
const ENVOY_ACTIONS: &str = "these are Envoy's rate limit actions, which belong in Envoy's route configuration; a policy \
     begins with `domain: NAME` and lists the descriptors that the actions produce";
const ENVOY_CONFIGURATION: &str = "this is Envoy's configuration, not a policy; a policy begins with `domain: NAME`, the domain \
     that Envoy's rate limit filter names";
const LIMITADOR: &str = "this is a limits file of Limitador; in a policy, `namespace` is the `domain`, each of \
     `variables` is the `key` of a descriptor, and `max_value` in `seconds` is a `rate_limit`";
