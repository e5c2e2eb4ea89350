//! JSON Schema of policy files, for editors, generated from the keyword table.
//!
//! The schema covers keys, types, and bounds. Constraints that involve several keys are checked
//! only by `compile`. A test fails if `config/policy.schema.json` is out of date.

use serde_json::{Map, Value, json};

use super::keywords::{Key, Level, NAME_BYTES_MAX, ValueType};
use super::yaml::scalar::{FALSE_WORDS, TRUE_WORDS};

/// Returns the JSON Schema (draft 2020-12) of a policy file.
///
/// ```
/// let schema = tidegate::policy::schema();
/// assert_eq!(schema["$ref"], "#/$defs/file");
/// ```
pub fn schema() -> Value {
    let levels: Map<String, Value> = Level::ALL
        .into_iter()
        .map(|level| (level.as_str().to_owned(), map_schema(level)))
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tidegate policy",
        "$ref": "#/$defs/file",
        "$defs": levels,
    })
}

fn map_schema(level: Level) -> Value {
    let properties: Map<String, Value> =
        level.keys().map(|key| (key.name.to_owned(), property_schema(key))).collect();
    let required: Vec<&str> = level.keys().filter(|key| key.required).map(|key| key.name).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn property_schema(key: &Key) -> Value {
    let mut property = value_schema(key.value_type);
    let required = if key.required { " Required." } else { "" };
    property["description"] = json!([key.doc, required].concat());
    property
}

fn value_schema(value_type: ValueType) -> Value {
    match value_type {
        ValueType::Name => value_schema(ValueType::Text { bytes_max: NAME_BYTES_MAX }),
        // Keys that take text also accept numbers and booleans, which are read as text.
        ValueType::Text { bytes_max } => {
            json!({"type": ["string", "number", "boolean", "null"], "maxLength": bytes_max})
        }
        ValueType::Bool => {
            let words: Vec<&str> = TRUE_WORDS.into_iter().chain(FALSE_WORDS).collect();
            json!({"anyOf": [{"type": ["boolean", "null"]}, {"enum": words}]})
        }
        // The pattern allows YAML 1.1 numbers that editors treat as text: 010, 1_000, 0b1.
        ValueType::Number { min, max } => json!({"anyOf": [
            {"type": "integer", "minimum": min, "maximum": max},
            {"type": "null"},
            {"type": "string", "pattern": "^\\+?(0[xX][0-9A-Fa-f_]+|0[bB][01_]+|0[oO]?[0-7_]+|[1-9][0-9_]*)$"},
        ]}),
        ValueType::OneOf { words, any_case } => {
            let mut given: Vec<Value> = words.iter().copied().map(Value::from).collect();
            given.push(Value::Null);
            let any: Vec<String> = words.iter().map(|word| case_insensitive_regex(word)).collect();
            let pattern = json!({"type": "string", "pattern": format!("^({})$", any.join("|"))});
            if any_case {
                json!({"anyOf": [{"enum": given}, pattern]})
            } else {
                json!({"enum": given})
            }
        }
        ValueType::Names => {
            json!({"type": ["array", "null"], "items": {"type": ["string", "number", "boolean"]}})
        }
        ValueType::List(level) => {
            json!({"type": ["array", "null"], "items": {"$ref": format!("#/$defs/{}", level.as_str())}})
        }
        ValueType::Map(level) => {
            json!({"anyOf": [{"$ref": format!("#/$defs/{}", level.as_str())}, {"type": "null"}]})
        }
        ValueType::AnyMap => json!({"type": ["object", "null"]}),
        ValueType::MapOf(level) => json!({
            "type": ["object", "null"],
            "additionalProperties": {"$ref": format!("#/$defs/{}", level.as_str())},
        }),
        ValueType::Percent => json!({"anyOf": [
            {"type": "string", "pattern": "^0*(100|[0-9]{1,2})%$"},
            {"type": "null"},
        ]}),
    }
}

/// Returns a regular expression that matches a word regardless of case, such as `[dD][aA][yY]` for
/// `day`.
fn case_insensitive_regex(word: &str) -> String {
    word.chars().map(|c| format!("[{c}{}]", c.to_ascii_uppercase())).collect()
}
