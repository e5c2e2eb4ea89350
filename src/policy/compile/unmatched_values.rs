//! Finds values, keys, and domains that no request can have, such as an address range as the value of
//! `remote_address`.
//!
//! Not here: reporting them (`warnings`).

use std::net::IpAddr;

use crate::policy::diagnostic::quoted;
use crate::policy::syntax::yaml::template::{TEMPLATE_ADVICE, has_template};

const REMOTE_ADDRESS: &str = "remote_address";
/// Key of the address that Envoy masks. Its values are ranges, such as `10.0.0.0/8`.
const MASKED_ADDRESS: &str = "masked_remote_address";

/// Spellings that occur in regular expressions, and hardly ever in the values of requests.
const REGEX_PARTS: [&str; 10] =
    ["/.*", "(.*", ".+", "(?", "[^", "[0-9", "[a-z", "[A-Z", "\\d", "\\w"];

/// Returns why no request has this value of this key, and what to write; `None` if requests may have
/// it. `/authz` groups IPv6 addresses in domains for which `groups_ipv6` is true.
pub(crate) fn value_problem(key: &str, value: &str, groups_ipv6: bool) -> Option<String> {
    if let Some(problem) = text_problem(value) {
        return Some(format!("this value {problem}"));
    }
    if is_regex(value) {
        let message = "a value is plain text, not a regular expression, so no request matches it; \
                       write `*` for any characters, as in `/login*`";
        return Some(message.to_owned());
    }
    // A pattern may stand for the rest of an address.
    if value.is_empty() || value.contains('*') {
        return None;
    }
    match key {
        REMOTE_ADDRESS => address_problem(key, value, groups_ipv6 && value.contains(':')),
        MASKED_ADDRESS => address_problem(key, value, true),
        _ => None,
    }
}

/// Returns why no request has this text, and what to write; `None` if requests may have it.
pub(crate) fn text_problem(text: &str) -> Option<String> {
    let is_no_break = |c: char| {
        c.is_whitespace() && !c.is_ascii() || matches!(c, '\u{200b}'..='\u{200d}' | '\u{feff}')
    };
    let is_smart = |c: char| matches!(c, '\u{2018}'..='\u{201f}' | '«' | '»');
    if has_template(text) {
        return Some(format!("is {}, {TEMPLATE_ADVICE}", quoted(text)));
    }
    if let Some(c) = text.chars().find(|c| is_no_break(*c)) {
        return Some(format!(
            "has a no-break space or another invisible character ({}), which requests do not have; \
             replace it with a plain blank, or remove it",
            c.escape_unicode()
        ));
    }
    if let Some(c) = text.chars().find(|c| is_smart(*c)) {
        return Some(format!(
            "has the typographic quote {c}, which requests do not have; remove it, or write a plain \
             quote"
        ));
    }
    if text.trim() != text {
        return Some(
            "begins or ends with a blank or a line break, which HTTP removes from headers, so no \
             request has it; remove it (a block after `|` ends with a line break: write `|-`)"
                .to_owned(),
        );
    }
    None
}

fn is_regex(value: &str) -> bool {
    let is_likely = || {
        value.starts_with(".*")
            || value.ends_with('$')
            || REGEX_PARTS.iter().any(|part| value.contains(part))
    };
    value.starts_with('^') || (value.contains(['.', '*', '\\', '[', '(']) && is_likely())
}

/// Returns why no request has this address. `is_range` states whether requests have ranges.
fn address_problem(key: &str, value: &str, is_range: bool) -> Option<String> {
    let (address, length) = value.split_once('/').map_or((value, None), |(a, b)| (a, Some(b)));
    if length.is_some() && !is_range {
        return Some(format!(
            "`{key}` is a single address, so no request matches the range {}; let the caller \
             send `{MASKED_ADDRESS}` instead, or write a pattern, such as `10.*`",
            quoted(value)
        ));
    }
    let Ok(meant) = address.parse::<IpAddr>() else {
        let (kind, example) = match is_range {
            true => ("a range of IP addresses", "2001:db8::/64"),
            false => ("an IP address", "192.0.2.1"),
        };
        return Some(format!(
            "`{key}` is {kind}, so no request matches {}; write one, such as {example}",
            quoted(value)
        ));
    };
    let meant = length.map_or_else(|| meant.to_string(), |length| format!("{meant}/{length}"));
    (meant != value).then(|| {
        format!(
            "requests have this address in another form, so none matches {}; write `{meant}`",
            quoted(value)
        )
    })
}
