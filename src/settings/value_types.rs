//! Types of setting values, and their parsers.
//!
//! A parser's error describes the valid values. The caller adds the name of the setting and the
//! source of the value.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::server_url::{ServerUrl, UrlForms};
use crate::domain::{Verbosity, named_enum, nearest_word};

/// Error message that describes the valid values of a setting.
pub(super) type ValueError = String;

/// Secret text that is hidden in logs, errors and `--print-settings`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Returns the secret in plain text.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Parses the secret as a comma-separated list of `name:value` headers. Returns the name and
    /// value of each header.
    pub fn header_pairs(&self) -> Vec<(String, String)> {
        // The setting's parser has checked the list.
        pairs_parser(':')(&self.0).unwrap_or_default()
    }

    /// Returns whether the secret is empty, that is, not set.
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

/// Returns the error message for a value that is not one of a setting's keywords. Suggests the most
/// similar keyword, if any.
pub(super) fn unknown_word_error(text: &str, words: &[&'static str]) -> ValueError {
    // "no" is one letter from "on".
    let meant = match parse_flag(text) {
        Ok(true) => words.iter().find(|word| ["on", "true"].contains(word)).copied(),
        Ok(false) => words.iter().find(|word| ["off", "none", "false"].contains(word)).copied(),
        Err(_) => nearest_word(text, words.iter().copied()),
    };
    let hint = match meant {
        Some(word) => format!("; did you mean {word:?}?"),
        None => String::new(),
    };
    format!("must be one of: {}{hint}", words.join(", "))
}

/// Returns a parser for keywords in any case, each of which stands for the value at its position.
pub(super) fn keyword_parser<T: Copy>(
    values: &'static [T],
    keywords: &'static [&'static str],
) -> impl Fn(&str) -> Result<T, ValueError> {
    move |input| {
        let at = keywords.iter().position(|keyword| keyword.eq_ignore_ascii_case(input));
        let value = at.and_then(|at| values.get(at));
        value.copied().ok_or_else(|| unknown_word_error(input, keywords))
    }
}

named_enum! {
    /// Setting that turns a feature on or off, or lets other settings decide.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OnOff {
        /// Other settings decide whether the feature is on.
        Auto => "auto",
        /// The feature is on.
        On => "on",
        /// The feature is off.
        Off => "off",
    }
}

named_enum! {
    /// Source from which policies are loaded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PolicySourceKind {
        /// Policies are loaded from files and directories.
        File => "file",
        /// Policies are loaded from a control plane over the state-of-the-world variant of xDS.
        ControlPlane => "grpc_xds_sotw",
    }
}

named_enum! {
    /// Topology of the Redis deployment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RedisType {
        /// Single Redis server.
        Single => "single",
        /// Replicated Redis, whose sentinels report which server is the master.
        Sentinel => "sentinel",
        /// Redis Cluster, sharded over several servers.
        Cluster => "cluster",
    }
}

named_enum! {
    /// Families of rate limit headers that are added to responses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HeaderFamily {
        /// No rate limit headers.
        None => "none",
        /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`, as in the IETF draft.
        RateLimit => "ratelimit",
        /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
        XRateLimit => "x-ratelimit",
        /// Both `RateLimit-*` and `X-RateLimit-*` headers.
        Both => "both",
    }
}

/// Names of log levels, of both logrus and tracing.
pub(super) const LEVEL_NAMES: [&str; 9] =
    ["off", "panic", "fatal", "error", "warning", "warn", "info", "debug", "trace"];

/// Log levels in the order of [`LEVEL_NAMES`].
pub(super) const LEVELS: [Verbosity; 9] = {
    use Verbosity::{Debug, Error, Info, Off, Warn};
    [Off, Error, Error, Error, Warn, Warn, Info, Debug, Debug]
};

/// Returns the text unchanged, or an error if it contains control characters.
pub(super) fn parse_text(text: &str) -> Result<String, ValueError> {
    match text.chars().find(|c| c.is_control()) {
        Some(_) => Err("must not contain control characters".to_owned()),
        None => Ok(text.to_owned()),
    }
}

/// Parses the name of envoyproxy/ratelimit's shared store.
pub(super) fn parse_backend(input: &str) -> Result<(), ValueError> {
    match input.eq_ignore_ascii_case("redis") {
        true => Ok(()),
        false => Err("Redis is the only shared store, because memcached cannot count exactly: unset \
                      BACKEND_TYPE and set REDIS_URL=HOST:PORT; for a single replica, REDIS_URL may \
                      stay unset, and counters are in memory"
            .to_owned()),
    }
}

/// Parses a host name or an IP address. Strips the brackets of an IPv6 address.
pub(super) fn parse_host(input: &str) -> Result<String, ValueError> {
    let bare = input.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(input);
    match bare.is_empty() || bare.contains(|c: char| c.is_whitespace() || "/@?#,".contains(c)) {
        true => Err("must be a host name or an IP address, such as 0.0.0.0 or ::1".to_owned()),
        false => parse_text(bare),
    }
}

/// Forms of addresses that have a host and a port, and nothing else.
const HOST_AND_PORT: UrlForms = UrlForms {
    server: "supported",
    suggested: ["", ""],
    others: &[],
    valid: "HOST:PORT, such as localhost:9090",
    check: |url| match url.login.is_none() && !url.host.is_empty() && url.path.len() < 2 {
        true if url.port.is_some() => Ok(()),
        true => Err("has no port: write HOST:PORT".to_owned()),
        false => Err("must be HOST:PORT and nothing else".to_owned()),
    },
    advice_on: |_| None,
};

fn parse_host_and_port(input: &str, forms: &UrlForms) -> Result<(String, u16), ValueError> {
    ServerUrl::parse(input, forms).map(|url| (url.host, url.port.unwrap_or_default()))
}

/// Parses the `host:port` of a listening socket. An empty host means all IPv4 addresses
/// (`0.0.0.0`).
pub(super) fn parse_address(input: &str) -> Result<(String, u16), ValueError> {
    let all = if input.starts_with(':') { "0.0.0.0" } else { "" };
    parse_host_and_port(&format!("{all}{input}"), &HOST_AND_PORT)
}

/// Parses the address of a gRPC server to which the process connects. As in other gRPC clients, it may
/// have the resolver `dns`, which Tidegate uses in any case.
pub(super) fn parse_server(input: &str) -> Result<(String, u16), ValueError> {
    const FORMS: UrlForms = UrlForms {
        valid: "HOST:PORT or dns:///HOST:PORT, such as localhost:18000; for TLS, add --xds-tls",
        ..HOST_AND_PORT
    };
    let is_target = |rest: &&str| rest.contains(':') && !rest.starts_with('/');
    let in_target = ["dns:///", "passthrough:///", "dns:"]
        .iter()
        .find_map(|resolver| input.strip_prefix(resolver).filter(is_target));
    parse_host_and_port(in_target.unwrap_or(input), &FORMS)
}

/// Maximum number of entries of `--peers`, and of addresses that they have altogether.
pub const PEERS_MAX: usize = 64;

/// Parses a list of debug ports, separated by commas.
pub(super) fn parse_peers(input: &str) -> Result<Vec<(String, u16)>, ValueError> {
    let entries = input.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let peers: Vec<_> = entries
        .map(|entry| parse_host_and_port(entry, &HOST_AND_PORT))
        .collect::<Result<_, _>>()?;
    let too_many = || format!("has more than {PEERS_MAX} entries");
    (peers.len() <= PEERS_MAX).then_some(peers).ok_or_else(too_many)
}

/// Parses the URL of an OTLP collector. Returns an empty text for an empty text.
pub(super) fn parse_otlp_url(input: &str) -> Result<String, ValueError> {
    const FORMS: UrlForms = UrlForms {
        server: "OTLP",
        suggested: ["http", "https"],
        others: &[],
        valid: "http://HOST:PORT, or https://HOST:PORT for TLS; OTEL_EXPORTER_OTLP_HEADERS has \
                credentials",
        check: |url| match url.login.is_none() {
            true => Ok(()),
            false => Err("cannot have a user name or password: set \
                          OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic%20…"
                .to_owned()),
        },
        advice_on: |_| None,
    };
    match input.is_empty() {
        true => Ok(String::new()),
        false => ServerUrl::parse(&parse_text(input)?, &FORMS).map(|_| input.to_owned()),
    }
}

/// Maximum number of name-value pairs that a setting can list.
const LIST_PAIRS_MAX: usize = 64;

/// Returns a parser for a comma-separated list of name-value pairs. The parser accepts empty text
/// as an empty list.
pub(super) fn pairs_parser(
    separator: char,
) -> impl Fn(&str) -> Result<Vec<(String, String)>, ValueError> {
    move |input| {
        let items = input.split(',').map(str::trim).filter(|item| !item.is_empty());
        let pairs = items.map(|item| {
            let (name, value) = item.split_once(separator)?;
            let (name, value) = (name.trim(), value.trim());
            let is_valid = !name.is_empty() && !item.chars().any(char::is_control);
            is_valid.then(|| (name.to_owned(), value.to_owned()))
        });
        let pairs: Option<Vec<_>> = pairs.collect();
        pairs.filter(|pairs| pairs.len() <= LIST_PAIRS_MAX).ok_or_else(|| {
            format!("must be name{separator}value, separated by commas, at most {LIST_PAIRS_MAX}")
        })
    }
}

/// Validates a comma-separated list of `name:value` headers, and returns the list as a secret.
pub(super) fn parse_header_list(input: &str) -> Result<SecretText, ValueError> {
    let is_name = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            && !name.to_ascii_lowercase().ends_with("-bin")
    };
    let is_value = |value: &str| value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match pairs_parser(':')(input)?.iter().all(|(name, value)| is_name(name) && is_value(value)) {
        true => Ok(SecretText::from(input)),
        false => Err("must be name:value in ASCII, separated by commas".to_owned()),
    }
}

/// Parses a secret. Any text is valid.
pub(super) fn parse_secret(input: &str) -> Result<SecretText, ValueError> {
    Ok(SecretText::from(input))
}

/// Parses a secret that must not contain control characters.
pub(super) fn parse_secret_line(input: &str) -> Result<SecretText, ValueError> {
    parse_text(input).map(|text| SecretText::from(text.as_str()))
}

/// Parses a path. Returns `None` for empty text.
pub(super) fn parse_path(input: &str) -> Result<Option<PathBuf>, ValueError> {
    Ok((!input.is_empty()).then(|| PathBuf::from(input)))
}

/// Parses a comma-separated list of paths. Returns an empty list for empty text.
pub(super) fn parse_paths(input: &str) -> Result<Vec<PathBuf>, ValueError> {
    let items = input.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| parse_text(item).map(PathBuf::from)).collect()
}

/// Parses a boolean in the format of Go and envoyproxy/ratelimit (`1`, `t`, `TRUE`) or of YAML
/// (`yes`). Ignores case.
pub(super) fn parse_flag(input: &str) -> Result<bool, ValueError> {
    match input.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" | "on" => Ok(true),
        "0" | "f" | "false" | "n" | "no" | "off" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// Parses `auto`, `on`, `off`, or a boolean.
pub(super) fn parse_on_off(input: &str) -> Result<OnOff, ValueError> {
    keyword_parser(&OnOff::ALL, &OnOff::NAMES)(input).or_else(|expected| match parse_flag(input) {
        Ok(true) => Ok(OnOff::On),
        Ok(false) => Ok(OnOff::Off),
        Err(_) => Err(expected),
    })
}

/// Returns a parser for whole numbers from `min` to `max`.
pub(super) fn number_parser<T: TryFrom<u64>>(
    min: u64,
    max: u64,
) -> impl Fn(&str) -> Result<T, ValueError> {
    move |input| {
        let number = input.replace('_', "").parse().ok();
        let expected = |error| match number {
            Some(_) => error,
            None => format!("{error}, a whole number"),
        };
        check_bounds(number, min, max, &min, &max).map_err(expected)
    }
}

/// Parses a number of replicas. Returns `None` for empty text.
pub(super) fn parse_replicas(input: &str) -> Result<Option<u32>, ValueError> {
    if input.is_empty() { Ok(None) } else { number_parser(1, 10_000)(input).map(Some) }
}

/// Parses a decimal fraction from 0 to 1.
pub(super) fn parse_ratio(input: &str) -> Result<f64, ValueError> {
    match input.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("must be a number from 0 to 1, such as 0.8".to_owned()),
    }
}

/// Duration that a message about a malformed one shows, if the setting accepts it.
const EXAMPLE_MS: u64 = 5_000;

/// Returns a parser for durations such as `250ms`, `5s` or `1h30m`, from `min_ms` to `max_ms`.
pub(super) fn duration_parser(
    min_ms: u64,
    max_ms: u64,
) -> impl Fn(&str) -> Result<Duration, ValueError> {
    move |input| {
        let text = |millis| {
            let duration = jiff::SignedDuration::from_millis_i128(i128::from(millis));
            format!("{duration:#}")
        };
        let example = EXAMPLE_MS.clamp(min_ms, max_ms);
        check_bounds(parse_millis(input), min_ms, max_ms, &text(min_ms), &text(max_ms))
            .map(Duration::from_millis)
            .map_err(|error| {
                let with_unit = ["s", "ms"].map(|unit| format!("{input}{unit}"));
                let valid = with_unit.iter().find(|text| {
                    input.parse::<u64>().is_ok()
                        && check_bounds::<u64>(parse_millis(text), min_ms, max_ms, &"", &"").is_ok()
                });
                let hint =
                    valid.map_or_else(String::new, |text| format!("; did you mean {text:?}?"));
                format!("{error}, with a unit, such as {}{hint}", text(example))
            })
    }
}

/// Returns a parser for durations from `min_ms` to `max_ms`. A number without a unit means
/// milliseconds, as in OpenTelemetry's environment variables.
pub(super) fn duration_or_millis_parser(
    min_ms: u64,
    max_ms: u64,
) -> impl Fn(&str) -> Result<Duration, ValueError> {
    let parse = duration_parser(min_ms, max_ms);
    move |input| match input.bytes().all(|byte| byte.is_ascii_digit()) {
        true => parse(&format!("{input}ms")),
        false => parse(input),
    }
}

/// Parses the timeout of a call, up to a minute. A number without a unit means milliseconds.
pub(crate) fn parse_timeout(input: &str) -> Result<Duration, ValueError> {
    duration_or_millis_parser(1, 60_000)(input)
}

/// Parses a time that has passed, up to 100 years, such as `0s` or `10s`.
pub(crate) fn parse_elapsed(input: &str) -> Result<Duration, ValueError> {
    duration_parser(0, 100 * 365 * 86_400_000)(input)
}

/// Parses the time for which a change is in force, up to 30 days, as whole seconds. A number without a
/// unit means seconds.
pub(crate) fn parse_lifetime(input: &str) -> Result<Duration, ValueError> {
    let unit = if input.bytes().all(|byte| byte.is_ascii_digit()) { "s" } else { "" };
    duration_parser(1_000, 30 * 86_400_000)(&format!("{input}{unit}"))
}

/// Returns a parser for sizes such as `65536`, `64KiB` or `16MiB`, from `min` to `max` bytes.
pub(super) fn size_parser<T: TryFrom<u64>>(
    min: u64,
    max: u64,
) -> impl Fn(&str) -> Result<T, ValueError> {
    move |input| {
        let digits = input.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(input.len());
        let (number, unit) = input.split_at(digits);
        let factor = match unit.trim() {
            "" | "B" => Some(1),
            "KiB" | "Ki" | "K" => Some(1 << 10),
            "MiB" | "Mi" | "M" => Some(1 << 20),
            "GiB" | "Gi" | "G" => Some(1 << 30),
            _ => None,
        };
        let number: Option<u64> = number.replace('_', "").parse().ok();
        let size = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        check_bounds(size, min, max, &min, &max)
            .map_err(|error| format!("{error} bytes; units are KiB, MiB, GiB"))
    }
}

fn check_bounds<T: TryFrom<u64>>(
    value: Option<u64>,
    min: u64,
    max: u64,
    min_text: &dyn fmt::Display,
    max_text: &dyn fmt::Display,
) -> Result<T, ValueError> {
    value
        .filter(|value| (min..=max).contains(value))
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| format!("must be from {min_text} to {max_text}"))
}

/// Parses a duration such as `1h30m`, as Go prints it, or `0`, and rounds it down to whole
/// milliseconds. Returns `None` if the text is malformed or negative.
fn parse_millis(input: &str) -> Option<u64> {
    if input == "0" {
        return Some(0);
    }
    let duration: jiff::SignedDuration = input.parse().ok()?;
    u64::try_from(duration.as_millis()).ok()
}

/// Parses the prefix of Redis keys. Rejects a prefix of more than 64 bytes and a prefix that
/// contains whitespace, control characters, or braces. Braces could change the hash tag of a key.
pub(super) fn parse_key_prefix(input: &str) -> Result<String, ValueError> {
    let bad = |c: char| c == '{' || c == '}' || c.is_whitespace() || c.is_control();
    if input.len() > 64 {
        return Err("must have at most 64 bytes: it is part of every key".to_owned());
    }
    match input.chars().find(|c| bad(*c)) {
        Some(_) => Err("must not contain braces, blanks or control characters, which would move \
                        keys to other slots of a cluster; use letters, digits and : - _"
            .to_owned()),
        None => Ok(input.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_format_of_go() {
        assert_eq!(parse_millis("1h30m"), Some(5_400_000));
        assert_eq!(parse_millis("250ms"), Some(250));
        assert_eq!(parse_millis("24h0m0s"), Some(86_400_000));
        assert_eq!(parse_millis("1.5s"), Some(1_500));
        assert_eq!(parse_millis("1501us999ns"), Some(1));
        assert_eq!(parse_millis("1ms2µs3ns"), Some(1));
        for bad in ["", "5", "s", ".s", "1.5.5s", "-1s", "5d", "9999999999999h"] {
            assert_eq!(parse_millis(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn peers_are_at_most_64_entries_with_a_port() {
        let entry = |host: &str| (host.to_owned(), 6_070);
        let parsed = parse_peers("tidegate-headless:6070, [::1]:6070,");
        assert_eq!(parsed, Ok(vec![entry("tidegate-headless"), entry("::1")]));
        assert_eq!(parse_peers(""), Ok(Vec::new()));
        for bad in ["a", "http://a:1", "a:1/x", "u:p@a:1", "a:99999"] {
            assert!(parse_peers(bad).is_err(), "{bad}");
        }
        let many = |count| "a:1,".repeat(count);
        assert!(parse_peers(&many(PEERS_MAX)).is_ok());
        assert!(parse_peers(&many(PEERS_MAX + 1)).is_err());
    }

    #[test]
    fn an_error_names_the_bounds() {
        assert_eq!(number_parser::<u16>(1, 9)("0"), Err("must be from 1 to 9".to_owned()));
        assert!(duration_parser(1, 1_000)("2s").unwrap_err().contains("from 1ms to 1s"));
        let size = size_parser::<usize>(1, 1 << 20);
        assert_eq!(size("64KiB"), Ok(65_536));
        assert!(size("2MiB").is_err());
        assert!(size("99999999999GiB").is_err());
    }

    #[test]
    fn a_key_prefix_that_could_move_keys_between_slots_is_rejected() {
        for bad in ["a{b", "a}b", "a b", "a\tb", "a\u{7}"] {
            assert!(parse_key_prefix(bad).is_err(), "{bad:?}");
        }
        assert_eq!(parse_key_prefix("prod:edge-").as_deref(), Ok("prod:edge-"));
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(
            format!("{:?}", parse_secret_line("redis://u:hunter2@h:1")),
            "Ok(SecretText(..))"
        );
        assert_eq!(format!("{:?}", SecretText::from("hunter2")), "SecretText(..)");
    }

    #[test]
    fn bounds_are_inclusive_and_units_of_size_are_binary() {
        let size = size_parser::<u64>(1_024, 3 << 30);
        assert_eq!((size("1K"), size("1_024B")), (Ok(1 << 10), Ok(1 << 10)));
        assert_eq!((size("2Mi"), size("3GiB")), (Ok(2 << 20), Ok(3 << 30)));
        assert!(size("1023").is_err() && size("3221225473").is_err());
        let number = number_parser::<u32>(2, 9);
        assert_eq!((number("2"), number("9")), (Ok(2), Ok(9)));
        assert!(number("1").is_err() && number("10").is_err());
        assert_eq!((parse_ratio("0"), parse_ratio("1")), (Ok(0.0), Ok(1.0)));
        for bad in ["-0.1", "1.1", "NaN", "80%"] {
            assert!(parse_ratio(bad).is_err(), "{bad}");
        }
        assert!(parse_key_prefix(&"x".repeat(64)).is_ok());
        assert!(parse_key_prefix(&"x".repeat(65)).is_err());
    }

    #[test]
    fn headers_that_cannot_be_sent_are_rejected() {
        assert!(parse_header_list("x-tenant:blue, y:1:2").is_ok());
        for bad in ["x-trace-bin:1", "X-BIN:1", "x y:1", "x:\u{e9}", "x:\u{7f}", ":1", "x"] {
            assert!(parse_header_list(bad).is_err(), "{bad:?}");
        }
        let many = |count| vec!["x:1"; count].join(",");
        assert!(parse_header_list(&many(64)).is_ok() && parse_header_list(&many(65)).is_err());
    }

    #[test]
    fn an_address_has_a_host_and_a_port_and_may_be_a_target_of_grpc() {
        let of = |host: &str, port| Ok((host.to_owned(), port));
        for (text, parsed) in [
            ("h:1", of("h", 1)),
            ("[::1]:1", of("::1", 1)),
            ("dns:///h:1", of("h", 1)),
            ("dns:h:1", of("h", 1)),
            ("passthrough:///10.0.0.1:1", of("10.0.0.1", 1)),
            ("dns:1", of("dns", 1)),
        ] {
            assert_eq!(parse_server(text), parsed, "{text}");
        }
        for (bad, part) in [
            ("h", "has no port"),
            (":1", "write HOST:PORT or dns:///HOST:PORT"),
            ("dns:///h", "dns:// is not supported. Write HOST:PORT or dns:///HOST:PORT"),
            ("dns://8.8.8.8/h:1", "dns:// is not supported."),
            ("http://h:1", "http:// is not supported; did you mean h:1? Write HOST:PORT"),
            ("https://h:1", "for TLS, add --xds-tls"),
            ("unix:///run/xds", "unix:// is not supported."),
            ("xds:///h", "xds:// is not supported."),
            ("h:1/x", "must be HOST:PORT and nothing else"),
            ("u:p@h:1", "must be HOST:PORT and nothing else"),
            ("h:1?x=y", "a query (`?…`) is not supported"),
        ] {
            let error = parse_server(bad).unwrap_err();
            assert!(error.contains(part), "{bad}: {error}");
        }
        assert_eq!(parse_address(":9090"), of("0.0.0.0", 9_090));
        assert_eq!(parse_address("[::]:9090"), of("::", 9_090));
        for bad in ["9090x", "h", "http://h:1", "u:p@h:1", ":"] {
            assert!(parse_address(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_host("[::1]").as_deref(), Ok("::1"));
        for bad in ["", "a b", "http://h", "u@h", "h/x", "a,b"] {
            assert!(parse_host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_address_of_a_collector_has_a_scheme_and_no_credentials() {
        for good in ["", "http://c:4317", "https://c/otlp", "http://[::1]:4318/"] {
            assert_eq!(parse_otlp_url(good).as_deref(), Ok(good));
        }
        for (bad, part) in [
            ("c:4317", "has no scheme; did you mean http://c:4317?"),
            ("localhost", "has no scheme; did you mean http://localhost?"),
            ("c.test:443", "has no scheme; did you mean https://c.test:443?"),
            ("grpc://c:4317", "grpc:// is not OTLP; did you mean http://c:4317?"),
            ("grpcs://c:4317", "did you mean https://c:4317?"),
            ("http://u:p@c:4317", "cannot have a user name or password"),
            ("https://c?token=x", "a query (`?…`) is not supported"),
            ("unix:///run/otlp", "unix:// is not OTLP"),
            ("http://", "is not an address: write http://HOST:PORT"),
        ] {
            let error = parse_otlp_url(bad).unwrap_err();
            assert!(error.contains(part), "{bad}: {error}");
        }
        let secret = "/run/s?pass=@Zq7Xk@40961://vWp9y\\28657,";
        let error = parse_otlp_url(secret).unwrap_err();
        assert!(!error.contains("vWp9y"), "{error}");
    }
}
