//! Parser of the W3C `traceparent` header: trace id, parent span id, and sampled flag.
//!
//! Not here: the sampling decision (`telemetry::otlp`).

use http::{HeaderMap, HeaderName};

use crate::domain::TraceParent;

/// Name of the `traceparent` header. Declared as a static, so that it is not parsed for each call.
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Parses the `traceparent` header. Returns `None` if it is missing or malformed, because the W3C
/// specification requires that a malformed header be ignored.
pub(crate) fn parse_header(headers: &HeaderMap) -> Option<TraceParent> {
    parse(headers.get(&TRACEPARENT)?.as_bytes())
}

/// Parses `version-trace-span-flags` in lowercase hexadecimal. Versions after 00 may append fields.
/// Returns `None` if the text is malformed or an id is zero.
fn parse(text: &[u8]) -> Option<TraceParent> {
    let (head, rest) = text.split_at_checked(55)?;
    let version = decode_hex_byte(&head[..2])?;
    let valid_length = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    let dashes = [2, 35, 52].iter().all(|at| head[*at] == b'-');
    let trace: [u8; 16] = decode_hex(&head[3..35])?;
    let span: [u8; 8] = decode_hex(&head[36..52])?;
    let flags = decode_hex_byte(&head[53..])?;
    let valid = valid_length && dashes && trace != [0; 16] && span != [0; 8];
    valid.then_some(TraceParent { trace, span, sampled: flags & 1 == 1 })
}

/// Decodes `2 * N` lowercase hexadecimal digits to `N` bytes. Returns `None` if any other character
/// occurs.
fn decode_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut all = [0; N];
    for (to, two) in all.iter_mut().zip(digits.chunks_exact(2)) {
        *to = decode_hex_byte(two)?;
    }
    Some(all)
}

/// Decodes two lowercase hexadecimal digits to a byte. Returns `None` if any other character
/// occurs.
fn decode_hex_byte(two: &[u8]) -> Option<u8> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    Some(digit(two[0])? << 4 | digit(two[1])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID_HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_parent_is_read() {
        let parent = parse(VALID_HEADER.as_bytes()).unwrap();
        assert_eq!(parent.trace[..2], [0x4b, 0xf9]);
        assert_eq!(parent.span, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(parent.sampled);
        let not = VALID_HEADER.replace("-01", "-00");
        assert!(!parse(not.as_bytes()).unwrap().sampled);
        let later = VALID_HEADER.replacen("00", "cc", 1) + "-what-the-future-brings";
        assert!(parse(later.as_bytes()).unwrap().sampled);
    }

    #[test]
    fn a_malformed_parent_is_ignored() {
        let zeros = |from: &str| VALID_HEADER.replace(from, &"0".repeat(from.len()));
        for text in [
            String::new(),
            VALID_HEADER[..54].to_owned(),
            format!("{VALID_HEADER}0"),
            format!("{VALID_HEADER}-more"),
            VALID_HEADER.replacen("00", "ff", 1),
            VALID_HEADER.to_uppercase(),
            VALID_HEADER.replace('-', "_"),
            VALID_HEADER.replace("4bf9", "4bg9"),
            zeros("4bf92f3577b34da6a3ce929d0e0e4736"),
            zeros("00f067aa0ba902b7"),
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
