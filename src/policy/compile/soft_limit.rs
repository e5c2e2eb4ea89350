//! Reads `mark` and `log_near`: the headers that calls near a limit carry to the upstream, and the
//! log line.
//!
//! Not here: which calls carry them (`decide::soft_limits`).

use crate::domain::Mark;
use crate::policy::compiled_policy::SoftLimit;
use crate::policy::diagnostic::{DiagnosticKind, Target, quoted};
use crate::policy::syntax::keywords::{self, Key, NAME_BYTES_MAX};
use crate::policy::syntax::reader::{ErrorReported, ReadResult, Reader};

/// Headers that proxies and servers use to route or frame a request, and beginnings of such headers.
/// Envoy appends a mark to a header of the same name, so a mark could send a request elsewhere, or
/// end it too early.
const RESERVED_HEADERS: &str = "connection content-* expect forwarded grpc-* host http2-settings \
    keep-alive proxy-* sec-websocket-* te trailer transfer-encoding upgrade x-envoy-* x-forwarded-* \
    x-original-url x-rewrite-url";

/// Maximum number of headers in `near` and in `over`. Envoy accepts 100 headers of a request, with
/// those of the client.
const HEADERS_MAX: usize = 8;

/// Reads `mark` and `log_near` of a limit. `near_at` is the default of the key with this name, in
/// millionths. Returns `None` if the limit has neither.
pub(crate) fn read(reader: &mut Reader<'_>, near_at: u32) -> ReadResult<SoftLimit> {
    let log_near = reader.read_boolean(&keywords::LOG_NEAR);
    let mark = reader.read_map(&keywords::MARK, |reader| {
        let near = read_headers(reader, &keywords::NEAR);
        let over = read_headers(reader, &keywords::OVER);
        let percent = reader.read_percent(&keywords::NEAR_AT)?;
        let (near, over) = (near?, over?);
        if near.is_empty() && over.is_empty() {
            let message = "`mark` must have a header in `near` or in `over`, such as `over: \
                           {x-quota: over}`";
            return Err(reader.report(Target::Value, DiagnosticKind::Missing, message));
        }
        let near_at = percent.map_or(near_at, |percent| percent * 10_000);
        Ok(SoftLimit { near_at, near, over, log_near: false })
    });
    let (log_near, mark) = (log_near?, mark?);
    let unmarked = SoftLimit { near_at, near: [].into(), over: [].into(), log_near };
    Ok(mark.map(|mark| SoftLimit { log_near, ..mark }).or(log_near.then_some(unmarked)))
}

fn read_headers(reader: &mut Reader<'_>, key: &Key) -> Result<Box<[Mark]>, ErrorReported> {
    let headers = reader.for_each_entry(key, |reader, name, value| {
        let name = name.to_ascii_lowercase();
        let value = reader.convert_to_string(key, value)?;
        let Some((target, message)) = find_fault(&name, &value) else {
            return Ok(Mark { name: name.into(), value: value.into() });
        };
        Err(reader.report(target, DiagnosticKind::BadValue, message))
    })?;
    let headers = headers.unwrap_or_default();
    if headers.len() > HEADERS_MAX {
        let (name, count) = (key.name, headers.len());
        let message =
            format!("`{name}` must have at most {HEADERS_MAX} headers, not {count}; remove some");
        return Err(reader.report_key(key, DiagnosticKind::TooLarge, message));
    }
    Ok(headers.into())
}

/// Returns what is wrong with a header, and whether with its name or its value.
fn find_fault(name: &str, value: &str) -> Option<(Target, String)> {
    // The characters of a header name (RFC 9110).
    let legal = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let is_reserved = |header: &str| match header.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == header,
    };
    if name.len() > NAME_BYTES_MAX || !name.chars().all(legal) {
        let name = quoted(name);
        let message =
            format!("{name} is not the name of an HTTP header; write one such as x-quota");
        Some((Target::Key, message))
    } else if RESERVED_HEADERS.split(' ').any(is_reserved) {
        let message = format!(
            "`{name}` cannot be a mark, because it routes or frames requests; choose a name of your \
             own, such as x-quota"
        );
        Some((Target::Key, message))
    } else if value.trim() != value
        || value.is_empty()
        || !value.chars().all(|c| c.is_ascii_graphic() || c == ' ')
    {
        let message = format!(
            "the value of `{name}` must be visible ASCII characters, with spaces only between them; \
             write a word such as `over`"
        );
        Some((Target::Value, message))
    } else {
        None
    }
}
