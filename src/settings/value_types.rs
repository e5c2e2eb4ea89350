//! The kinds of values that settings have: how each is read from text, and between which bounds.
//!
//! A reader says what is wrong and what would be right; the caller adds the setting's name and
//! where it was given. Not here: which settings there are (`table`).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What is wrong with a value, and what would be right.
pub(super) type Wrong = String;

/// A text that is never shown: not in logs, not by `--print-settings`, not in faults.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// The secret itself, for the one place that uses it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        SecretText(text.to_owned())
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

/// An enum whose values are words, read without regard to case.
macro_rules! words {
    ($( $(#[doc = $doc:literal])* $name:ident { $( $(#[doc = $each:literal])* $word:literal $variant:ident ),+ $(,)? } )+) => { $(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[doc = $each])* $variant ),+ }

        impl $name {
            pub(super) fn read(text: &str) -> Result<Self, Wrong> {
                match text.to_ascii_lowercase().as_str() {
                    $( $word => Ok($name::$variant), )+
                    _ => Err(concat!("one of", $( " ", $word ),+).to_owned()),
                }
            }
        }
    )+ };
}

words! {
    /// On, off, or as the rest of the settings suggests.
    OnOff {
        /// As the rest suggests.
        "auto" Auto,
        /// On.
        "on" On,
        /// Off.
        "off" Off,
    }
    /// Where hits are counted.
    StoreKind {
        /// In Redis where `redis-url` is given, else in memory.
        "auto" Auto,
        /// In this process.
        "memory" Memory,
        /// In Redis.
        "redis" Redis,
    }
    /// How many Redis servers there are and who knows them.
    RedisType {
        /// One server.
        "single" Single,
        /// Sentinels name the present master.
        "sentinel" Sentinel,
        /// A Redis Cluster.
        "cluster" Cluster,
    }
    /// Which headers tell the limit.
    HeaderFamily {
        /// None.
        "none" None,
        /// `RateLimit-Limit`, `-Remaining`, `-Reset`, as the IETF draft names them.
        "ratelimit" RateLimit,
        /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
        "x-ratelimit" XRateLimit,
        /// Both families.
        "both" Both,
    }
    /// How a reset header tells the time.
    ResetForm {
        /// Seconds from now.
        "seconds" Seconds,
        /// Seconds since 1970.
        "unix" Unix,
    }
    /// How `Retry-After` is written.
    RetryAfterForm {
        /// Not at all.
        "off" Off,
        /// In whole seconds, at least 1.
        "seconds" Seconds,
        /// As an HTTP date.
        "date" Date,
    }
    /// How the values of refused keys are shown.
    TopValues {
        /// Their first 24 bytes.
        "shortened" Shortened,
        /// Not at all: the keyed hash that names the counter.
        "hashed" Hashed,
    }
    /// How logs are written.
    LogFormat {
        /// A line of text.
        "text" Text,
        /// A line of JSON.
        "json" Json,
    }
    /// From which level on logs are written. The words of logrus and of tracing.
    LogLevel {
        /// Nothing.
        "off" Off,
        /// What ends the process.
        "panic" Panic,
        /// What needs somebody at once.
        "fatal" Fatal,
        /// What failed.
        "error" Error,
        /// What will need somebody.
        "warning" Warning,
        /// The same.
        "warn" Warn,
        /// What happened.
        "info" Info,
        /// What led to it.
        "debug" Debug,
        /// Everything.
        "trace" Trace,
    }
}

/// Any text on one line.
pub(super) fn text(text: &str) -> Result<String, Wrong> {
    match text.chars().find(|c| c.is_control()) {
        Some(_) => Err("may not contain control characters".to_owned()),
        None => Ok(text.to_owned()),
    }
}

/// A host name or address; brackets around an IPv6 address are taken off.
pub(super) fn host(given: &str) -> Result<String, Wrong> {
    let bare = given.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(given);
    if bare.is_empty() || bare.contains(char::is_whitespace) {
        return Err("a host name or an address, such as 0.0.0.0 or ::1".to_owned());
    }
    text(bare)
}

/// `host:port`; the host may be left out, which means all addresses.
pub(super) fn address(given: &str) -> Result<(String, u16), Wrong> {
    let wrong = || "host:port or :port, such as 0.0.0.0:9090 or :9090".to_owned();
    let (name, port) = given.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let name = if name.is_empty() { "0.0.0.0".to_owned() } else { host(name)? };
    Ok((name, port))
}

/// A secret.
pub(super) fn secret(given: &str) -> Result<SecretText, Wrong> {
    Ok(SecretText::from(given))
}

/// A text that may hold a secret, on one line.
pub(super) fn secret_line(given: &str) -> Result<SecretText, Wrong> {
    text(given).map(|text| SecretText::from(text.as_str()))
}

/// A path; empty means none.
pub(super) fn path(given: &str) -> Result<Option<PathBuf>, Wrong> {
    Ok((!given.is_empty()).then(|| PathBuf::from(given)))
}

/// A list with commas; empty means none.
pub(super) fn paths(given: &str) -> Result<Vec<PathBuf>, Wrong> {
    let items = given.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| text(item).map(PathBuf::from)).collect()
}

/// Yes or no, in the words that Go programs take (which the environment of envoyproxy/ratelimit
/// is written in) and in those of YAML.
pub(super) fn flag(given: &str) -> Result<bool, Wrong> {
    match given.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" | "on" => Ok(true),
        "0" | "f" | "false" | "n" | "no" | "off" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// A whole number within bounds.
pub(super) fn number<T: TryFrom<u64>>(min: u64, max: u64) -> impl Fn(&str) -> Result<T, Wrong> {
    move |given| within(given.replace('_', "").parse().ok(), min, max, &min, &max)
}

/// A ratio between 0 and 1.
pub(super) fn ratio(given: &str) -> Result<f64, Wrong> {
    match given.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("a number from 0 to 1, such as 0.8".to_owned()),
    }
}

/// A length of time such as `250ms`, `5s`, `1h30m`, within bounds in milliseconds.
pub(super) fn duration(min_ms: u64, max_ms: u64) -> impl Fn(&str) -> Result<Duration, Wrong> {
    move |given| {
        let (min, max) = (Duration::from_millis(min_ms), Duration::from_millis(max_ms));
        within(millis(given), min_ms, max_ms, &format!("{min:?}"), &format!("{max:?}"))
            .map(Duration::from_millis)
            .map_err(|wrong| format!("{wrong}, with its unit: 250ms, 5s, 1m30s, 24h"))
    }
}

/// The same, and whole numbers are milliseconds: so write OpenTelemetry's variables them.
pub(super) fn or_millis(min_ms: u64, max_ms: u64) -> impl Fn(&str) -> Result<Duration, Wrong> {
    let read = duration(min_ms, max_ms);
    move |given| match given.bytes().all(|byte| byte.is_ascii_digit()) {
        true => read(&format!("{given}ms")),
        false => read(given),
    }
}

/// A size such as `65536`, `64KiB`, `16MiB`, within bounds in bytes.
pub(super) fn bytes<T: TryFrom<u64>>(min: u64, max: u64) -> impl Fn(&str) -> Result<T, Wrong> {
    move |given| {
        let digits = given.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(given.len());
        let (number, unit) = given.split_at(digits);
        let factor = match unit.trim() {
            "" | "B" => Some(1),
            "KiB" | "Ki" | "K" => Some(1 << 10),
            "MiB" | "Mi" | "M" => Some(1 << 20),
            "GiB" | "Gi" | "G" => Some(1 << 30),
            _ => None,
        };
        let number: Option<u64> = number.replace('_', "").parse().ok();
        let size = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        within(size, min, max, &min, &max)
            .map_err(|wrong| format!("{wrong} bytes; units are KiB, MiB, GiB"))
    }
}

fn within<T: TryFrom<u64>>(
    value: Option<u64>,
    min: u64,
    max: u64,
    shown_min: &dyn fmt::Display,
    shown_max: &dyn fmt::Display,
) -> Result<T, Wrong> {
    value
        .filter(|value| (min..=max).contains(value))
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| format!("must be from {shown_min} to {shown_max}"))
}

/// Milliseconds, rounded down, of a duration as Go writes it: numbers, each with a unit. `0` needs
/// none.
fn millis(given: &str) -> Option<u64> {
    if given == "0" {
        return Some(0);
    }
    let of_number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut rest, mut sum_ns) = (given, 0u64);
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !of_number(c))?);
        let (unit, after) = after.split_at(after.find(of_number).unwrap_or(after.len()));
        rest = after;
        let unit_ns: u64 = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && part.is_empty() {
            return None;
        }
        let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
        // Nine digits behind the point are a nanosecond of a second; the next say nothing.
        let part = part.get(..9).unwrap_or(part);
        let scale = 10u64.pow(u32::try_from(part.len()).ok()?);
        sum_ns = sum_ns.checked_add(digits(whole)?.checked_mul(unit_ns)?)?;
        let part_ns = u128::from(digits(part)?) * u128::from(unit_ns) / u128::from(scale);
        sum_ns = sum_ns.checked_add(u64::try_from(part_ns).ok()?)?;
    }
    (!given.is_empty()).then_some(sum_ns / 1_000_000)
}

/// The start of every key in Redis: what could end up inside or before a hash tag is refused.
pub(super) fn key_prefix(given: &str) -> Result<String, Wrong> {
    let bad = |c: char| c == '{' || c == '}' || c.is_whitespace() || c.is_control();
    if given.len() > 64 {
        return Err("at most 64 bytes: it is part of every key".to_owned());
    }
    match given.chars().find(|c| bad(*c)) {
        Some(_) => Err("no braces, blanks or control characters: they would move keys between \
                        the slots of a cluster; use letters, digits and : - _"
            .to_owned()),
        None => Ok(given.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        assert_eq!(millis("1h30m"), Some(5_400_000));
        assert_eq!(millis("250ms"), Some(250));
        assert_eq!(millis("24h0m0s"), Some(86_400_000));
        assert_eq!(millis("1.5s"), Some(1_500));
        assert_eq!(millis(".5h1.s"), Some(1_801_000));
        assert_eq!(millis("1500us2µs999ns"), Some(1));
        for wrong in ["", "5", "s", "5 s", ".s", "1.5.5s", "-1s", "5d", "9999999999h"] {
            assert_eq!(millis(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_value_out_of_bounds_is_told_the_bounds() {
        assert_eq!(number::<u16>(1, 9)("0"), Err("must be from 1 to 9".to_owned()));
        assert!(duration(1, 1_000)("2s").unwrap_err().contains("from 1ms to 1s"));
        let size = bytes::<usize>(1, 1 << 20);
        assert_eq!(size("64KiB"), Ok(65_536));
        assert!(size("2MiB").is_err());
        assert!(size("99999999999GiB").is_err());
    }

    #[test]
    fn a_key_prefix_that_could_move_keys_between_slots_is_refused() {
        for bad in ["a{b", "a}b", "a b", "a\tb", "a\u{7}"] {
            assert!(key_prefix(bad).is_err(), "{bad:?}");
        }
        assert_eq!(key_prefix("prod:edge-").as_deref(), Ok("prod:edge-"));
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", secret_line("redis://u:hunter2@h:1")), "Ok(SecretText(..))");
        assert_eq!(format!("{:?}", SecretText::from("hunter2")), "SecretText(..)");
    }
}
