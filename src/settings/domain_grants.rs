//! Parser for `--grpc-client-domains`, which authorizes callers for domains.
//!
//! `server::authz` enforces the grants with the callers' client certificates.

use super::value_types::{ValueError, parse_text};
use crate::domain::{DomainGrant, Permissions};

/// Parses grants of the form `domain=name:permission,permission,name; domain=name`. A permission
/// belongs to the name before it. The domain `*` means all domains. Empty text means no grants, so
/// that all callers may use all domains. Returns an error if the text is malformed.
pub(super) fn parse_grants(input: &str) -> Result<Vec<DomainGrant>, ValueError> {
    let error = |reason: &str| {
        Err(format!(
            "{reason}; write domain=name,name:permission; domain=name, such as \
             edge=gateway.test,spiffe://a/b:refund,limits"
        ))
    };
    let mut grants: Vec<DomainGrant> = Vec::new();
    for grant in input.split(';').map(str::trim).filter(|grant| !grant.is_empty()) {
        let Some((domain, names)) = grant.split_once('=') else {
            return error("a domain must have at least one name");
        };
        let domain = parse_text(domain.trim())?;
        if grants.iter().any(|before| before.domain == domain) {
            return error("a domain occurs twice");
        }
        // Whether a permission may follow: the name before it has one.
        let mut has_permissions = false;
        for part in names.split(',').map(str::trim) {
            if let (true, Some(more), Some(grant)) =
                (has_permissions, parse_permission(part), grants.last_mut())
            {
                grant.permissions = grant.permissions.union(more);
                continue;
            }
            let (name, permissions) = match split_permission(part) {
                None => (part, Permissions::NONE),
                Some((name, word)) => match parse_permission(word) {
                    Some(permission) => (name, permission),
                    None => return error("a permission must be one of refund, peek, limits"),
                },
            };
            if domain.is_empty() || name.is_empty() {
                return error("domains and names must not be empty");
            }
            if name.contains('*') {
                return error("`*` is not a name: certificate names must match exactly");
            }
            has_permissions = permissions != Permissions::NONE;
            let (domain, caller) = (domain.clone(), parse_text(name)?);
            grants.push(DomainGrant { domain, caller, permissions });
        }
    }
    Ok(grants)
}

/// Splits `name:permission`. Returns `None` if the text has no permission. A colon in front of a
/// `/` or of a port number belongs to a URI.
fn split_permission(text: &str) -> Option<(&str, &str)> {
    let (name, word) = text.rsplit_once(':')?;
    let is_of_uri = word.contains('/') || word.starts_with(|c: char| c.is_ascii_digit());
    (!is_of_uri).then_some((name, word))
}

fn parse_permission(word: &str) -> Option<Permissions> {
    match word {
        "refund" => Some(Permissions { refund: true, ..Permissions::NONE }),
        "peek" => Some(Permissions { peek: true, ..Permissions::NONE }),
        "limits" => Some(Permissions { limits: true, ..Permissions::NONE }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_parsed_and_incomplete_ones_rejected() {
        let parsed = parse_grants(" edge = a.test, spiffe://m/b?c=d ;*=ops.test;").unwrap();
        let grant = |domain: &str, name: &str, permissions| DomainGrant {
            domain: domain.to_owned(),
            caller: name.to_owned(),
            permissions,
        };
        let none = Permissions::NONE;
        assert_eq!(
            parsed,
            [
                grant("edge", "a.test", none),
                grant("edge", "spiffe://m/b?c=d", none),
                grant("*", "ops.test", none),
            ]
        );
        let parsed = parse_grants("e=spiffe://m:8/b:refund,limits,a.test:peek,b.test").unwrap();
        let refund = Permissions { peek: false, ..Permissions::ALL };
        let peek = Permissions { peek: true, ..none };
        assert_eq!(
            parsed,
            [
                grant("e", "spiffe://m:8/b", refund),
                grant("e", "a.test", peek),
                grant("e", "b.test", none),
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
            "edge=a.test:refnd",
            "edge=:refund",
            "edge=spiffe://a/b:",
            "e\u{7}=a",
            "e=a\u{7}",
        ] {
            assert!(parse_grants(bad).is_err(), "{bad:?}");
        }
    }
}
