//! The routes of the debug port, for operators: what is configured, which limits there are, and
//! why a request would be answered as it would. What changes something is in `operate`.
//!
//! Not here: what the pages say (`policy`, `settings`; functions are handed in).

use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::operate::{Operate, operate_routes};
use super::{Page, plain};

/// What `/explain` is asked: a domain and its descriptors, as on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explains {
    /// The domain.
    pub domain: String,
    /// Descriptors, each as `k=v,k2=v2`.
    pub descriptors: Vec<String>,
}

/// An explanation, or what is wrong with the question.
pub type Explained = Result<String, String>;

/// What the debug port shows.
#[derive(Clone)]
pub struct Debug {
    /// Every limit on a line, as envoyproxy/ratelimit prints them.
    pub rlconfig: Page,
    /// The settings in effect and where each is from; secrets hidden.
    pub config: Page,
    /// The policy as it was understood.
    pub policy: Page,
    /// Explains a request.
    pub explain: Arc<dyn Fn(&Explains) -> Explained + Send + Sync>,
    /// What operators can do.
    pub operate: Operate,
}

impl std::fmt::Debug for Debug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Debug { .. }")
    }
}

/// What `/` lists.
const ENDPOINTS: &str = "\
/            this list
/rlconfig    every limit, a line each
/config      settings in effect and where each one is from
/policy      the policy as it was understood
/explain     ?domain=D&descriptor=k=v,k2=v2 (several): which rules match, and why
/counter     ?domain=D&descriptor=k=v,k2=v2: how its counters stand
/switches    the switches that are set

POST, with `Authorization: Bearer TOKEN` (the token of --debug-token-file), in this replica only:
/reset             ?domain=D&descriptor=k=v,k2=v2: its counters are as good as new
/switch            ?target=DOMAIN_OR_PATH&to=shadow|allow|deny|20%25&for=SECONDS
/undo              ?target=DOMAIN_OR_PATH, or nothing for every switch
/leave-store       ?for=SECONDS: act as if Redis were away
/return-to-store   ask Redis again
";

/// The routes of the debug port.
pub fn debug_routes(debug: Debug) -> Router {
    let page = |page: Page| {
        get(move || {
            let text = page();
            async move { plain(text) }
        })
    };
    let (explain, operate) = (debug.explain, debug.operate);
    Router::new()
        .route("/", get(|| async { plain(ENDPOINTS.to_owned()) }))
        .route("/rlconfig", page(debug.rlconfig))
        .route("/config", page(debug.config))
        .route("/policy", page(debug.policy))
        .route(
            "/explain",
            get(move |RawQuery(query): RawQuery| {
                let answer = explained(explain.as_ref(), query.as_deref().unwrap_or_default());
                async move { answer }
            }),
        )
        .merge(operate_routes(operate))
}

fn explained(explain: &dyn Fn(&Explains) -> Explained, query: &str) -> Response {
    match question(query).and_then(|question| explain(&question)) {
        Ok(text) => plain(text),
        Err(wrong) => (StatusCode::BAD_REQUEST, plain(format!("{wrong}\n"))).into_response(),
    }
}

/// Reads `domain=D&descriptor=k=v,k2=v2&descriptor=…`.
fn question(query: &str) -> Result<Explains, String> {
    let mut question = Explains::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value).ok_or("the query is not percent-encoded UTF-8")?;
        match name {
            "domain" => question.domain = value,
            "descriptor" => question.descriptors.push(value),
            _ => return Err("ask with domain=D and descriptor=k=v,k2=v2".to_owned()),
        }
    }
    if question.domain.is_empty() || question.descriptors.is_empty() {
        return Err("ask with domain=D and descriptor=k=v,k2=v2".to_owned());
    }
    Ok(question)
}

/// Takes percent-encoding off; a plus is a blank, as forms send it.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_with_its_encoding_taken_off() {
        let asked = question("domain=edge&descriptor=path%3D%2Fa+b,k=v%25&descriptor=x=y").unwrap();
        assert_eq!(asked.domain, "edge");
        assert_eq!(asked.descriptors, ["path=/a b,k=v%", "x=y"]);
    }

    #[test]
    fn a_question_that_lacks_something_is_told_how_to_ask() {
        for bad in ["", "domain=d", "descriptor=k=v", "domain=%f", "domain=%ff&descriptor=a", "x=1"]
        {
            assert!(question(bad).is_err(), "{bad}");
        }
    }
}
