//! The body of a refusal: the rule's or its domain's text, else JSON if settings ask for it.
//!
//! Not here: where texts come from (`policy`).

use super::messages::HeaderValue;
use super::response_config::ResponseConfig;
use super::response_headers::{Wait, header, name_of, visible};
use crate::domain::LimitedBy;
use crate::policy::Rule;

/// The longest body, filled in. It travels in every refusal, through Envoy's own buffers.
pub const BODY_BYTES_MAX: usize = 1024;

const JSON: &str = "application/json";
const JSON_TEXT: &str = r#"{"error":"too_many_requests","message":"too many requests","limit":"{name}","retry_after_seconds":{retry_after_seconds}}"#;

/// Places in a text that are filled in.
const NAME: &str = "{name}";
const SECONDS: &str = "{retry_after_seconds}";

/// The body and the header that tells its type; `None` if there is none, or if the text would
/// exceed [`BODY_BYTES_MAX`] even without the limit's name.
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

/// The text with its places filled: the name escaped as JSON has it, `null` where waiting does not
/// help. In one pass, so that a name that looks like a place stays a name.
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
