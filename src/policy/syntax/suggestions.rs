//! Suggestions in error messages: probable spellings of unknown keys, notations of numbers, and how
//! to convert files of other programs.

use super::diagnostic::{DiagnosticKind, quoted};
use super::keywords::{Level, levels_of};
use super::scalar::{self, Scalar};
use super::yaml::{Node, Value};
use crate::domain::nearest_word;

/// Returns a hint on how to write the value as a whole number, or an empty string if the value
/// does not look like a number.
pub(crate) fn number_hint(value: Node<'_>) -> &'static str {
    let text = value.text();
    if matches!(scalar::read(text), Scalar::Int(_)) {
        "; remove the quotes"
    } else if text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()) {
        "; a leading 0 means octal, so remove it"
    } else if text.starts_with(|c: char| c.is_ascii_digit()) {
        "; write digits only"
    } else {
        ""
    }
}

/// Returns the kind and message of the diagnostic for a key that does not exist at a level.
pub(crate) fn unknown_key(level: Level, name: &str) -> (DiagnosticKind, String) {
    let title = level.title();
    let levels: Vec<&str> = levels_of(name).map(Level::title).collect();
    if !levels.is_empty() {
        // A descriptor without a limit has no `rate_limit` yet.
        let way_out = match levels.first() {
            Some(&"`rate_limit`") => "write it below `rate_limit:`",
            _ => "move it there",
        };
        let message =
            format!("`{name}` belongs to {}, not to {title}; {way_out}", levels.join(" or "));
        return (DiagnosticKind::MisplacedKey, message);
    }
    let way_out = match nearest_word(name, level.keys().map(|key| key.name)) {
        Some(key) => format!("did you mean `{key}`?"),
        None => {
            let all: Vec<&str> = level.keys().map(|key| key.name).collect();
            format!("{title} takes: {}", all.join(", "))
        }
    };
    (DiagnosticKind::UnknownKey, format!("unknown key {}; {way_out}", quoted(name)))
}

/// Returns the name of a value's type, for messages.
pub(crate) fn type_name(value: Node<'_>) -> &'static str {
    match (value.value(), value.core_scalar()) {
        (Value::List(_), _) => "a list",
        (Value::Map(_), _) => "a map",
        (Value::Scalar(..), Scalar::Null) => "nothing",
        (Value::Scalar(..), Scalar::Bool(_)) => "a boolean",
        (Value::Scalar(..), Scalar::Int(_) | Scalar::Float(_)) => "a number",
        (Value::Scalar(..), Scalar::Text) => "text",
    }
}

/// Recognizes input files of other programs. Returns a message with the kind of file and how to
/// convert it to a policy.
pub(crate) fn foreign_file(root: Node<'_>) -> Option<&'static str> {
    if root.get("domain").is_some() {
        return None;
    }
    let kind = root.get("kind").map_or("", Node::text);
    let limits = root.get("rate_limits").unwrap_or(root);
    let first = match limits.value() {
        Value::List(list) => list.node(0).unwrap_or(root),
        Value::Scalar(..) | Value::Map(_) => root,
    };
    let has = |key: &str| first.get(key).is_some();
    if root.get("apiVersion").is_some() {
        Some(if kind == "ConfigMap" { CONFIG_MAP_HINT } else { MANIFEST_HINT })
    } else if root.get("static_resources").is_some() {
        Some(ENVOY_CONFIG_HINT)
    } else if has("actions") {
        Some(ENVOY_ACTIONS_HINT)
    } else if has("max_value") && has("seconds") {
        Some(LIMITADOR_HINT)
    } else if has("groups") && has("lasts_s") {
        Some(SCENARIO_HINT)
    } else if SETTINGS_KEYS.iter().any(|name| root.get(name).is_some()) {
        Some(SETTINGS_FILE_HINT)
    } else {
        None
    }
}

/// Settings that nearly every settings file has; none is a key of a policy.
const SETTINGS_KEYS: [&str; 6] =
    ["policy", "grpc-port", "http-port", "redis-url", "redis-type", "log-level"];

const SETTINGS_FILE_HINT: &str = "this is a settings file, not a policy; pass it to `tidegate serve` with \
                             --settings";
const SCENARIO_HINT: &str = "this is a scenario, not a policy; run it with `tidegate simulate`";
const CONFIG_MAP_HINT: &str = "this is a Kubernetes ConfigMap, not a policy; save the text below its \
                          `data` as a file of its own, or mount the ConfigMap and use the directory";
const MANIFEST_HINT: &str =
    "this is a Kubernetes manifest, not a policy; a policy begins with `domain: NAME`";
const ENVOY_ACTIONS_HINT: &str = "these are Envoy's rate limit actions, not a policy; leave them in \
                             Envoy's route, and write a policy with `domain: NAME` and, for an \
                             action such as remote_address, `descriptors: [{key: \
                             remote_address, rate_limit: {unit: minute, requests_per_unit: \
                             100}}]`";
const ENVOY_CONFIG_HINT: &str = "this is Envoy's configuration, not a policy; leave it to Envoy, and \
                                 write a policy in a file of its own, with the `domain` that \
                                 Envoy's rate limit filter names";
const LIMITADOR_HINT: &str = "this is a limits file of Limitador, not a policy; `namespace` becomes \
                         `domain`, each of `variables` the `key` of a descriptor, `max_value` \
                         `requests_per_unit`, and `seconds` the `unit` (1 second, 60 minute, \
                         3600 hour, 86400 day)";
