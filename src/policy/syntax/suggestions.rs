//! Suggestions in error messages: likely spellings of unknown keys, how to write lists and numbers,
//! and what to do with a file that is not a policy.

use super::diagnostic::{DiagnosticKind, quoted};
use super::keywords::{self, Key, Level, levels_of};
use super::reader::spelling;
use super::scalar::{self, Scalar};
use super::yaml::{Children, Node, Value};
use crate::domain::nearest_word;

/// Returns a hint on how to write the value as a list.
pub(crate) fn list_hint(value: Node<'_>) -> String {
    let first = match value.value() {
        Value::Map(map) => map.entries().next(),
        Value::Scalar(..) | Value::List(_) => None,
    };
    match first {
        Some((key, value)) if levels_of(key.text()).next().is_some() && !value.is_collection() => {
            format!(
                "begin each entry with `- `, as in `- {}: {}`, and indent its other lines by two \
                 more spaces",
                key.text(),
                spelling(value)
            )
        }
        Some(_) | None => "begin each entry with `- `".to_owned(),
    }
}

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

/// Returns the message for limit keys that are written in the descriptor `map` instead of in its
/// `rate_limit`. `misplaced` contains the nodes of these keys and their values; never empty.
pub(crate) fn misplaced_limit_keys_message(
    map: Children<'_>,
    misplaced: &[(Node<'_>, Node<'_>)],
) -> String {
    let names: Vec<String> = misplaced.iter().map(|(key, _)| format!("`{}`", key.text())).collect();
    let them = if names.len() == 1 { "it" } else { "them" };
    let belong = if names.len() == 1 { "belongs" } else { "belong" };
    let way_out = if map.entry(keywords::RATE_LIMIT.name).is_some() {
        format!("move {them} below `rate_limit:`")
    } else if map.entry(keywords::RATE_LIMITS.name).is_some() {
        format!("move {them} into an entry of `rate_limits`")
    } else if misplaced.iter().any(|(_, value)| value.is_collection()) {
        format!("write {them} below `rate_limit:`")
    } else {
        let field =
            |(key, value): &(Node<'_>, Node<'_>)| format!("{}: {}", key.text(), spelling(*value));
        let fields: Vec<String> = misplaced.iter().map(field).collect();
        format!("write `rate_limit: {{{}}}` instead", fields.join(", "))
    };
    format!("{} {belong} to `rate_limit`, not to the descriptor; {way_out}", join_with_and(&names))
}

/// Joins words with commas and a final "and".
fn join_with_and(words: &[String]) -> String {
    match words {
        [first, last] => format!("{first} and {last}"),
        [first @ .., last] if !first.is_empty() => format!("{}, and {last}", first.join(", ")),
        _ => words.concat(),
    }
}

/// Returns a hint for an out-of-range `requests_per_unit`, which was probably meant as "no limit".
/// Returns an empty string for any other key. `is_in_list` states whether the key is in an entry of
/// a list such as `rate_limits`; such an entry cannot be `unlimited`.
pub(crate) fn range_hint(key: &Key, is_too_small: bool, is_in_list: bool) -> String {
    if *key != keywords::REQUESTS_PER_UNIT {
        return String::new();
    }
    let zero = if is_too_small { "0 rejects every call; " } else { "" };
    let no_limit = match is_in_list {
        true => "remove this entry",
        false => "write `unlimited: true` instead of `unit` and `requests_per_unit`",
    };
    format!("; {zero}for no limit, {no_limit}")
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

/// Returns a message for a file that is not a policy but is recognized, such as a Limitador file or
/// a settings file: the kind of file, and what to do with it. Returns `None` if the file is not
/// recognized.
pub(crate) fn foreign_file_message(root: Node<'_>) -> Option<String> {
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
    let (message, has_example) = if root.get("apiVersion").is_some() {
        (if kind == "ConfigMap" { CONFIG_MAP_HINT } else { MANIFEST_HINT }, false)
    } else if root.get("static_resources").is_some() {
        (ENVOY_CONFIG_HINT, true)
    } else if has("actions") {
        (ENVOY_ACTIONS_HINT, true)
    } else if has("max_value") && has("seconds") {
        (LIMITADOR_HINT, true)
    } else if has("groups") && has("lasts_s") {
        (SCENARIO_HINT, false)
    } else if SETTINGS_KEYS.iter().any(|name| root.get(name).is_some()) {
        (SETTINGS_FILE_HINT, false)
    } else {
        return None;
    };
    let example = if has_example { EXAMPLE_DESCRIPTORS } else { "" };
    Some(format!("{message}{example}"))
}

/// Example of `descriptors` with one limit, for hints on how to begin a policy.
pub(crate) const EXAMPLE_DESCRIPTORS: &str =
    "`descriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 100}}]`";

/// Keys that identify a settings file of Tidegate. Nearly every settings file has one of them, and
/// none is a key of the policy language.
const SETTINGS_KEYS: [&str; 6] =
    ["policy", "grpc-port", "http-port", "redis-url", "redis-type", "log-level"];

const SETTINGS_FILE_HINT: &str = "this is a settings file, not a policy; pass it to `tidegate serve` with \
                             --settings";
const SCENARIO_HINT: &str = "this is a scenario, not a policy; run it with `tidegate simulate`";
const CONFIG_MAP_HINT: &str = "this is a Kubernetes ConfigMap, not a policy; save the text below each \
                          name in `data`, without its indentation, as a file of that name; in \
                          Kubernetes, mount the ConfigMap and set --policy to the directory";
const MANIFEST_HINT: &str =
    "this is a Kubernetes manifest, not a policy; a policy begins with `domain: NAME`";
const ENVOY_ACTIONS_HINT: &str = "these are Envoy's rate limit actions, not a policy; leave them in \
                             Envoy's route, and write a policy with the `domain` of Envoy's \
                             rate limit filter and, for an action such as remote_address, ";
const ENVOY_CONFIG_HINT: &str = "this is Envoy's configuration, not a policy; leave it to Envoy, and \
                                 write a policy in a file of its own, with the `domain` of \
                                 Envoy's rate limit filter and, for an action such as \
                                 remote_address, ";
const LIMITADOR_HINT: &str = "this is a limits file of Limitador, not a policy; `namespace: edge` \
                         becomes `domain: edge`, `seconds` the unit (1 second, 60 minute, 3600 \
                         hour, 86400 day), and an entry with the variable remote_address, \
                         `max_value: 100`, and `seconds: 60` becomes ";
