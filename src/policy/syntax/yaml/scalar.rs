//! Meaning of plain (unquoted) scalars, as envoyproxy/ratelimit reads them.
//!
//! For keys that take a boolean or a number, and inside `metadata`, YAML 1.1 applies: `yes` is
//! true, `010` is 8, and `1_000` is 1000. For keys that take text, the core schema of YAML 1.2
//! applies, in which `yes`, `010`, and `1_000` are text.
//!
//! Not here: the type that each key takes (`keywords`).

/// Typed value of a plain (unquoted) scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    /// Whole number in the range of `i64` or `u64`.
    Int(i128),
    /// Number with a fraction or an exponent, or a whole number too large for 64 bits.
    Float(f64),
    /// Text that is neither null, a boolean, nor a number.
    Text,
}

/// Words that YAML 1.1 reads as true.
pub(crate) const TRUE_WORDS: [&str; 11] =
    ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"];

/// Words that YAML 1.1 reads as false.
pub(crate) const FALSE_WORDS: [&str; 11] =
    ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"];

const NULL_WORDS: [&str; 5] = ["", "~", "null", "Null", "NULL"];

/// Returns whether a plain scalar is null. YAML 1.1 and 1.2 agree on the spellings.
pub(crate) fn is_null(text: &str) -> bool {
    NULL_WORDS.contains(&text)
}

/// Interprets a plain scalar according to the core schema of YAML 1.2. Only `true` and `false` are
/// booleans, and numbers contain neither `_` nor a leading zero.
pub(crate) fn read_core_schema(text: &str) -> Scalar {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let has_upper_prefix = ["0X", "0O", "0B"].iter().any(|prefix| digits.starts_with(prefix));
    let is_only_1_1 = has_leading_zero(text) || has_upper_prefix || text.contains('_');
    match read(text) {
        Scalar::Bool(_) if !["true", "false"].contains(&&*text.to_ascii_lowercase()) => {
            Scalar::Text
        }
        Scalar::Int(_) | Scalar::Float(_) if is_only_1_1 => Scalar::Text,
        // `1e999` overflows and is text, while `.inf` is a number.
        Scalar::Float(number) if number.is_infinite() && !digits.starts_with('.') => Scalar::Text,
        scalar => scalar,
    }
}

/// Returns whether a text is a number with a leading zero, which YAML 1.1 reads as octal.
pub(crate) fn has_leading_zero(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    digits.len() > 1
        && digits.starts_with('0')
        && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
}

/// Interprets a plain scalar according to YAML 1.1, in which words such as `yes` and `off` are
/// booleans.
pub(crate) fn read(text: &str) -> Scalar {
    if is_null(text) {
        return Scalar::Null;
    }
    if TRUE_WORDS.contains(&text) {
        return Scalar::Bool(true);
    }
    if FALSE_WORDS.contains(&text) {
        return Scalar::Bool(false);
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Scalar::Text;
    }
    let bare: String = text.chars().filter(|c| *c != '_').collect();
    parse_integer(&bare).or_else(|| parse_float(&bare)).unwrap_or(Scalar::Text)
}

/// Parses a whole number with an optional sign: decimal, hexadecimal (`0x`), octal (`0o` or a
/// leading zero), or binary (`0b`). Returns `None` if the text is not a whole number.
fn parse_integer(text: &str) -> Option<Scalar> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2)];
    let with_prefix = |(prefix, radix)| lower.strip_prefix(prefix).map(|digits| (digits, radix));
    let (digits, radix) = match prefixes.into_iter().find_map(with_prefix) {
        Some(found) => found,
        None if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        None => (lower.as_str(), 10),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let size = u128::from_str_radix(digits, radix).ok()?;
    let value = i128::try_from(size).ok().map(|size| if negative { -size } else { size });
    let fits = |value: &i128| (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(value);
    Some(match value.filter(fits) {
        Some(value) => Scalar::Int(value),
        None => Scalar::Float(if negative { -(size as f64) } else { size as f64 }),
    })
}

fn parse_float(text: &str) -> Option<Scalar> {
    match text {
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Some(Scalar::Float(f64::INFINITY));
        }
        "-.inf" | "-.Inf" | "-.INF" => return Some(Scalar::Float(f64::NEG_INFINITY)),
        ".nan" | ".NaN" | ".NAN" => return Some(Scalar::Float(f64::NAN)),
        _ => {}
    }
    let numeric = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    if !text.chars().all(numeric) || !text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().map(Scalar::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_in_every_notation_of_yaml_1_1() {
        for (text, value) in [
            ("0", 0),
            ("17", 17),
            ("+17", 17),
            ("-17", -17),
            ("1_000", 1000),
            ("010", 8),
            ("0o10", 8),
            ("0x1F", 31),
            ("0X1f", 31),
            ("0b101", 5),
            ("-0x10", -16),
            ("18446744073709551615", i128::from(u64::MAX)),
        ] {
            assert_eq!(read(text), Scalar::Int(value), "{text}");
        }
    }

    #[test]
    fn other_scalars_are_floats_or_text() {
        for text in ["1.5", ".5", "1e3", "08", "18446744073709551616", "-.inf"] {
            assert!(matches!(read(text), Scalar::Float(_)), "{text}");
        }
        for text in ["1.2.3.4", "2001-01-01", "0x", "1:30", "abc", "-", "+-1", "0x-5", "é", "+"] {
            assert_eq!(read(text), Scalar::Text, "{text}");
        }
    }

    #[test]
    fn yes_no_on_off_are_booleans_and_the_empty_scalar_is_null() {
        assert_eq!(read("yes"), Scalar::Bool(true));
        assert_eq!(read("OFF"), Scalar::Bool(false));
        assert_eq!(read("n"), Scalar::Bool(false));
        assert_eq!(read("yES"), Scalar::Text);
        assert_eq!(read("~"), Scalar::Null);
        assert_eq!(read(""), Scalar::Null);
    }

    #[test]
    fn core_schema_reads_values_specific_to_yaml_1_1_as_text() {
        for text in ["yes", "on", "n", "010", "+08", "1_000", "0X1F", "1e999", "2001-01-01", "x"] {
            assert_eq!(read_core_schema(text), Scalar::Text, "{text}");
        }
        for text in ["True", "FALSE", "~", "", "17", "0x1F", "-0o17", "0b1", "1.5", ".inf", "-.INF"]
        {
            assert_eq!(read_core_schema(text), read(text), "{text}");
            assert_ne!(read_core_schema(text), Scalar::Text, "{text}");
        }
        for text in ["99999999999999999999", "-9223372036854775809", "0xFFFFFFFFFFFFFFFFF"] {
            assert!(matches!(read_core_schema(text), Scalar::Float(_)), "{text}");
        }
    }
}
