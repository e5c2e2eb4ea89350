//! What a request of the debug port asks: `name=value` pairs, with their encoding taken off.
//!
//! Not here: what the names mean (the routes).

/// The pairs of a query, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `name=value&name=value`. A request's head is at most 16 KiB, so this is bounded.
    pub(super) fn read(text: Option<&str>) -> Result<Query, String> {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((name.to_owned(), decoded(value)?))
        };
        let parts = text.unwrap_or_default().split('&').filter(|part| !part.is_empty());
        let pairs = parts.map(pair).collect::<Option<_>>();
        pairs.map(Query).ok_or_else(|| "the query is not percent-encoded UTF-8".to_owned())
    }

    /// The value of a name; `None` where it is absent or empty.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        self.all(name).next().map(str::to_owned).filter(|value| !value.is_empty())
    }

    /// Every value of a name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(held, _)| held == name).map(|(_, value)| value.as_str())
    }

    /// Each of these names at most once, `many` as often as one likes, and no other: a misspelt
    /// `for` would never end.
    pub(super) fn only(&self, names: &[&str], many: &[&str], how: &str) -> Result<(), String> {
        let is_known =
            |name: &String| names.contains(&name.as_str()) || many.contains(&name.as_str());
        let known = self.0.iter().all(|(name, _)| is_known(name));
        let once = names.iter().all(|name| self.all(name).count() < 2);
        if known && once { Ok(()) } else { Err(how.to_owned()) }
    }

    /// A whole number, `default` where it is absent.
    pub(super) fn number(&self, name: &str, default: u64, most: u64) -> Result<u64, String> {
        let Some(text) = self.value(name) else { return Ok(default) };
        match text.parse() {
            Ok(number) if number <= most => Ok(number),
            Ok(_) | Err(_) => Err(format!("{name}= is a whole number up to {most}")),
        }
    }
}

/// Takes percent-encoding off; a plus is a blank, as forms send it.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_with_its_encoding_taken_off() {
        let query = Query::read(Some("domain=edge&descriptor=path%3D%2Fa+b,k=v%25&descriptor=x=y"));
        let query = query.unwrap();
        assert_eq!(query.value("domain").as_deref(), Some("edge"));
        assert_eq!(query.all("descriptor").collect::<Vec<_>>(), ["path=/a b,k=v%", "x=y"]);
        for bad in ["domain=%f", "domain=%ff", "domain=%zz"] {
            assert!(Query::read(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_that_nobody_knows_or_that_stands_twice_is_refused() {
        let only = |text| Query::read(Some(text)).unwrap().only(&["a"], &["b"], "how");
        assert!(only("a=1&b=1&b=2").is_ok());
        assert!(only("a=1&a=2").is_err());
        assert!(only("a=1&c=2").is_err());
    }

    #[test]
    fn a_number_has_its_bound() {
        let number = |text| Query::read(Some(text)).unwrap().number("n", 7, 10);
        assert_eq!((number(""), number("n=10")), (Ok(7), Ok(10)));
        for bad in ["n=11", "n=-1", "n=x", "n=99999999999999999999"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }
}
