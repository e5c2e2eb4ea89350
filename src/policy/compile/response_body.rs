//! Reads `body`, the response body of rejected requests.
//!
//! Not here: filling in the placeholders (`wire::refusal_body`).

use std::sync::Arc;

use crate::policy::compiled_policy::{RejectionBody, is_json};
use crate::policy::diagnostic::{DiagnosticKind, Target};
use crate::policy::syntax::keywords::{BODY_TEXT, CONTENT_TYPE};
use crate::policy::syntax::reader::{ErrorReported, Reader};

const DEFAULT_CONTENT_TYPE: &str = "application/json";

const PLACEHOLDERS: [&str; 2] = ["{name}", "{retry_after_seconds}"];

/// Reads the text and content type of a `body`. Reports an error if the content type is JSON and
/// the text is not valid JSON once its placeholders are filled in.
pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Arc<RejectionBody>, ErrorReported> {
    let content_type = read_content_type(reader);
    let text = read_body_text(reader);
    let (content_type, text) = (content_type?, text?);
    if is_json(&content_type) && !is_valid_json(&text) {
        let message = format!(
            "the text is not JSON after the placeholders are filled in; quote {{name}} inside it, \
             or give another `content_type` than {content_type}"
        );
        return Err(reader.report_key(&BODY_TEXT, DiagnosticKind::BadValue, message));
    }
    Ok(Arc::new(RejectionBody { content_type: content_type.into(), text: text.into() }))
}

fn read_content_type(reader: &mut Reader<'_>) -> Result<String, ErrorReported> {
    let Some(content_type) = reader.read_string(&CONTENT_TYPE)? else {
        return Ok(DEFAULT_CONTENT_TYPE.to_owned());
    };
    // The value is sent as a header; an invalid byte would turn the rejection into an error.
    let legal = |c: char| c.is_ascii_graphic() || c == ' ';
    if content_type.contains('/')
        && content_type.trim() == content_type
        && content_type.chars().all(legal)
    {
        return Ok(content_type);
    }
    let message =
        "`content_type` must be a media type, such as application/json, in ASCII".to_owned();
    Err(reader.report_key(&CONTENT_TYPE, DiagnosticKind::BadValue, message))
}

fn read_body_text(reader: &mut Reader<'_>) -> Result<String, ErrorReported> {
    let text = reader.read_string(&BODY_TEXT)?;
    let text = reader.require(text, Target::Key, "`body` must have `text`; add it")?;
    match find_unknown_placeholder(&text) {
        None => Ok(text),
        Some(unknown) => {
            let message =
                format!("unknown placeholder {unknown}; use one of: {}", PLACEHOLDERS.join(", "));
            Err(reader.report_key(&BODY_TEXT, DiagnosticKind::BadValue, message))
        }
    }
}

/// Returns the first `{word}` that is not a known placeholder, or `None` if there is none. Braces
/// around anything other than a single word are plain text, so that JSON needs no escaping.
fn find_unknown_placeholder(text: &str) -> Option<&str> {
    text.match_indices('{').find_map(|(from, _)| {
        let rest = &text[from + 1..];
        let word = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_'))?;
        if word == 0 || !rest[word..].starts_with('}') {
            return None;
        }
        let placeholder = &text[from..from + word + 2];
        (!PLACEHOLDERS.contains(&placeholder)).then_some(placeholder)
    })
}

fn is_valid_json(text: &str) -> bool {
    let filled = text.replace("{name}", "limit").replace("{retry_after_seconds}", "1");
    serde_json::from_str::<serde::de::IgnoredAny>(&filled).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_around_anything_but_a_word_are_plain_text() {
        assert_eq!(find_unknown_placeholder("{\"a\": {retry_after_seconds}}"), None);
        assert_eq!(find_unknown_placeholder("{} { } {{name}} p{color:red}"), None);
        assert_eq!(find_unknown_placeholder("wait {seconds} s"), Some("{seconds}"));
        assert_eq!(find_unknown_placeholder("{é} {na"), None);
    }
}
