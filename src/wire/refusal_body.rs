//! Response body of a rejection: the body that the policy defines for the rule or its domain. If
//! the policy defines none, the default JSON body is used, provided that it is enabled.
//!
//! Not here: reading the text from the policy (`policy::compile::response_body`).

use super::messages::HeaderValue;
use super::response_config::ResponseConfig;
use super::response_headers::{RetryWait, build_header, limit_name, percent_encode};
use crate::domain::{LimitedBy, OnStoreFailure, Source};
use crate::policy::Rule;
use crate::policy::compiled_policy::{LimitSpec, is_json};

/// Maximum size of a response body in bytes, after its placeholders are replaced. Envoy buffers
/// the body of every rejected request, and an attack causes many rejections.
pub const BODY_BYTES_MAX: usize = 1024;

const DEFAULT_CONTENT_TYPE: &str = "application/json";
const DEFAULT_TEXT: &str = r#"{"error":"too_many_requests","message":"too many requests","limit":"{name}","retry_after_seconds":{retry_after_seconds}}"#;

/// Template of the default response body for a request that was rejected because of
/// `on_store_failure: deny`.
const UNAVAILABLE_TEXT: &str = r#"{"error":"rate_limit_unavailable","message":"the rate limit could not be checked","limit":"{name}","retry_after_seconds":{retry_after_seconds}}"#;

/// Placeholder for the name of the limit that rejected the request.
const NAME_PLACEHOLDER: &str = "{name}";
/// Placeholder for the time until a retry can succeed, in whole seconds.
const SECONDS_PLACEHOLDER: &str = "{retry_after_seconds}";

/// Builds the response body of a rejection and its content-type header. Returns `None` if no body
/// is configured, or if the body exceeds [`BODY_BYTES_MAX`] even with an empty limit name.
pub(super) fn build(
    limited_by: &LimitedBy<'_>,
    source: Source,
    rule: Option<&Rule>,
    wait: Option<RetryWait>,
    response_config: &ResponseConfig,
) -> Option<(String, HeaderValue)> {
    let own = rule.and_then(|rule| rule.body.as_deref());
    let (content_type, text) = match own {
        Some(body) => (&*body.content_type, &*body.text),
        None if response_config.settings.body
            && is_denied_without_check(limited_by, source, rule) =>
        {
            (DEFAULT_CONTENT_TYPE, UNAVAILABLE_TEXT)
        }
        None if response_config.settings.body => (DEFAULT_CONTENT_TYPE, DEFAULT_TEXT),
        None => return None,
    };
    let body = [limit_name(limited_by), ""]
        .into_iter()
        .map(|name| fill_placeholders(text, name, wait, is_json(content_type)))
        .find(|body| body.len() <= BODY_BYTES_MAX)?;
    Some((body, build_header("content-type", percent_encode(content_type))))
}

/// Returns whether `on_store_failure: deny` rejected the request because the store could not check
/// the limit.
fn is_denied_without_check(
    limited_by: &LimitedBy<'_>,
    source: Source,
    rule: Option<&Rule>,
) -> bool {
    let denies = |rule: &Rule| {
        let named = |limit: &&LimitSpec| limit.name.as_deref() == Some(limited_by.name);
        let limit = rule.limits.iter().find(named).or_else(|| rule.limits.first());
        limit.is_some_and(|limit| limit.limit.on_store_failure == OnStoreFailure::Deny)
    };
    matches!(source, Source::Local | Source::Shed) && rule.is_some_and(denies)
}

/// Replaces the placeholders in `text`. If `wait` is `None`, writes nothing, or `null` where JSON
/// requires a value. In JSON, escapes `name`. Makes a single pass, so that a placeholder inside `name`
/// is not expanded.
fn fill_placeholders(text: &str, name: &str, wait: Option<RetryWait>, is_json: bool) -> String {
    let mut body = String::with_capacity(text.len() + name.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        body.push_str(before);
        rest = if let Some(after) = from.strip_prefix(NAME_PLACEHOLDER) {
            match is_json {
                true => body.push_str(&json_escape(name)),
                false => body.push_str(name),
            }
            after
        } else if let Some(after) = from.strip_prefix(SECONDS_PLACEHOLDER) {
            match wait {
                Some(wait) => body.push_str(&wait.seconds.to_string()),
                None if is_json && !ends_in_string(&body) => body.push_str("null"),
                None => {}
            }
            after
        } else {
            body.push('{');
            &from[1..]
        };
    }
    body.push_str(rest);
    body
}

/// Returns whether the beginning of a JSON text ends inside a string.
fn ends_in_string(json: &str) -> bool {
    let (mut is_inside, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        is_inside ^= byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
    }
    is_inside
}

fn json_escape(name: &str) -> String {
    let quoted = serde_json::Value::from(name).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
