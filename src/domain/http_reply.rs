//! HTTP response to a request for a rate limit decision.
//!
//! Not here: what it contains (`wire::http_reply`), and the HTTP server (`admin`).

/// HTTP response of `/json` or `/authz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpReply {
    /// HTTP status: 200, 400, 403, 429, 500, or 503.
    pub status: u16,
    /// Names and values of the headers. If there is no `content-type`, the body is plain text.
    pub headers: Vec<(String, String)>,
    /// Body of the response; with status 400 or 503, a one-line error message.
    pub body: String,
}
