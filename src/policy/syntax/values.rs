//! Reads single values by the table of the language: truth values, numbers, words, per cent.
//!
//! Not here: maps and lists (`reader`), what YAML 1.1 takes for what (`scalar`).

use super::diagnostic::{At, DiagnosticKind, shown};
use super::keywords::{Key, Shape};
use super::reader::{Fields, Got, Reader, Reported, source};
use super::scalar::{self, Scalar};
use super::suggestions::number_hint;

/// From here on a whole number is written as a float, for want of bits.
const BEYOND_64_BITS: f64 = 9_223_372_036_854_775_808.0;

impl<'d> Reader<'d> {
    /// A truth value; absent means false.
    pub(crate) fn truth(&mut self, fields: &Fields<'d>, key: &Key) -> Result<bool, Reported> {
        let truth = self.at(fields, key, |reader, value| match value.scalar() {
            Scalar::Bool(value) => Ok(Some(value)),
            _ => {
                let hint = match scalar::read(value.text()) {
                    Scalar::Bool(_) => "; remove the quotes",
                    _ => "",
                };
                let (name, source) = (key.name, source(value));
                let message = format!("`{name}` is true or false, not {source}{hint}");
                Err(reader.note(At::Value, DiagnosticKind::WrongType, message))
            }
        });
        truth.map(Option::unwrap_or_default)
    }

    /// A whole number within the key's bounds.
    pub(crate) fn number(&mut self, fields: &Fields<'d>, key: &Key) -> Got<u64> {
        let Shape::Number { least, most } = key.shape else {
            return Ok(None);
        };
        self.at(fields, key, |reader, value| {
            let number = match value.scalar() {
                Scalar::Int(number) => number,
                // Beyond 64 bits: the cast keeps the sign, and saturates far outside any bound.
                Scalar::Float(number) if number.is_finite() && number.abs() >= BEYOND_64_BITS => {
                    number as i128
                }
                _ => {
                    let (name, source) = (key.name, source(value));
                    let hint = number_hint(value);
                    let message = format!("`{name}` is a whole number, not {source}{hint}");
                    return Err(reader.note(At::Value, DiagnosticKind::WrongType, message));
                }
            };
            match u64::try_from(number) {
                Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
                _ => {
                    let bound = if number < i128::from(least) {
                        format!("at least {least}")
                    } else {
                        format!("at most {most}")
                    };
                    let (name, source) = (key.name, source(value));
                    let message = format!("`{name}` must be {bound}, not {source}");
                    Err(reader.note(At::Value, DiagnosticKind::OutOfRange, message))
                }
            }
        })
    }

    /// One of the key's words.
    pub(crate) fn word(&mut self, fields: &Fields<'d>, key: &Key) -> Got<&'static str> {
        let Shape::OneOf { words, any_case } = key.shape else {
            return Ok(None);
        };
        self.at(fields, key, |reader, value| {
            let text = reader.read_text(key, value)?;
            let same = |word: &&&str| {
                if any_case { word.eq_ignore_ascii_case(&text) } else { **word == text }
            };
            if let Some(word) = words.iter().find(same) {
                return Ok(Some(*word));
            }
            let words = words.join(", ");
            let (name, text) = (key.name, shown(&text));
            let message = format!("`{name}` is one of: {words}; not {text}");
            Err(reader.note(At::Value, DiagnosticKind::BadValue, message))
        })
    }

    /// So many per cent: `24%`, whole and at most 100.
    pub(crate) fn percent(&mut self, fields: &Fields<'d>, key: &Key) -> Got<u32> {
        self.at(fields, key, |reader, value| {
            let digits = value.text().strip_suffix('%').unwrap_or_default();
            let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit());
            match digits.parse::<u32>() {
                Ok(number) if is_whole && number <= 100 => Ok(Some(number)),
                Ok(_) | Err(_) => {
                    let message = format!(
                        "`{}` is a whole number of per cent up to 100, such as `24%`, not {}",
                        key.name,
                        source(value)
                    );
                    Err(reader.note(At::Value, DiagnosticKind::BadValue, message))
                }
            }
        })
    }
}
