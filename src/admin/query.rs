//! Parser for the query strings of the HTTP ports.

use std::time::Duration;

use super::backend::Scope;

/// Maximum lifetime of an operator's change, in seconds: 30 days. A change that must last longer
/// belongs in the policy.
const LIFETIME_SECONDS_MAX: u64 = 30 * 86_400;

/// Query parameters that a route accepts.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Names of parameters that may occur once.
    pub once: &'static [&'static str],
    /// Names of parameters that may be repeated.
    pub repeated: &'static [&'static str],
    /// Error message for a request with other parameters.
    pub usage: &'static str,
}

/// Decoded query parameters of a request: names and values in their original order.
#[derive(Debug)]
pub struct Query {
    values: Vec<(String, String)>,
    /// Error message for a request that lacks a parameter.
    pub usage: &'static str,
}

impl Query {
    /// Parses `name=value&name=value`. Request headers are limited to 16 KiB, which also limits the
    /// number of parameters.
    ///
    /// # Errors
    ///
    /// Returns the usage as the error message if a name is not in `parameters`, or if a name that
    /// must not be repeated occurs twice. Unknown names are not ignored: if `for`, the duration of
    /// an override, were misspelled, the override would never expire. Also returns an error if a
    /// value is not valid UTF-8.
    pub fn parse(query: Option<&str>, parameters: Parameters) -> Result<Query, String> {
        let Parameters { once, repeated, usage } = parameters;
        let values = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let query = Query { values: values.into_owned().collect(), usage };
        let known = |name: &str| once.contains(&name) || repeated.contains(&name);
        let all_known = query.values.iter().all(|(name, _)| known(name));
        if !all_known || once.iter().any(|name| query.values(name).count() > 1) {
            return Err(usage.to_owned());
        }
        // The decoder replaces invalid UTF-8, so the value would name a different counter.
        match query.values.iter().any(|(_, value)| value.contains(char::REPLACEMENT_CHARACTER)) {
            true => Err("the query is not UTF-8".to_owned()),
            false => Ok(query),
        }
    }

    /// Returns an error if a parameter is empty. For changes: if empty values were treated as absent,
    /// `for=` would set an override that never expires, and `target=` would remove every override.
    pub fn without_empty(self) -> Result<Query, String> {
        match self.values.iter().find(|(_, value)| value.is_empty()) {
            Some((name, _)) => Err(format!("{name}= is empty; {}", self.usage)),
            None => Ok(self),
        }
    }

    /// Returns the value of a parameter, or `None` if the parameter is absent or empty.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values(name).next().filter(|value| !value.is_empty())
    }

    /// Returns the value of a parameter, or the usage as an error if the parameter is absent or empty.
    pub fn required(&self, name: &str) -> Result<&str, String> {
        self.value(name).ok_or_else(|| self.usage.to_owned())
    }

    /// Returns all values of a parameter that may be repeated.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.pairs().filter(move |(given, _)| *given == name).map(|(_, value)| value)
    }

    /// Returns the names and values of all parameters.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Parses the parameter `scope`: `all`, the default, or `replica`.
    pub fn parse_scope(&self) -> Result<Scope, String> {
        match self.value("scope") {
            None | Some("all") => Ok(Scope::All),
            Some("replica") => Ok(Scope::Replica),
            Some(_) => Err("scope= must be all or replica".to_owned()),
        }
    }

    /// Parses a parameter as an integer from 0 to `max`, or returns `default` if the parameter is
    /// absent or empty.
    pub fn parse_number(&self, name: &str, default: u64, max: u64) -> Result<u64, String> {
        let Some(text) = self.value(name) else { return Ok(default) };
        match text.parse() {
            Ok(number) if number <= max => Ok(number),
            Ok(_) | Err(_) => Err(format!("{name}= must be a whole number up to {max}")),
        }
    }

    /// Parses the parameter `for`: the time until a change ends, in seconds. Returns `None` if it is
    /// absent: the change lasts until an operator or the process ends it.
    pub fn parse_lifetime(&self) -> Result<Option<Duration>, String> {
        let Some(text) = self.value("for") else { return Ok(None) };
        match text.trim_end_matches('s').parse() {
            Ok(seconds @ 1..=LIFETIME_SECONDS_MAX) => Ok(Some(Duration::from_secs(seconds))),
            Ok(_) | Err(_) => Err(format!("for= must be 1 to {LIFETIME_SECONDS_MAX} seconds")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Query, String> {
        let (once, repeated) = (&["domain", "n", "scope", "for"], &["descriptor"]);
        Query::parse(Some(query), Parameters { once, repeated, usage: "usage" })
    }

    #[test]
    fn parameters_are_percent_decoded() {
        let query = parse("domain=edge&descriptor=path%3D%2Fa+b,k=v%25&descriptor=x=y").unwrap();
        assert_eq!(query.value("domain"), Some("edge"));
        assert_eq!(query.values("descriptor").collect::<Vec<_>>(), ["path=/a b,k=v%", "x=y"]);
        assert!(parse("domain=%ff").is_err());
    }

    #[test]
    fn unknown_and_repeated_parameters_are_rejected() {
        assert!(parse("domain=1&descriptor=1&descriptor=2").is_ok());
        assert!(parse("domain=1&domain=2").is_err());
        assert!(parse("domain=1&fro=2").is_err());
    }

    #[test]
    fn a_number_has_a_default_and_a_maximum() {
        let number = |text| parse(text).unwrap().parse_number("n", 7, 10);
        assert_eq!((number(""), number("n=10")), (Ok(7), Ok(10)));
        for bad in ["n=11", "n=-1", "n=x", "n=99999999999999999999"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_scope_is_a_word_and_all_replicas_by_default() {
        let scope = |text| parse(text).unwrap().parse_scope();
        assert_eq!((scope(""), scope("scope=replica")), (Ok(Scope::All), Ok(Scope::Replica)));
        assert!(scope("scope=10.0.0.1:6070").is_err());
    }

    #[test]
    fn a_change_lasts_as_long_as_requested_and_at_most_thirty_days() {
        let lifetime = |text| parse(text).unwrap().parse_lifetime();
        let seconds = |seconds| Ok(Some(Duration::from_secs(seconds)));
        assert_eq!(
            (lifetime("for=2592000"), lifetime("for=60s")),
            (seconds(2_592_000), seconds(60))
        );
        assert_eq!(lifetime(""), Ok(None));
        for bad in ["for=2592001", "for=0", "for=-1"] {
            assert!(lifetime(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_empty_parameter_of_a_change_is_an_error_and_not_an_absent_one() {
        let error = parse("domain=a&n=").unwrap().without_empty().unwrap_err();
        assert_eq!(error, "n= is empty; usage");
        assert!(parse("domain=a").unwrap().without_empty().is_ok());
    }
}
