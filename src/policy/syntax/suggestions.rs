//! Suggestions in error messages: likely spellings of unknown keys, and how to write values, lists,
//! and numbers.

use std::borrow::Cow;

use super::keywords::{self, Key, Level, levels_of};
use super::yaml::scalar::{self, Scalar};
use super::yaml::template::is_template;
use super::yaml::{Children, Node, Style, Value};
use crate::domain::{nearest_word, needs_escape};
use crate::policy::diagnostic::{DiagnosticKind, quoted};

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
    } else if scalar::has_leading_zero(text) {
        "; a leading 0 means octal, so remove it"
    } else if text.starts_with(|c: char| c.is_ascii_digit()) {
        "; write digits only"
    } else {
        ""
    }
}

/// Returns a hint on what to write instead of a list or a scalar where a map is expected, or an empty
/// string.
pub(crate) fn map_hint(level: Level, value: Node<'_>) -> &'static str {
    match (value.value(), level) {
        (Value::List(_), Level::RateLimit) => {
            "; remove the `- `, or write `rate_limits:` for a list of limits, each with a `name`"
        }
        (Value::List(_), _) => "; remove the `- ` before its keys",
        (Value::Scalar(..) | Value::Map(_), _) => "",
    }
}

/// Returns the key of a level that `name`, which is not a key of any level, is probably a misspelling of.
pub(crate) fn intended_key(level: Level, name: &str) -> Option<&'static str> {
    match levels_of(name).next() {
        Some(_) => None,
        None => nearest_word(name, level.keys().map(|key| key.name)),
    }
}

/// Returns the kind and message of the diagnostic for a key that does not exist at a level.
/// `intended` is its [`intended_key`].
pub(crate) fn unknown_key(
    level: Level,
    name: &str,
    intended: Option<&str>,
) -> (DiagnosticKind, String) {
    let title = level.title();
    // The other keys of a control plane's RateLimitConfig are those of a policy.
    let of_resource =
        [("name", "name"), ("@type", "type")].into_iter().find(|(key, _)| *key == name);
    if let (Level::File, Some((_, what))) = (level, of_resource) {
        let message = format!(
            "`{name}` is the xDS resource's {what}, which a policy does not have; delete it"
        );
        return (DiagnosticKind::MisplacedKey, message);
    }
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
    let way_out = match intended {
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

/// Maximum length, in characters, of a scalar that a message shows without quotes.
const UNQUOTED_CHARS_MAX: usize = 64;

/// Returns a scalar as a message shows it: as spelled in the file, or escaped and in quotes if it
/// is quoted in the file, is long, or contains special characters. For a list, a map, or an empty
/// unquoted scalar, returns the name of its type.
pub(crate) fn spelling(value: Node<'_>) -> Cow<'_, str> {
    let needs_quotes = |c| needs_escape(c) || matches!(c, '"' | '`' | ';');
    match value.value() {
        Value::Scalar("", Style::Plain) => type_name(value).into(),
        Value::Scalar(text, Style::Plain | Style::Float)
            if text.chars().nth(UNQUOTED_CHARS_MAX).is_none() && !text.contains(needs_quotes) =>
        {
            text.into()
        }
        Value::Scalar(text, _) => quoted(text).into(),
        Value::Map(_) if is_template(value) => "`{{ … }}`".into(),
        Value::List(_) | Value::Map(_) => type_name(value).into(),
    }
}
