//! Ways out: what a message adds so that the reader of a fault knows what to write instead.
//!
//! Not here: what is a fault (`reader`).

use serde_yaml::Value;

use super::diagnostic::{DiagnosticKind, shown};
use super::keywords::{homes, keys_of};
use super::language::Level;
use super::scalar;
use super::scalar::Scalar;

/// The way out for what almost is a whole number.
pub(crate) fn number_hint(value: &Value) -> &'static str {
    let Value::String(text) = value else { return "" };
    if matches!(scalar::read(text), Scalar::Int(_)) {
        "; remove the quotes"
    } else if text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()) {
        "; a leading 0 means octal, so remove it"
    } else {
        ""
    }
}

/// A key that does not belong where it stands.
pub(crate) fn stranger(level: Level, name: &str) -> (DiagnosticKind, String) {
    let homes = homes(name);
    if !homes.is_empty() {
        let homes: Vec<&str> = homes.into_iter().map(Level::words).collect();
        let message =
            format!("`{name}` belongs to {}, not to {}", homes.join(" or "), level.words());
        return (DiagnosticKind::MisplacedKey, message);
    }
    let near = keys_of(level).find(|key| distance(key.name, name) <= NEAR);
    let way_out = match near {
        Some(key) => format!("did you mean `{}`?", key.name),
        None => {
            let all: Vec<&str> = keys_of(level).map(|key| key.name).collect();
            format!("{} takes: {}", level.words(), all.join(", "))
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
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a map",
        Value::Tagged(_) => "a tagged value",
    }
}
