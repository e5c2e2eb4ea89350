//! Reads the `metadata` of a descriptor: arbitrary YAML, converted to JSON that fits a protobuf
//! Struct.
//!
//! Not here: returning the metadata to Envoy (`wire::dynamic_metadata`).

use serde_json::{Map, Number, Value as Json};

use crate::policy::diagnostic::{DiagnosticKind, PathStep, Target};
use crate::policy::syntax::reader::{ErrorReported, Reader};
use crate::policy::syntax::yaml::scalar::Scalar;
use crate::policy::syntax::yaml::{Node, Value};

/// Maximum size of a descriptor's `metadata`, in bytes of JSON. The metadata is sent with every
/// response in which the descriptor passes.
pub(crate) const METADATA_BYTES_MAX: usize = 16 * 1024;

/// Reads the value of `metadata`, which must be a map, as a JSON object. Reports an error if the
/// object is larger than [`METADATA_BYTES_MAX`].
pub(crate) fn read(
    reader: &mut Reader<'_>,
    value: Node<'_>,
) -> Result<Map<String, Json>, ErrorReported> {
    match to_json(reader, value)? {
        Json::Object(map) => {
            let bytes = serde_json::to_vec(&map).map_or(0, |text| text.len());
            if bytes <= METADATA_BYTES_MAX {
                return Ok(map);
            }
            let message = format!(
                "`metadata` must have at most {METADATA_BYTES_MAX} bytes as JSON, not {bytes}, \
                 because every response for which the descriptor passes contains it; shorten it"
            );
            Err(reader.report(Target::Value, DiagnosticKind::TooLarge, message))
        }
        _ => {
            let message = "`metadata` must be a map; put the value below a key".to_owned();
            Err(reader.report(Target::Value, DiagnosticKind::WrongType, message))
        }
    }
}

fn to_json(reader: &mut Reader<'_>, value: Node<'_>) -> Result<Json, ErrorReported> {
    Ok(match value.value() {
        Value::List(list) => {
            let items = list.nodes().enumerate();
            let items = items.map(|(at, value)| (PathStep::Index(at), value));
            Json::Array(reader.read_items(items, to_json)?)
        }
        Value::Map(map) => {
            let entries = map.entries().map(|(key, value)| (key.as_step(), (key, value)));
            let entries = reader.read_items(entries, |reader, (key, value)| {
                Ok((key.text().to_owned(), to_json(reader, value)?))
            });
            Json::Object(entries?.into_iter().collect())
        }
        Value::Scalar(text, _) => scalar_to_json(reader, text, value.scalar())?,
    })
}

fn scalar_to_json(
    reader: &mut Reader<'_>,
    text: &str,
    scalar: Scalar,
) -> Result<Json, ErrorReported> {
    Ok(match scalar {
        Scalar::Null => Json::Null,
        Scalar::Text => Json::String(text.to_owned()),
        Scalar::Bool(value) => Json::Bool(value),
        Scalar::Int(number) => Number::from_i128(number).map_or(Json::Null, Json::Number),
        Scalar::Float(number) => match Number::from_f64(number) {
            Some(number) => Json::Number(number),
            None => {
                let message = "a number in `metadata` must be finite; put this one in quotes";
                return Err(reader.report(Target::Value, DiagnosticKind::BadValue, message));
            }
        },
    })
}
