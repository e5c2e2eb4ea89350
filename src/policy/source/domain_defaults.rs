//! What the messages of a control plane cannot say: defaults for a domain and its limits. They come
//! from a file of the operator; the `metadata` of a descriptor overrides them.
//!
//! Not here: writing them into a resource (`resource`), their meaning (`compile`).

use serde_json::{Map, Value as Json};

use crate::policy::syntax::keywords::{self, Key};

/// Keys that apply to the whole domain.
pub(crate) const DOMAIN_KEYS: [Key; 5] = [
    keywords::ACCOUNTING,
    keywords::HASH_TAG,
    keywords::QUOTA_GROUP,
    keywords::DOMAIN_FAILURE,
    keywords::DOMAIN_BODY,
];

/// Keys that apply to each limit of the domain.
pub(crate) const LIMIT_KEYS: [Key; 3] = [keywords::ALGORITHM, keywords::BURST, keywords::CHARGE];

/// Keys of a domain that the `metadata` of its first-level descriptors can set.
pub(crate) const DOMAIN_METADATA_KEYS: [Key; 2] = [keywords::ACCOUNTING, keywords::HASH_TAG];

/// Keys of a limit that the `metadata` of its descriptor can set.
pub(crate) const LIMIT_METADATA_KEYS: [Key; 4] =
    [keywords::ALGORITHM, keywords::BURST, keywords::CHARGE, keywords::RULE_FAILURE];

/// Defaults for the domains of a control plane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyDefaults {}

/// Defaults of one domain, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainDefaults(Map<String, Json>);

impl PolicyDefaults {
    /// Returns the defaults of a domain.
    pub fn of(&self, _domain: &str) -> DomainDefaults {
        DomainDefaults::of_control_plane()
    }
}

impl DomainDefaults {
    /// Returns the defaults of a domain for which the operator sets none.
    fn of_control_plane() -> Self {
        DomainDefaults::default()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Json> {
        self.0.get(key.name)
    }
}
