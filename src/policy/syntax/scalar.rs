//! YAML 1.1 scalars, as envoyproxy/ratelimit reads them: `yes` is true, `010` is eight, `1_000` a
//! thousand.
//!
//! Only plain (unquoted) text is read this way, and only where a key takes a truth value or a
//! number, or inside `metadata`. Not here: which key takes what (`language`, `reader`).

/// What a plain scalar means in YAML 1.1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar {
    /// Nothing.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A number with a fraction or an exponent, or too large for 64 bits.
    Float(f64),
    /// Anything else.
    Text,
}

/// The words that mean true, all of them.
pub(crate) const TRUE_WORDS: [&str; 11] =
    ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"];

/// The words that mean false, all of them.
pub(crate) const FALSE_WORDS: [&str; 11] =
    ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"];

const NULL_WORDS: [&str; 5] = ["", "~", "null", "Null", "NULL"];

/// Reads a plain scalar.
pub(crate) fn read(text: &str) -> Scalar {
    if NULL_WORDS.contains(&text) {
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
    whole(&bare).or_else(|| float(&bare)).unwrap_or(Scalar::Text)
}

/// A whole number within 64 bits: decimal, `0x`, `0o` or a leading zero, `0b`, each with a sign.
fn whole(text: &str) -> Option<Scalar> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let size = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let value = if negative { -size } else { size };
    (value >= i128::from(i64::MIN)).then_some(Scalar::Int(value))
}

fn float(text: &str) -> Option<Scalar> {
    let special = match text.trim_start_matches(['+', '-']) {
        ".inf" | ".Inf" | ".INF" => Some(f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" => Some(f64::NAN),
        _ => None,
    };
    if let Some(value) = special {
        return Some(Scalar::Float(if text.starts_with('-') { -value } else { value }));
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
    fn what_is_no_whole_number_is_a_float_or_text() {
        for text in ["1.5", ".5", "1e3", "08", "18446744073709551616", "-.inf"] {
            assert!(matches!(read(text), Scalar::Float(_)), "{text}");
        }
        for text in ["1.2.3.4", "2001-01-01", "0x", "1:30", "abc", "-", "+-1", "0x-5", "é", "+"] {
            assert_eq!(read(text), Scalar::Text, "{text}");
        }
    }

    #[test]
    fn yes_no_on_off_are_truth_values_and_the_empty_scalar_is_null() {
        assert_eq!(read("yes"), Scalar::Bool(true));
        assert_eq!(read("OFF"), Scalar::Bool(false));
        assert_eq!(read("n"), Scalar::Bool(false));
        assert_eq!(read("yES"), Scalar::Text);
        assert_eq!(read("~"), Scalar::Null);
        assert_eq!(read(""), Scalar::Null);
    }
}
