//! Body of a refusal: the text of the rule or its domain, else a JSON default if enabled.
//!
//! Not here: reading the texts from the policy (`policy::compile::body`).

use super::messages::HeaderValue;
use super::response_config::ResponseConfig;
use super::response_headers::{Wait, header, name_of, visible};
use crate::domain::LimitedBy;
use crate::policy::Rule;

/// Maximum bytes of a body after the placeholders are filled in. It passes through Envoy's buffers in
/// every refusal.
pub const BODY_BYTES_MAX: usize = 1024;

const JSON: &str = "application/json";
const JSON_TEXT: &str = r#"{"error":"too_many_requests","message":"too many requests","limit":"{name}","retry_after_seconds":{retry_after_seconds}}"#;

/// Placeholders in a text.
const NAME: &str = "{name}";
const SECONDS: &str = "{retry_after_seconds}";

/// Returns the body and its content-type header; `None` if there is no text, or if it exceeds
/// [`BODY_BYTES_MAX`] even without the limit's name.
pub(super) fn of_refusal(
    limited_by: &LimitedBy<'_>,
    rule: Option<&Rule>,
    wait: Option<Wait>,
    response_config: &ResponseConfig,
) -> Option<(String, HeaderValue)> {
    let own = rule.and_then(|rule| rule.body.as_deref());
    let (content_type, text) = match own {
        Some(body) => (&*body.content_type, &*body.text),
        None if response_config.body => (JSON, JSON_TEXT),
        None => return None,
    };
    let body = [name_of(limited_by), ""]
        .into_iter()
        .map(|name| filled(text, name, wait))
        .find(|body| body.len() <= BODY_BYTES_MAX)?;
    Some((body, header("content-type", visible(content_type))))
}

/// Fills the placeholders: the name JSON-escaped, `null` for a wait that does not help. One pass, so
/// that a name that looks like a placeholder is not expanded.
fn filled(text: &str, name: &str, wait: Option<Wait>) -> String {
    let mut body = String::with_capacity(text.len() + name.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        body.push_str(before);
        rest = if let Some(after) = from.strip_prefix(NAME) {
            body.push_str(&escaped(name));
            after
        } else if let Some(after) = from.strip_prefix(SECONDS) {
            match wait {
                Some(wait) => body.push_str(&wait.seconds.to_string()),
                None => body.push_str("null"),
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

fn escaped(name: &str) -> String {
    let quoted = serde_json::Value::from(name).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
