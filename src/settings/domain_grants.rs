//! Parser for `--grpc-client-domains`, which authorizes callers for domains.
//!
//! `server::authz` enforces the grants with the callers' client certificates.

use super::value_types::{ValueError, parse_text};

/// Pair of a domain and the certificate names of the callers that may use it.
pub type DomainGrant = (String, Vec<String>);

/// Parses grants of the form `domain=name,name; domain=name`. The domain `*` means all domains.
/// Empty text means no grants, so that all callers may use all domains. Returns an error if the
/// text is malformed.
pub(super) fn parse_grants(input: &str) -> Result<Vec<DomainGrant>, ValueError> {
    let error = |reason: &str| {
        Err(format!(
            "{reason}; write domain=name,name; domain=name, such as edge=gateway.test,spiffe://a/b"
        ))
    };
    let mut grants: Vec<DomainGrant> = Vec::new();
    for grant in input.split(';').map(str::trim).filter(|grant| !grant.is_empty()) {
        let Some((domain, names)) = grant.split_once('=') else {
            return error("a domain has no names");
        };
        let domain = parse_text(domain.trim())?;
        let names: Vec<String> =
            names.split(',').map(|name| parse_text(name.trim())).collect::<Result<_, _>>()?;
        if domain.is_empty() || names.iter().any(String::is_empty) {
            return error("a domain or name is empty");
        }
        if names.iter().any(|name| name.contains('*')) {
            return error("`*` is not a name: certificate names must match exactly");
        }
        if grants.iter().any(|(before, _)| *before == domain) {
            return error("a domain occurs twice");
        }
        grants.push((domain, names));
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_parsed_and_incomplete_ones_rejected() {
        let parsed = parse_grants(" edge = a.test, spiffe://m/b?c=d ;*=ops.test;").unwrap();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            parsed,
            [
                ("edge".to_owned(), names(&["a.test", "spiffe://m/b?c=d"])),
                ("*".to_owned(), names(&["ops.test"])),
            ]
        );
        assert_eq!(parse_grants(""), Ok(Vec::new()));
        for bad in [
            "edge",
            "edge=",
            "=a",
            "edge=a,",
            "edge=a;edge=b",
            "edge=*.test",
            "e\u{7}=a",
            "e=a\u{7}",
        ] {
            assert!(parse_grants(bad).is_err(), "{bad:?}");
        }
    }
}
