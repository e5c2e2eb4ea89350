//! Optional response headers. Limit headers are added to every response to which a limit applies,
//! `Retry-After` and the name of the limit only to rejections.
//!
//! Not here: the settings that enable and name these headers (`response_config`).

use jiff::fmt::rfc2822::DateTimePrinter;

use super::messages::HeaderValue;
use super::response_config::{RETRY_AFTER_HEADER, ResponseConfig, STANDARD_RESET_HEADER};
use crate::domain::{Code, Decision, LimitedBy, Micros, ResetFormat, RetryAfterFormat, Status};

/// Maximum length of a percent-encoded header value, in bytes. A longer value, such as the path of
/// an unnamed limit, is truncated.
const HEADER_VALUE_BYTES_MAX: usize = 255;

/// Time until a rejected request may be retried, including jitter, as a duration and as a point in
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryWait {
    /// Time until a retry can succeed, in whole seconds, rounded up, at least 1.
    pub(super) seconds: u64,
    /// Earliest time at which a retry can succeed, in microseconds since the Unix epoch.
    retry_at: Micros,
}

impl RetryWait {
    /// Returns the time until a rejected request may be retried, with random jitter up to the
    /// configured maximum; `None` if waiting does not help. `random` must be uniformly distributed
    /// over all `u64`.
    pub(super) fn for_refusal(
        limited_by: Option<&LimitedBy<'_>>,
        response_config: &ResponseConfig,
        now: Micros,
        random: u64,
    ) -> Option<RetryWait> {
        let wait = limited_by?.retry_after?;
        let most =
            u128::from(wait.0) * u128::from(response_config.settings.retry_jitter_percent) / 100;
        let extra = (most * u128::from(random)) >> 64;
        let wait = wait.saturating_add(Micros(u64::try_from(extra).unwrap_or(u64::MAX)));
        Some(RetryWait { seconds: wait.ceil_secs().max(1), retry_at: now.saturating_add(wait) })
    }
}

pub(super) fn append_headers(
    decision: &Decision<'_>,
    wait: Option<RetryWait>,
    response_config: &ResponseConfig,
    now: Micros,
    headers: &mut Vec<HeaderValue>,
) {
    if !response_config.header_sets.is_empty()
        && let Some(status) = find_reported_status(&decision.statuses)
    {
        append_limit_headers(status, response_config, now, headers);
    }
    if decision.code == Code::Ok {
        return;
    }
    if let (Some(format), Some(wait)) = (response_config.settings.retry_after, wait)
        && let Some(value) = format_retry_after(format, wait)
    {
        headers.push(build_header(RETRY_AFTER_HEADER, value));
    }
    if let (Some(name), Some(limited_by)) =
        (&response_config.settings.limited_by, &decision.limited_by)
    {
        headers.push(build_header(name, percent_encode(limit_name(limited_by))));
    }
}

/// Returns the name of the limit that rejected the request, or `override` for a request override.
pub(super) fn limit_name<'p>(limited_by: &LimitedBy<'p>) -> &'p str {
    if limited_by.name.is_empty() { "override" } else { limited_by.name }
}

/// Returns the status that the limit headers report, as in envoyproxy/ratelimit: the last
/// OVER_LIMIT status that does not belong to a quota descriptor. If there is none, returns the
/// status with the fewest remaining hits. If several statuses have equally few, prefers OVER_LIMIT,
/// then the first status.
fn find_reported_status<'d, 'p>(statuses: &'d [Status<'p>]) -> Option<&'d Status<'p>> {
    let refuses = |status: &&Status<'_>| status.code == Code::OverLimit && !status.quota;
    let shown = || statuses.iter().filter(|status| status.shown.is_some());
    shown().rfind(refuses).or_else(|| {
        // If no hits remain, prefer a status that refuses: its reset is the time to wait.
        shown().min_by_key(|status| (status.remaining, status.code == Code::Ok))
    })
}

/// Appends all configured sets of limit headers, with the values of `status`.
fn append_limit_headers(
    status: &Status<'_>,
    response_config: &ResponseConfig,
    now: Micros,
    headers: &mut Vec<HeaderValue>,
) {
    let Some(shown) = &status.shown else { return };
    let limit = shown.reported_limit();
    for names in &response_config.header_sets {
        headers.push(build_header(&names.limit, limit.to_string()));
        headers.push(build_header(&names.remaining, status.remaining.to_string()));
        if let Some(reset) = status.reset {
            let reset = match response_config.settings.reset {
                ResetFormat::UnixTime
                    if !names.reset.eq_ignore_ascii_case(STANDARD_RESET_HEADER) =>
                {
                    now.saturating_add(reset).ceil_secs()
                }
                ResetFormat::UnixTime | ResetFormat::Seconds => reset.ceil_secs().max(1),
            };
            headers.push(build_header(&names.reset, reset.to_string()));
        }
    }
}

/// Formats the value of `Retry-After`. Returns `None` for an HTTP date after the year 9999.
fn format_retry_after(format: RetryAfterFormat, wait: RetryWait) -> Option<String> {
    match format {
        RetryAfterFormat::Seconds => Some(wait.seconds.to_string()),
        RetryAfterFormat::HttpDate => {
            let second = i64::try_from(wait.retry_at.ceil_secs()).ok()?;
            let at = jiff::Timestamp::from_second(second).ok()?;
            DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()
        }
    }
}

pub(super) fn build_header(name: &str, value: impl Into<String>) -> HeaderValue {
    // Not `raw_value`, because Envoy ignores it here.
    HeaderValue { key: name.to_owned(), value: value.into(), raw_value: Vec::new() }
}

/// Percent-encodes all bytes except printable ASCII, so that a line break in the text cannot inject
/// another header. Truncates the result to [`HEADER_VALUE_BYTES_MAX`].
pub(super) fn percent_encode(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for byte in text.bytes() {
        let width = if (b' '..=b'~').contains(&byte) { 1 } else { 3 };
        if value.len() + width > HEADER_VALUE_BYTES_MAX {
            break;
        }
        if width == 1 {
            value.push(char::from(byte));
        } else {
            value.push_str(&format!("%{byte:02X}"));
        }
    }
    value
}
