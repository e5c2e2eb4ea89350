//! Reads scalar values as the keyword table defines them: booleans, numbers, words, percentages.
//!
//! Not here: maps, lists, and text (`reader`), the rules of YAML 1.1 (`scalar`).

use super::keywords::{Key, ValueType};
use super::reader::{ErrorReported, ReadResult, Reader};
use super::suggestions::{number_hint, range_hint, spelling};
use super::yaml::scalar::{self, Scalar};
use crate::domain::{NamedEnum, nearest_word};
use crate::policy::diagnostic::{DiagnosticKind, Target, quoted};

impl<'d> Reader<'d> {
    /// Reads a boolean. An absent key means false.
    pub(crate) fn read_boolean(&mut self, key: &Key) -> Result<bool, ErrorReported> {
        let boolean = self.read_value(key, |reader, value| match value.scalar() {
            Scalar::Bool(value) => Ok(value),
            _ => {
                let hint = match scalar::read(value.text()) {
                    Scalar::Bool(_) => "; remove the quotes",
                    _ => "",
                };
                let (name, written) = (key.name, spelling(value));
                let message = format!("`{name}` must be true or false, not {written}{hint}");
                Err(reader.report(Target::Value, DiagnosticKind::WrongType, message))
            }
        });
        boolean.map(Option::unwrap_or_default)
    }

    /// Reads a whole number within the bounds of the key. Returns `None` if the key is absent.
    pub(crate) fn read_number(&mut self, key: &Key) -> ReadResult<u64> {
        let ValueType::Number { min, max } = key.value_type else { return Ok(None) };
        self.read_value(key, |reader, value| {
            let number = match value.scalar() {
                Scalar::Int(number) => number,
                // Helm writes a million as `1e+06`. The saturating cast keeps the sign of a number
                // that is out of every key's range.
                Scalar::Float(number)
                    if number.fract() == 0.0 && !scalar::has_leading_zero(value.text()) =>
                {
                    number as i128
                }
                _ => {
                    let (name, written) = (key.name, spelling(value));
                    let hint = number_hint(value);
                    let message = format!("`{name}` must be a whole number, not {written}{hint}");
                    return Err(reader.report(Target::Value, DiagnosticKind::WrongType, message));
                }
            };
            match u64::try_from(number) {
                Ok(number) if (min..=max).contains(&number) => Ok(number),
                _ => {
                    let is_too_small = number < i128::from(min);
                    let bound = match is_too_small {
                        true => format!("at least {min}"),
                        false => format!("at most {max}"),
                    };
                    let hint = range_hint(key, is_too_small, reader.is_in_list());
                    let (name, written) = (key.name, spelling(value));
                    let message = format!("`{name}` must be {bound}, not {written}{hint}");
                    Err(reader.report(Target::Value, DiagnosticKind::OutOfRange, message))
                }
            }
        })
    }

    /// Reads one of the words that the key accepts. Returns `None` if the key is absent.
    pub(crate) fn read_word<T: NamedEnum>(&mut self, key: &Key) -> ReadResult<T> {
        let any_case = matches!(key.value_type, ValueType::OneOf { any_case: true, .. });
        self.read_value(key, |reader, value| {
            let text = reader.convert_to_string(key, value)?;
            if let Some(value) = T::from_name(&text, any_case) {
                return Ok(value);
            }
            let near = nearest_word(&text, T::WORDS.iter().copied());
            let hint = near.map_or(String::new(), |word| format!("; did you mean `{word}`?"));
            let (name, words, text) = (key.name, T::WORDS.join(", "), quoted(&text));
            let message = format!("`{name}` must be one of: {words}; not {text}{hint}");
            Err(reader.report(Target::Value, DiagnosticKind::BadValue, message))
        })
    }

    /// Reads a whole percentage such as `24%`. Returns `None` if the key is absent.
    pub(crate) fn read_percent(&mut self, key: &Key) -> ReadResult<u32> {
        self.read_value(key, |reader, value| {
            let digits = value.text().strip_suffix('%').unwrap_or_default();
            let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit());
            match digits.parse::<u32>() {
                Ok(number) if is_whole && number <= 100 => Ok(number),
                Ok(_) | Err(_) => {
                    let message = format!(
                        "`{}` must be a whole percentage up to 100, such as `24%`, not {}",
                        key.name,
                        spelling(value)
                    );
                    Err(reader.report(Target::Value, DiagnosticKind::BadValue, message))
                }
            }
        })
    }
}
