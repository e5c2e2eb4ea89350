//! The JSON Schema: equal to the shipped file, and equivalent to the language.

use serde_json::Value;
use tidegate::policy::DiagnosticKind;
use tidegate::policy::schema;

use super::bad_files;
use super::compile_helpers::{bad, one};
use crate::envoy::bootstrap::repository;
use crate::support::policy_cases;

/// Checks structure only: `$ref`, `type`, `properties`, `additionalProperties`, `required`,
/// `items`, `anyOf`, `enum`, `not`, bounds. Patterns are not tried.
fn fits(schema: &Value, root: &Value, value: &serde_yaml::Value) -> Result<(), String> {
    if let Some(path) = schema["$ref"].as_str() {
        let target = root.pointer(path.strip_prefix('#').unwrap()).unwrap();
        return fits(target, root, value);
    }
    if schema.get("not").is_some() {
        return Err("not available".to_owned());
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let faults: Vec<String> =
            any.iter().filter_map(|one| fits(one, root, value).err()).collect();
        if faults.len() == any.len() {
            return Err(faults.join(", or "));
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        let given = value.as_str().map_or(Value::Null, Value::from);
        if !(value.is_null() || value.is_string()) || !words.contains(&given) {
            return Err(format!("{value:?} is none of {words:?}"));
        }
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().map(|one| one.as_str().unwrap()).collect(),
        _ => Vec::new(),
    };
    let is_number = type_of(value) == "integer" && types.contains(&"number");
    if !types.is_empty() && !types.contains(&type_of(value)) && !is_number {
        return Err(format!("{} is not {types:?}", type_of(value)));
    }
    if let (Some(map), Some(properties)) = (value.as_mapping(), schema["properties"].as_object()) {
        for name in schema["required"].as_array().unwrap() {
            if !map.contains_key(name.as_str().unwrap()) {
                return Err(format!("no {name}"));
            }
        }
        for (key, value) in map {
            let name = key.as_str().ok_or("a key that is no text")?;
            let property = properties.get(name).ok_or(format!("unknown key {name}"))?;
            fits(property, root, value).map_err(|fault| format!("{name}: {fault}"))?;
        }
    }
    if let (Some(map), true) = (value.as_mapping(), schema["additionalProperties"].is_object()) {
        for value in map.values() {
            fits(&schema["additionalProperties"], root, value)?;
        }
    }
    if let Some(list) = value.as_sequence() {
        for value in list {
            fits(&schema["items"], root, value)?;
        }
    }
    Ok(())
}

fn type_of(value: &serde_yaml::Value) -> &'static str {
    match value {
        serde_yaml::Value::Null => "null",
        serde_yaml::Value::Bool(_) => "boolean",
        serde_yaml::Value::Number(number) if number.as_f64().is_some_and(|n| n.fract() != 0.0) => {
            "number"
        }
        serde_yaml::Value::Number(_) => "integer",
        serde_yaml::Value::String(_) => "string",
        serde_yaml::Value::Sequence(_) => "array",
        serde_yaml::Value::Mapping(_) => "object",
        serde_yaml::Value::Tagged(_) => "tagged",
    }
}

fn read(text: &[u8]) -> Option<serde_yaml::Value> {
    let mut value: serde_yaml::Value = serde_yaml::from_slice(text).ok()?;
    value.apply_merge().ok()?;
    value.apply_merge().ok()?;
    Some(value)
}

#[test]
fn the_file_that_ships_is_the_schema() {
    let ships =
        std::fs::read_to_string(repository("config/policy.schema.json")).unwrap_or_default();
    let made = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    assert!(ships == made, "run: tidegate schema > config/policy.schema.json");
}

#[test]
fn every_good_file_fits_the_schema() {
    let schema = schema();
    for case in policy_cases::read("good") {
        let value = read(&case.files[0].text).unwrap();
        assert_eq!(fits(&schema, &schema, &value), Ok(()), "{}", case.name);
    }
}

#[test]
fn no_file_with_an_unknown_misplaced_or_absent_key_fits_the_schema() {
    let schema = schema();
    let mut seen = 0;
    for case in bad_files::cases().iter().filter(|case| case.files.len() == 1) {
        let text = &case.files[0].text;
        let Err(faults) = one(text) else { continue };
        let told_by_schema =
            matches!(faults.0[0].kind, DiagnosticKind::UnknownKey | DiagnosticKind::MisplacedKey);
        if told_by_schema {
            let value = read(text).unwrap();
            assert!(fits(&schema, &schema, &value).is_err(), "{}", case.name);
            seen += 1;
        }
    }
    assert!(seen >= 15, "only {seen}");
}

/// Every property of the schema is a key that the reader knows on that level, and the other way
/// round: the reader's list of a level's keys is the schema's.
#[test]
fn the_reader_and_the_schema_know_the_same_keys_on_every_level() {
    let schema = schema();
    let stranger = [
        ("file", "domain: a\nZZZZZZ: 1\n"),
        ("descriptor", "domain: a\ndescriptors: [{key: a, ZZZZZZ: 1}]\n"),
        (
            "rate_limit",
            "domain: a\ndescriptors: [{key: a, rate_limit: {unlimited: true, ZZZZZZ: 1}}]\n",
        ),
        (
            "replaces",
            "domain: a\ndescriptors: [{key: a, rate_limit: {unlimited: true, replaces: [{name: n, ZZZZZZ: 1}]}}]\n",
        ),
        (
            "mark",
            "domain: a\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5, mark: {over: {q: over}, ZZZZZZ: 1}}}]\n",
        ),
        (
            "reserve",
            "domain: a\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5, reserve: {ttl: 1, ZZZZZZ: 1}}}]\n",
        ),
        (
            "tiers",
            "domain: a\ndescriptors: [{key: a, rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 5, tiers: {method: shared, classes: {x: {floor: 0%}}, ZZZZZZ: 1}}}]\n",
        ),
        (
            "class",
            "domain: a\ndescriptors: [{key: a, rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 5, tiers: {method: shared, classes: {x: {floor: 0%, ZZZZZZ: 1}}}}}]\n",
        ),
        ("body", "domain: a\nbody: {text: '{}', ZZZZZZ: 1}\n"),
        ("http", "domain: a\nhttp: {descriptors: [{entries: [{key: a, value: b}]}], ZZZZZZ: 1}\n"),
        (
            "http_descriptor",
            "domain: a\nhttp: {descriptors: [{entries: [{key: a, value: b}], ZZZZZZ: 1}]}\n",
        ),
        (
            "http_entry",
            "domain: a\nhttp: {descriptors: [{entries: [{key: a, value: b, ZZZZZZ: 1}]}]}\n",
        ),
    ];
    assert_eq!(schema["$defs"].as_object().unwrap().len(), stranger.len());
    for (level, text) in stranger {
        let message = bad(text).remove(0).message;
        let mut known: Vec<&str> = message.split("takes: ").nth(1).unwrap().split(", ").collect();
        known.sort_unstable();
        let properties = schema["$defs"][level]["properties"].as_object().unwrap();
        let mut drawn: Vec<&str> = properties.keys().map(String::as_str).collect();
        drawn.sort_unstable();
        assert_eq!(known, drawn, "{level}");
    }
}
