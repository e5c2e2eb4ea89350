//! Converts an answer of Tidegate into the form of the recorded ones.

use crate::support::grpc_client::{CallError, CallResponse, ResponseLimit, ResponseStatus};
use serde_json::Value;

use super::recorded_calls::Answer;

/// What every refusal of ours says besides: the header, the metadata, and the row that lists each.
pub const BESIDES: [&str; 2] = ["`Retry-After` on rejections", "dynamic metadata on rejections"];

/// The longest unit that is counted in here.
const YEAR_SECONDS: u64 = 365 * 24 * 60 * 60;

/// Who answered.
#[derive(Clone, Copy, PartialEq)]
pub enum Whose {
    Ours,
    Theirs,
}

pub fn answer(told: Result<CallResponse, CallError>, whose: Whose) -> Answer {
    match told {
        Ok(told) => Answer {
            error: None,
            code: Some(told.code.to_owned()),
            statuses: told.statuses.iter().map(status).collect(),
            headers: headers(&told),
            metadata: metadata(&told, whose),
        },
        Err(CallError::Status(status)) => {
            Answer { error: Some(format!("{:?}", status.code())), ..Answer::default() }
        }
        Err(other) => panic!("no answer: {other:?}"),
    }
}

fn status(status: &ResponseStatus) -> String {
    let mut text = if status.refused { "OVER_LIMIT".to_owned() } else { "OK".to_owned() };
    match &status.limit {
        Some(ResponseLimit { name, requests_per_unit, unit, unit_multiplier }) => {
            assert_eq!(*unit_multiplier, 1);
            text += &format!(" {} of {requests_per_unit} per {unit}", status.remaining);
            if !name.is_empty() {
                text += &format!(" ({name})");
            }
        }
        None if status.remaining > 0 => text += &format!(" {}", status.remaining),
        None => {}
    }
    if let Some(seconds) = status.reset_seconds {
        assert!((1..=YEAR_SECONDS).contains(&seconds), "{status:?}");
        text += ", resets";
    }
    text
}

/// The headers of theirs, which may name no others; besides, ours on refusals.
fn headers(told: &CallResponse) -> Option<String> {
    let value = |name: &str| {
        let mut found = told.headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.clone());
        assert!(found.next().is_none(), "{name} twice: {:?}", told.headers);
        value
    };
    let retry_after = value("retry-after");
    // Absent if waiting does not end the rejection.
    let ours = told.metadata.as_ref().map(|metadata| &metadata["tidegate"]["retry_after_ms"]);
    assert_eq!(retry_after.is_some(), ours.is_some_and(|wait| !wait.is_null()), "{told:?}");
    let [limit, remaining, reset] =
        ["Limit", "Remaining", "Reset"].map(|name| value(&format!("RateLimit-{name}")));
    let known = [&retry_after, &limit, &remaining, &reset].into_iter().flatten().count();
    assert_eq!(known, told.headers.len(), "{:?}", told.headers);
    let resets = reset.map_or("", |seconds| {
        assert!((1..=YEAR_SECONDS).contains(&seconds.parse().unwrap()), "{told:?}");
        ", resets"
    });
    Some(format!("{} of {}{resets}", remaining?, limit?))
}

/// Metadata in their form; besides, ours on refusals.
fn metadata(told: &CallResponse, whose: Whose) -> Option<Value> {
    let mut metadata = told.metadata.clone();
    let ours = metadata.as_mut()?.as_object_mut()?.remove("tidegate");
    assert_eq!(ours.is_some(), told.refused && whose == Whose::Ours, "{told:?}");
    metadata.map(whole)
}

/// Numbers of a protobuf Struct are all floating: 2.0 is 2.
fn whole(value: Value) -> Value {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().unwrap();
            assert!(float.fract() == 0.0, "{float}");
            Value::from(float as u64)
        }
        Value::Array(values) => values.into_iter().map(whole).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, field)| (key, whole(field))).collect()
        }
        other => other,
    }
}
