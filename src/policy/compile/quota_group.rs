//! Reads `quota_group`, a list of entry keys. The quota descriptors of a call that have the same
//! values for these keys form a group.
//!
//! Not here: grouping the descriptors of a call (`decide::quota_roles`).

use crate::domain::Bounds;
use crate::policy::diagnostic::DiagnosticKind;
use crate::policy::syntax::keywords::Key;
use crate::policy::syntax::reader::{ReadResult, Reader};

/// Maximum number of entry keys in a `quota_group`, the same as the maximum number of entries in a
/// descriptor.
const GROUP_KEYS_MAX: usize = Bounds::DEFAULT.entries_max;

/// Domain that Envoy AI Gateway uses. The gateway sends one descriptor for each limit of each
/// backend and model that may serve the request.
const AI_GATEWAY_DOMAIN: &str = "ai-gateway-quota";

/// Default `quota_group` of [`AI_GATEWAY_DOMAIN`]: one group for each backend and model.
const AI_GATEWAY_QUOTA_GROUP: [&str; 2] = ["backend_name", "model_name_override"];

/// Reads `quota_group`. Returns `None` if the key is absent. With an empty list, every quota
/// descriptor forms a separate group, even in a domain that has a default.
pub(crate) fn read(reader: &mut Reader<'_>, key: &Key) -> ReadResult<Vec<String>> {
    let names = reader.read_names(key)?;
    if names.as_ref().is_some_and(|names| names.len() > GROUP_KEYS_MAX) {
        let message =
            format!("`quota_group` can name at most {GROUP_KEYS_MAX} entries; remove some");
        return Err(reader.report_key(key, DiagnosticKind::TooLarge, message));
    }
    Ok(names)
}

/// Returns the entry keys that form the quota groups of a domain: those in `quota_group` or, if the
/// policy does not set it, the default. If the list is empty, every quota descriptor forms a
/// separate group.
pub(crate) fn group_keys_or_default(
    domain: &str,
    configured: Option<Vec<String>>,
) -> Box<[Box<str>]> {
    match configured {
        Some(names) => names.into_iter().map(Into::into).collect(),
        None if domain == AI_GATEWAY_DOMAIN => AI_GATEWAY_QUOTA_GROUP.map(Into::into).into(),
        None => Box::default(),
    }
}
