//! Parser for the query strings of the HTTP ports.

use std::borrow::Cow;

use super::backend::{SampleQuery, Scope};

/// Maximum value of the `hits` parameter, because `hits_addend` is a 32-bit field in Envoy's
/// protocol.
const HITS_MAX: u64 = u32::MAX as u64;

/// Decoded query parameters of a request: names and values in their original order.
pub(super) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    /// Parses `name=value&name=value`. Request headers are limited to 16 KiB, which also limits the
    /// number of parameters.
    ///
    /// # Errors
    ///
    /// Returns `usage` as the error message if a name is neither in `single` nor in `repeated`, or
    /// if a name in `single` occurs twice. Unknown names are not ignored: if `for`, the duration
    /// of an override, were misspelled, the override would never expire. Also returns an error if a
    /// value is not valid UTF-8.
    pub(super) fn parse(
        query: Option<&'a str>,
        single: &[&str],
        repeated: &[&str],
        usage: &str,
    ) -> Result<Query<'a>, String> {
        let query =
            Query(url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()).collect());
        let known = |name: &&str| single.contains(name) || repeated.contains(name);
        let all_known = query.0.iter().all(|(name, _)| known(&&**name));
        let none_repeated = single.iter().all(|name| query.values(name).count() < 2);
        // The decoder replaces invalid UTF-8, so the value would name a different counter.
        let is_utf8 = !query.0.iter().any(|(_, value)| value.contains(char::REPLACEMENT_CHARACTER));
        match (all_known && none_repeated, is_utf8) {
            (true, true) => Ok(query),
            (true, false) => Err("the query is not UTF-8".to_owned()),
            (false, _) => Err(usage.to_owned()),
        }
    }

    /// Returns the value of a parameter, or `None` if the parameter is absent or empty.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.values(name).next().filter(|value| !value.is_empty())
    }

    /// Returns all values of a parameter that may be repeated.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| &**value)
    }

    /// Parses the parameter `scope`: `all`, the default, or `replica`.
    pub(super) fn parse_scope(&self) -> Result<Scope, String> {
        match self.value("scope") {
            None | Some("all") => Ok(Scope::All),
            Some("replica") => Ok(Scope::Replica),
            Some(_) => Err("scope= must be all or replica".to_owned()),
        }
    }

    /// Parses a parameter as an integer from 0 to `max`, or returns `default` if the parameter is
    /// absent or empty.
    pub(super) fn parse_number(&self, name: &str, default: u64, max: u64) -> Result<u64, String> {
        let Some(text) = self.value(name) else { return Ok(default) };
        match text.parse() {
            Ok(number) if number <= max => Ok(number),
            Ok(_) | Err(_) => Err(format!("{name}= must be a whole number up to {max}")),
        }
    }
}

/// Parses the query of `/explain` or `/try`. `single` are the names of parameters other than
/// `descriptor`. Without `hits`, the request has one hit.
pub(super) fn parse_sample(
    query: Option<&str>,
    single: &[&str],
    usage: &str,
) -> Result<SampleQuery, String> {
    let query = Query::parse(query, single, &["descriptor"], usage)?;
    let hits = query.parse_number("hits", 1, HITS_MAX)?;
    let descriptors: Vec<String> = query.values("descriptor").map(str::to_owned).collect();
    match query.value("domain") {
        Some(domain) if !descriptors.is_empty() => {
            Ok(SampleQuery { domain: domain.to_owned(), descriptors, hits })
        }
        _ => Err(usage.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Query<'_>, String> {
        Query::parse(Some(query), &["domain", "n"], &["descriptor"], "usage")
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
    fn an_incomplete_sample_gets_the_usage() {
        let explain = |query| parse_sample(Some(query), &["domain"], "usage");
        for bad in ["", "domain=d", "descriptor=k=v", "x=1", "domain=d&domain=d"] {
            assert!(explain(bad).is_err(), "{bad}");
        }
        let query = explain("domain=d&descriptor=a=b&descriptor=c=d").unwrap();
        assert_eq!((query.descriptors, query.hits), (vec!["a=b".into(), "c=d".into()], 1));
        let tried = |query| parse_sample(Some(query), &["domain", "hits"], "usage");
        let query = tried("domain=d&descriptor=a=b&descriptor=c=d&hits=3").unwrap();
        assert_eq!((query.descriptors.len(), query.hits), (2, 3));
        for bad in ["domain=d", "descriptor=a", "domain=d&descriptor=a&hits=4294967296"] {
            assert!(tried(bad).is_err(), "{bad}");
        }
    }
}
