//! Settings of the headers, the body, and the metadata of responses. Header names are validated at
//! startup, because Envoy does not validate them: a line break in a name would add a second
//! header.
//!
//! Not here: writing headers (`response_headers`), bodies (`refusal_body`), and metadata
//! (`dynamic_metadata`).

use http::HeaderName;

use super::error::WireError;
use crate::domain::{ResetFormat, RetryAfterFormat};

/// Settings of rate limit responses. By default, a response contains the overall code and one
/// status per descriptor. An OVER_LIMIT response also contains dynamic metadata and, if the policy
/// defines one, a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseSettings {
    /// Whether to send `X-RateLimit-Limit`, `X-RateLimit-Remaining`, and `X-RateLimit-Reset`.
    pub x_rate_limit: bool,
    /// Names under which to send the three limit headers of the IETF draft, by default
    /// `RateLimit-Limit`, `RateLimit-Remaining`, and `RateLimit-Reset`; `None` sends none of them.
    pub rate_limit: Option<LimitHeaderNames>,
    /// Format of the reset value in the limit headers. Does not apply to `RateLimit-Reset`, which
    /// the IETF draft defines in seconds.
    pub reset: ResetFormat,
    /// Format of the `Retry-After` header; `None` sends no such header. The header is sent only on
    /// rejections for which waiting helps.
    pub retry_after: Option<RetryAfterFormat>,
    /// Maximum jitter added to `Retry-After`, in percent of the wait. It spreads the
    /// retries of callers that were rejected at the same time.
    pub retry_jitter_percent: u8,
    /// Name of the header that names the limit that rejected the request; `None` sends no such
    /// header.
    pub limited_by: Option<String>,
    /// Whether to send a JSON body on rejections if neither the rule nor the domain defines a
    /// body.
    pub body: bool,
    /// Whether every response contains the dynamic metadata that envoyproxy/ratelimit sends.
    pub request_metadata: bool,
}

/// Names of one set of limit headers: limit, remaining hits and reset time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHeaderNames {
    /// Name of the header for the limit, in hits: `requests_per_unit` or, if larger, the capacity.
    pub limit: String,
    /// Name of the header for the number of remaining hits.
    pub remaining: String,
    /// Name of the header for the reset time: the time until the full limit is available again or,
    /// on a rejection, until a retry can succeed.
    pub reset: String,
}

impl Default for LimitHeaderNames {
    fn default() -> Self {
        LimitHeaderNames {
            limit: "RateLimit-Limit".to_owned(),
            remaining: "RateLimit-Remaining".to_owned(),
            reset: STANDARD_RESET_HEADER.to_owned(),
        }
    }
}

/// Validated configuration of responses, created from [`ResponseSettings`].
#[derive(Clone, Debug, Default)]
pub struct ResponseConfig {
    /// Header names of the configured sets of limit headers, at most two sets.
    pub(crate) header_sets: Vec<LimitHeaderNames>,
    pub(crate) settings: ResponseSettings,
}

/// Name of the reset header in the IETF draft for rate limit headers.
pub(crate) const STANDARD_RESET_HEADER: &str = "RateLimit-Reset";

/// Name of the header for the time until a retry can succeed.
pub(crate) const RETRY_AFTER_HEADER: &str = "Retry-After";

// Reasons why a header name is not allowed.
const MALFORMED: &str = "it is not a header name";
const PSEUDO_HEADER: &str = "pseudo-headers belong to the protocol";
const HOP_BY_HOP: &str = "it is a hop-by-hop header";
const RESERVED: &str = "it describes or addresses the message";
const DUPLICATE: &str = "another setting already sends it";

/// Hop-by-hop headers according to RFC 9110, section 7.6.1, and older specifications.
const HOP_BY_HOP_HEADERS: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that describe or address a message. If a setting used one of these names, Envoy would
/// append the value to the existing header, for example `content-length: 225,3`.
const RESERVED_HEADERS: [&str; 4] = ["content-encoding", "content-length", "content-type", "host"];

impl ResponseConfig {
    /// Validates the settings and creates the configuration.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::HeaderName`] for a header name that is not allowed or is configured
    /// twice.
    ///
    /// ```
    /// use tidegate::wire::{ResponseConfig, ResponseSettings};
    /// let with_header = |name: &str| ResponseSettings {
    ///     limited_by: Some(name.to_owned()),
    ///     ..ResponseSettings::default()
    /// };
    /// assert!(ResponseConfig::new(with_header("x-limited-by")).is_ok());
    /// assert!(ResponseConfig::new(with_header(":status")).is_err());
    /// ```
    pub fn new(settings: ResponseSettings) -> Result<Self, WireError> {
        let x_set = settings.x_rate_limit.then(|| LimitHeaderNames {
            limit: "X-RateLimit-Limit".to_owned(),
            remaining: "X-RateLimit-Remaining".to_owned(),
            reset: "X-RateLimit-Reset".to_owned(),
        });
        let header_sets: Vec<_> = settings.rate_limit.clone().into_iter().chain(x_set).collect();
        let names = header_sets.iter().flat_map(|set| [&set.limit, &set.remaining, &set.reset]);
        let mut used = vec![HeaderName::from_static("retry-after")];
        for name in names.chain(&settings.limited_by) {
            let checked = parse_header_name(name)
                .and_then(|name| if used.contains(&name) { Err(DUPLICATE) } else { Ok(name) })
                .map_err(|why| WireError::HeaderName { name: name.clone(), why })?;
            used.push(checked);
        }
        Ok(ResponseConfig { header_sets, settings })
    }
}

/// Parses a header name. Returns an error for a malformed name, and for a name that is reserved
/// for Envoy or HTTP itself.
fn parse_header_name(name: &str) -> Result<HeaderName, &'static str> {
    if name.starts_with(':') {
        return Err(PSEUDO_HEADER);
    }
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| MALFORMED)?;
    match name.as_str() {
        reserved if HOP_BY_HOP_HEADERS.contains(&reserved) => Err(HOP_BY_HOP),
        reserved if RESERVED_HEADERS.contains(&reserved) => Err(RESERVED),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_with_header(name: &str) -> Result<ResponseConfig, WireError> {
        let limited_by = Some(name.to_owned());
        ResponseConfig::new(ResponseSettings { limited_by, ..ResponseSettings::default() })
    }

    fn name_error(name: &str) -> &'static str {
        match config_with_header(name) {
            Err(WireError::HeaderName { why, .. }) => why,
            other => panic!("{name:?}: {other:?}"),
        }
    }

    #[test]
    fn a_header_that_could_split_or_reframe_a_response_is_an_error() {
        for name in ["", "a b", "a\r\nset-cookie: x", "a\0", "ü", "a:b"] {
            assert_eq!(name_error(name), MALFORMED, "{name:?}");
        }
        for name in [":status", ":path", ":"] {
            assert_eq!(name_error(name), PSEUDO_HEADER, "{name:?}");
        }
        for name in ["Connection", "TE", "transfer-encoding", "Upgrade", "Keep-Alive"] {
            assert_eq!(name_error(name), HOP_BY_HOP, "{name:?}");
        }
        for name in ["Content-Length", "content-type", "Host", "Content-Encoding"] {
            assert_eq!(name_error(name), RESERVED, "{name:?}");
        }
        assert!(config_with_header("X-Limited-By").is_ok());
    }

    #[test]
    fn no_header_is_configured_twice() {
        assert_eq!(name_error("retry-after"), DUPLICATE);
        let twice = ResponseSettings {
            x_rate_limit: true,
            rate_limit: Some(LimitHeaderNames {
                limit: "x-ratelimit-limit".to_owned(),
                ..LimitHeaderNames::default()
            }),
            ..ResponseSettings::default()
        };
        assert!(matches!(
            ResponseConfig::new(twice),
            Err(WireError::HeaderName { why: DUPLICATE, .. })
        ));
        let both = ResponseSettings {
            x_rate_limit: true,
            rate_limit: Some(LimitHeaderNames::default()),
            ..ResponseSettings::default()
        };
        assert_eq!(ResponseConfig::new(both).unwrap().header_sets.len(), 2);
    }
}
