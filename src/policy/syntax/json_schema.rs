//! The language as a JSON Schema, for editors: made from the same table that the reader uses.
//!
//! A schema knows keys, kinds and bounds; what keys mean together only `compile` knows. Not here:
//! writing it to `config/policy.schema.json` (a test holds the two equal).

use serde_json::{Map, Value, json};

use super::keywords::keys_of;
use super::keywords::{BODY_TEXT, CLASSES, DOMAIN, KEY, METHOD, NAME_BYTES_MAX, REPLACED_NAME};
use super::language::{Key, Level, Shape};
use super::scalar::{FALSE_WORDS, TRUE_WORDS};

/// The JSON Schema (draft 2020-12) of a policy file.
///
/// ```
/// let schema = tidegate::policy::schema();
/// assert_eq!(schema["$ref"], "#/$defs/file");
/// ```
pub fn schema() -> Value {
    let levels: Map<String, Value> =
        Level::ALL.into_iter().map(|level| (level.id().to_owned(), map(level))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tidegate policy",
        "$ref": "#/$defs/file",
        "$defs": levels,
    })
}

fn map(level: Level) -> Value {
    let properties: Map<String, Value> =
        keys_of(level).map(|key| (key.name.to_owned(), property(key))).collect();
    let required: Vec<&str> = [DOMAIN, KEY, REPLACED_NAME, METHOD, CLASSES, BODY_TEXT]
        .iter()
        .filter(|key| key.level == level)
        .map(|key| key.name)
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn property(key: &Key) -> Value {
    let mut property = shape(&key.shape);
    property["description"] = json!(key.about);
    property
}

fn shape(shape: &Shape) -> Value {
    match *shape {
        // Numbers and truth values stand for their text.
        Shape::Name => {
            json!({"type": ["string", "integer", "boolean", "null"], "maxLength": NAME_BYTES_MAX})
        }
        Shape::Text { bytes_max } => {
            json!({"type": ["string", "integer", "boolean", "null"], "maxLength": bytes_max})
        }
        Shape::Bool => {
            let words: Vec<&str> = TRUE_WORDS.into_iter().chain(FALSE_WORDS).collect();
            json!({"anyOf": [{"type": ["boolean", "null"]}, {"enum": words}]})
        }
        // The pattern is for notations of YAML 1.1 that editors take for text: 010, 1_000, 0b1.
        Shape::Number { least, most } => json!({"anyOf": [
            {"type": "integer", "minimum": least, "maximum": most},
            {"type": "null"},
            {"type": "string", "pattern": "^\\+?(0[xX][0-9A-Fa-f_]+|0[bB][01_]+|0[oO]?[0-7_]+|[1-9][0-9_]*)$"},
        ]}),
        Shape::Word { words, any_case, .. } => {
            let mut given: Vec<Value> = words.iter().copied().map(Value::from).collect();
            given.push(Value::Null);
            let any: Vec<String> = words.iter().map(|word| either_case(word)).collect();
            let pattern = json!({"type": "string", "pattern": format!("^({})$", any.join("|"))});
            if any_case {
                json!({"anyOf": [{"enum": given}, pattern]})
            } else {
                json!({"enum": given})
            }
        }
        Shape::Names => {
            json!({"type": ["array", "null"], "items": {"type": ["string", "integer", "boolean"]}})
        }
        Shape::List(level) => {
            json!({"type": ["array", "null"], "items": {"$ref": format!("#/$defs/{}", level.id())}})
        }
        Shape::Map(level) => {
            json!({"anyOf": [{"$ref": format!("#/$defs/{}", level.id())}, {"type": "null"}]})
        }
        Shape::Free => json!({"type": ["object", "null"]}),
        Shape::MapOf(level) => json!({
            "type": ["object", "null"],
            "additionalProperties": {"$ref": format!("#/$defs/{}", level.id())},
        }),
        Shape::Percent => json!({"anyOf": [
            {"type": "string", "pattern": "^0*(100|[0-9]{1,2})%$"},
            {"type": "null"},
        ]}),
    }
}

/// `day` as `[dD][aA][yY]`.
fn either_case(word: &str) -> String {
    word.chars().map(|c| format!("[{c}{}]", c.to_ascii_uppercase())).collect()
}
