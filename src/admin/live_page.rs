//! Live page of the debug port: one embedded HTML file without external resources.
//!
//! The Content-Security-Policy allows only the embedded style and script, identified by their
//! hashes, so that browsers do not run scripts injected through displayed values.
//! `app::live_page_data` has the page's data.

use std::sync::LazyLock;

use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

use super::text_response;

const LIVE_PAGE: &str = include_str!("live_page.html");

static CONTENT_POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let (style, script) = (
        csp_hash(extract_between("<style>", "</style>")),
        csp_hash(extract_between("<script>", "</script>")),
    );
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    // Base64 and ASCII text form a valid header value. The fallback forbids all scripts and styles.
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// Returns the live page if the client accepts HTML. Otherwise, returns `list`, the list of
/// endpoints, as plain text.
pub(super) fn page_or_text(headers: &HeaderMap, list: &str) -> Response {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut response = if accepts.into_iter().any(|accepted| accepted.contains("text/html")) {
        let kind = HeaderValue::from_static("text/html; charset=utf-8");
        ([(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, CONTENT_POLICY.clone())], LIVE_PAGE)
            .into_response()
    } else {
        text_response(list.to_owned())
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response
}

fn extract_between(start: &str, end: &str) -> &'static str {
    let inside = LIVE_PAGE.split_once(start).and_then(|(_, rest)| rest.split_once(end));
    inside.map_or("", |(inside, _)| inside)
}

fn csp_hash(inline: &str) -> String {
    STANDARD.encode(digest(&SHA256, inline.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_style_one_script_and_loads_nothing() {
        for tag in ["<style>", "</style>", "<script>", "</script>"] {
            assert_eq!(LIVE_PAGE.matches(tag).count(), 1, "{tag}");
        }
        for foreign in
            ["http://", "https://", "src=", "stylesheet", "@import", "url(", " style=", "onclick"]
        {
            assert!(!LIVE_PAGE.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn the_page_never_turns_values_into_markup() {
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!LIVE_PAGE.contains(way), "{way}");
        }
    }

    #[test]
    fn browsers_get_the_page_and_others_the_list() {
        let mut headers = HeaderMap::new();
        let kind = |headers: &HeaderMap| {
            page_or_text(headers, "list").headers()[CONTENT_TYPE].to_str().unwrap().to_owned()
        };
        assert!(kind(&headers).starts_with("text/plain"));
        headers.insert(ACCEPT, "text/html,application/xhtml+xml,*/*;q=0.8".parse().unwrap());
        assert!(kind(&headers).starts_with("text/html"));
        let policy = CONTENT_POLICY.to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
}
