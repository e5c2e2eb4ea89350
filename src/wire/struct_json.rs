//! Conversion of `google.protobuf.Struct` to JSON. Used for the metadata in `/json` and
//! `tidegate ask`, and for policies from a control plane.
//!
//! Not here: conversion of JSON to a `Struct` (`dynamic_metadata`).

use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::{Map, Value};

/// Converts a `google.protobuf.Struct` to a JSON object.
pub(crate) fn struct_to_json(from: &Struct) -> Value {
    let members = from.fields.iter();
    Value::Object(
        members.map(|(key, value)| (key.clone(), kind_to_json(value))).collect::<Map<_, _>>(),
    )
}

fn kind_to_json(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(truth)) => Value::Bool(*truth),
        Some(Kind::NumberValue(number)) => number_to_json(*number),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::ListValue(list)) => list.values.iter().map(kind_to_json).collect(),
        Some(Kind::StructValue(of)) => struct_to_json(of),
    }
}

/// Converts a double to a JSON number. An integer gets no decimal point, as in proto-JSON.
#[allow(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
fn number_to_json(number: f64) -> Value {
    /// 2^53: a double represents all integers up to this one exactly.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        Value::from(number as i64)
    } else {
        serde_json::Number::from_f64(number).map_or(Value::Null, Value::Number)
    }
}
