//! Which callers may ask which domains, as a setting says it.
//!
//! Not here: certificates and what is done with the names (`wire`).

use super::value_types::{Wrong, text};

/// A domain, and the names of those who may ask it.
pub type DomainGrant = (String, Vec<String>);

/// `domain=name,name; domain=name`: who may ask what; `*` stands for every domain. Empty: nobody is
/// held to anything.
pub(super) fn grants(given: &str) -> Result<Vec<DomainGrant>, Wrong> {
    let wrong = |what: &str| {
        Err(format!(
            "{what}; domain=name,name; domain=name, such as edge=gateway.test,spiffe://a/b"
        ))
    };
    let mut grants: Vec<DomainGrant> = Vec::new();
    for grant in given.split(';').map(str::trim).filter(|grant| !grant.is_empty()) {
        let Some((domain, names)) = grant.split_once('=') else {
            return wrong("a domain without names");
        };
        let domain = text(domain.trim())?;
        let names: Vec<String> =
            names.split(',').map(|name| text(name.trim())).collect::<Result<_, _>>()?;
        if domain.is_empty() || names.iter().any(String::is_empty) {
            return wrong("an empty domain or name");
        }
        if names.iter().any(|name| name.contains('*')) {
            return wrong("names of certificates are compared as they are, `*` is none");
        }
        if grants.iter().any(|(before, _)| *before == domain) {
            return wrong("a domain twice");
        }
        grants.push((domain, names));
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_read_and_half_of_one_is_refused() {
        let read = grants(" edge = a.test, spiffe://m/b?c=d ;*=ops.test;").unwrap();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            read,
            [
                ("edge".to_owned(), names(&["a.test", "spiffe://m/b?c=d"])),
                ("*".to_owned(), names(&["ops.test"])),
            ]
        );
        assert_eq!(grants(""), Ok(Vec::new()));
        for wrong in [
            "edge",
            "edge=",
            "=a",
            "edge=a,",
            "edge=a;edge=b",
            "edge=*.test",
            "e\u{7}=a",
            "e=a\u{7}",
        ] {
            assert!(grants(wrong).is_err(), "{wrong:?}");
        }
    }
}
