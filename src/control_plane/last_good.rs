//! Last valid version of each domain from a control plane. Each valid domain in a response replaces
//! its previous version. A domain with an error keeps its last valid version, and domains that are
//! missing from the response are removed.
//!
//! All functions here are deterministic. Not here: the stream (`client`), sending an ACK or a NACK
//! (`acknowledgement`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::resource::EncodedResource;
use crate::domain::escaped_prefix;
use crate::policy::compiled_policy::DomainSpec;
use crate::policy::{NODES_MAX, Options, PolicyDefaults, ReadBudget, compile_resources};

/// Maximum number of resources in a response. A control plane sends one resource for each listener
/// or policy, and the largest known installations have hundreds.
pub const RESOURCES_MAX: usize = 10_000;

/// Maximum number of errors that are kept of a response. Logs, NACKs, and metrics show fewer.
const REJECTIONS_MAX: usize = 1_000;

/// Maximum length, in bytes, of a resource name or reason in a rejection, so that NACKs, log lines
/// and metric labels stay readable. Longer text is cut.
const TEXT_BYTES_MAX: usize = 512;

/// Encoded resource as received from the control plane, with its type.
///
/// Encoded like `google.protobuf.Any`, whose Rust type would copy the bytes of `value`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RawResource {
    /// Type URL of the message in `value`.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// Protobuf encoding of the message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// Reason why a resource was rejected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Rejection {
    /// Name of the resource, or its position in the response if the name cannot be decoded. Empty
    /// if the whole response was rejected.
    pub resource: String,
    /// Path of the error in the resource, such as `descriptors[0].rate_limit.unit`; may be empty.
    pub path: String,
    /// Description of the error.
    pub reason: String,
}

impl Rejection {
    fn new(resource: &str, path: &str, reason: &str) -> Self {
        let [resource, path, reason] = [resource, path, reason].map(escape_and_truncate);
        Rejection { resource, path, reason }
    }
}

/// Returns the text with control characters escaped. Text longer than [`TEXT_BYTES_MAX`] is cut and
/// ends with an ellipsis. Used for every text of a control plane that is logged or shown.
pub(crate) fn escape_and_truncate(text: &str) -> String {
    escaped_prefix(text.as_bytes(), TEXT_BYTES_MAX)
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.resource, &self.path] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.reason)
    }
}

/// Last valid version of each domain from a control plane (the active domains), with the options
/// for compiling new versions.
#[derive(Debug, Default)]
pub struct LastGood {
    options: Options,
    defaults: PolicyDefaults,
    accepted: BTreeMap<String, AcceptedDomain>,
    /// Invalid domains of the last response. They are kept so that a repeated response is not
    /// compiled again: a control plane may respond to a NACK immediately with the same response.
    rejected: BTreeMap<String, RejectedDomain>,
}

#[derive(Debug)]
struct AcceptedDomain {
    hash: blake3::Hash,
    spec: Arc<DomainSpec>,
    /// Names of the resources that define the domain.
    resources: Vec<String>,
    /// What the domain takes of the budget that all domains share.
    used: ReadBudget,
}

#[derive(Debug)]
struct RejectedDomain {
    hash: blake3::Hash,
    rejections: Vec<Rejection>,
}

/// Result of applying a response to the active domains.
#[derive(Debug, Default)]
pub struct DomainUpdate {
    /// Whether the active domains have changed.
    pub changed: bool,
    /// Number of domains that were compiled. Domains whose resources are unchanged are not compiled
    /// again.
    pub compiled: usize,
    /// Errors in the response, each with its resource. Empty if the whole response is accepted.
    pub rejections: Vec<Rejection>,
}

impl LastGood {
    /// Creates a `LastGood` without any active domain.
    pub fn new(options: Options, defaults: PolicyDefaults) -> Self {
        LastGood { options, defaults, ..LastGood::default() }
    }

    /// Replaces the policy defaults, and returns whether they differ. If so, all domains of the next
    /// response are compiled again.
    pub fn set_defaults(&mut self, defaults: PolicyDefaults) -> bool {
        if self.defaults == defaults {
            return false;
        }
        self.defaults = defaults;
        self.rejected.clear();
        // No content has this hash, so that every resource differs from the accepted one.
        for domain in self.accepted.values_mut() {
            domain.hash = blake3::Hash::from_bytes([0; 32]);
        }
        true
    }

    /// Returns the active domains, sorted by name.
    pub fn domains(&self) -> Vec<Arc<DomainSpec>> {
        self.accepted.values().map(|domain| Arc::clone(&domain.spec)).collect()
    }

    /// Returns whether a version of this resource is active. An empty name stands for the whole
    /// response.
    pub(super) fn has_version_of(&self, resource: &str) -> bool {
        let mut domains = self.accepted.values();
        domains
            .any(|domain| resource.is_empty() || domain.resources.iter().any(|it| it == resource))
    }

    /// Returns a hash of the active resources. Replicas with the same policy have the same hash.
    pub fn fingerprint(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for domain in self.accepted.values() {
            hasher.update(domain.hash.as_bytes());
        }
        hasher.finalize()
    }

    /// Applies the resources of a response, which contains all resources of the control plane
    /// (state of the world).
    pub fn apply(&mut self, resources: Vec<RawResource>) -> DomainUpdate {
        if resources.len() > RESOURCES_MAX {
            let reason = format!(
                "the response has {} resources, more than {RESOURCES_MAX}",
                resources.len()
            );
            let rejections = vec![Rejection::new("", "", &reason)];
            return DomainUpdate { rejections, ..DomainUpdate::default() };
        }
        let mut update = DomainUpdate::default();
        let mut response = DecodedResponse::decode(resources);
        update.rejections.append(&mut response.rejections);
        let mut previously_rejected = std::mem::take(&mut self.rejected);
        // Removed first, so that their space is free for the others.
        let before = self.accepted.len();
        self.accepted.retain(|domain, accepted| {
            response.domains.contains_key(domain) || response.may_contain(&accepted.resources)
        });
        update.changed = self.accepted.len() < before;
        for (domain, group) in response.domains {
            let rejected = previously_rejected.remove(&domain);
            self.apply_domain(&domain, group, rejected, &mut update);
        }
        if update.rejections.len() > REJECTIONS_MAX {
            let more = update.rejections.len() - REJECTIONS_MAX;
            update.rejections.truncate(REJECTIONS_MAX);
            update.rejections.push(Rejection::new("", "", &format!("and {more} more errors")));
        }
        update
    }

    /// Applies the resources of one domain. `group` must be sorted by name. `rejected`
    /// is the domain in the previous response if it was invalid.
    fn apply_domain(
        &mut self,
        domain: &str,
        group: Vec<EncodedResource>,
        rejected: Option<RejectedDomain>,
        update: &mut DomainUpdate,
    ) {
        let group = match self.options.merge_domains {
            true => group,
            false => vec![self.select_owner(domain, group, update)],
        };
        let hash = hash_resources(&group);
        if self.accepted.get(domain).is_some_and(|accepted| accepted.hash == hash) {
            return;
        }
        if let Some(same) = rejected.filter(|rejected| rejected.hash == hash) {
            update.rejections.extend(same.rejections.iter().cloned());
            self.rejected.insert(domain.to_owned(), same);
            return;
        }
        update.compiled += 1;
        let read = group
            .iter()
            .map(|resource| resource.decode_descriptors(self.defaults.for_domain(domain)))
            .collect();
        // Freed, because compiling needs more memory than the messages.
        let names = group.into_iter().map(|resource| resource.name).collect();
        let budget = ReadBudget::default();
        let others = self.accepted.iter().filter(|(other, _)| *other != domain);
        others.for_each(|(_, other)| budget.take_all(&other.used));
        let before = budget.clone();
        match compile_resources(read, &self.options, &budget) {
            Ok(spec) => {
                let (spec, used) = (Arc::new(spec), budget.since(&before));
                let accepted = AcceptedDomain { hash, spec, resources: names, used };
                self.accepted.insert(domain.to_owned(), accepted);
                update.changed = true;
            }
            Err(errors) => {
                let kept = REJECTIONS_MAX.saturating_sub(update.rejections.len()).max(1);
                let rejections: Vec<_> = errors
                    .0
                    .iter()
                    .take(kept)
                    .map(|error| Rejection::new(&error.file, &error.path, &error.message))
                    .collect();
                update.rejections.extend(rejections.iter().cloned());
                // A domain that had no room may have it next time, although it is unchanged.
                if !budget.is_exceeded() {
                    self.rejected.insert(domain.to_owned(), RejectedDomain { hash, rejections });
                }
            }
        }
    }

    /// Returns the only resource that may define a domain: the active resource or, if the response
    /// does not contain it, the first resource by name. Rejects all other resources of the domain.
    fn select_owner(
        &self,
        domain: &str,
        mut group: Vec<EncodedResource>,
        update: &mut DomainUpdate,
    ) -> EncodedResource {
        let in_force = self.accepted.get(domain).map_or(&[][..], |accepted| &accepted.resources);
        let at = group.iter().position(|resource| in_force.contains(&resource.name));
        let owner = group.remove(at.unwrap_or(0));
        for other in group {
            let reason = format!(
                "the resource {:?} has this domain already; rename one of the two, or set \
                 MERGE_DOMAIN_CONFIG=true",
                owner.name
            );
            update.rejections.push(Rejection::new(&other.name, "domain", &reason));
        }
        owner
    }
}

/// Resources of a response, grouped by domain.
#[derive(Default)]
struct DecodedResponse {
    /// Resources by domain. Each group is sorted by name and has at least one resource.
    domains: BTreeMap<String, Vec<EncodedResource>>,
    /// Names of the resources with an empty domain name. The domains that these resources should
    /// define are unknown.
    names_without_domain: BTreeSet<String>,
    /// Whether the response contains a resource whose name cannot be decoded.
    has_undecodable_name: bool,
    rejections: Vec<Rejection>,
}

impl DecodedResponse {
    /// Decodes the names and domains of resources. The order of `resources` affects the rejections,
    /// but not which resources are kept.
    fn decode(resources: Vec<RawResource>) -> Self {
        let mut response = DecodedResponse::default();
        let mut by_name: BTreeMap<String, EncodedResource> = BTreeMap::new();
        let mut nodes_left = NODES_MAX;
        for (at, RawResource { type_url, value }) in resources.into_iter().enumerate() {
            match EncodedResource::decode(&type_url, value, &mut nodes_left) {
                Ok(resource) => {
                    // The one with the smaller hash stays, whatever the order.
                    let same = by_name.remove(&resource.name);
                    let kept = match same {
                        None => resource,
                        Some(other) => {
                            if other.hash != resource.hash {
                                let reason = "a second resource of this name; rename it";
                                let rejection = Rejection::new(&resource.name, "name", reason);
                                response.rejections.push(rejection);
                            }
                            let order = other.hash.as_bytes() <= resource.hash.as_bytes();
                            if order { other } else { resource }
                        }
                    };
                    by_name.insert(kept.name.clone(), kept);
                }
                Err(reason) => {
                    response.has_undecodable_name = true;
                    let name = format!("resources[{at}]");
                    response.rejections.push(Rejection::new(&name, "", &reason));
                }
            }
        }
        for (name, resource) in by_name {
            if resource.domain.is_empty() {
                response.names_without_domain.insert(name);
            }
            response.domains.entry(resource.domain.clone()).or_default().push(resource);
        }
        response
    }

    /// Returns whether the response may contain one of `resources` although its domain name cannot
    /// be read. `resources` are the names of the resources that define an active domain. If the
    /// result is true, this domain must be kept.
    fn may_contain(&self, resources: &[String]) -> bool {
        self.has_undecodable_name
            || resources.iter().any(|name| self.names_without_domain.contains(name))
    }
}

/// Returns a hash of the names and contents of resources.
fn hash_resources(group: &[EncodedResource]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for resource in group {
        // The content includes the name.
        hasher.update(resource.hash.as_bytes());
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests;
