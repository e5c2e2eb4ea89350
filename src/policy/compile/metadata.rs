//! `metadata`: any YAML, as the JSON that a protobuf Struct can hold.
//!
//! Not here: when it is returned (`wire`).

use serde_json::{Map, Number, Value as Json};
use serde_yaml::Value;

use crate::policy::syntax::diagnostic::{At, DiagnosticKind, Step};
use crate::policy::syntax::reader::{Reader, Reported};
use crate::policy::syntax::scalar::Scalar;
use crate::policy::syntax::yaml::key_text;

/// Reads `metadata`: a map.
pub(crate) fn read(reader: &mut Reader<'_>, value: &Value) -> Result<Map<String, Json>, Reported> {
    match json(reader, value)? {
        Json::Object(map) => Ok(map),
        _ => {
            let message = "`metadata` is a map of keys; put the value below a key".to_owned();
            Err(reader.note(At::Value, DiagnosticKind::WrongType, message))
        }
    }
}

fn json(reader: &mut Reader<'_>, value: &Value) -> Result<Json, Reported> {
    Ok(match value {
        Value::Sequence(list) => {
            let each = list.iter().enumerate();
            let list = each.map(|(at, value)| reader.within(Step::Index(at), |r| json(r, value)));
            // Collected first, so that every fault of the list is noted.
            Json::Array(list.collect::<Vec<_>>().into_iter().collect::<Result<_, _>>()?)
        }
        Value::Mapping(map) => {
            let (mut object, mut reported) = (Map::new(), None);
            for (key, value) in map {
                let key = key_text(key);
                let step = Step::Key(key.clone().into());
                match reader.within(step, |reader| json(reader, value)) {
                    Ok(value) => {
                        object.insert(key, value);
                    }
                    Err(fault) => reported = Some(fault),
                }
            }
            reported.map_or(Ok(Json::Object(object)), Err)?
        }
        scalar => scalar_json(reader, scalar)?,
    })
}

fn scalar_json(reader: &mut Reader<'_>, value: &Value) -> Result<Json, Reported> {
    Ok(match (reader.scalar(value), value) {
        (Scalar::Text, Value::String(text)) => Json::String(text.clone()),
        (Scalar::Bool(value), _) => Json::Bool(value),
        (Scalar::Int(number), _) => match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Json::Number(number.into()),
            (_, Ok(number)) => Json::Number(number.into()),
            _ => Json::Null,
        },
        (Scalar::Float(number), _) => match Number::from_f64(number) {
            Some(number) => Json::Number(number),
            None => {
                let message = "metadata holds finite numbers only; put this one in quotes";
                return Err(reader.note(At::Value, DiagnosticKind::BadValue, message.to_owned()));
            }
        },
        (Scalar::Null | Scalar::Text, _) => Json::Null,
    })
}
