//! Decodes a resource of the control plane: the name and domain first, and the descriptors only if
//! the resource has changed.
//!
//! Not here: compiling the descriptors (`policy`).

use bytes::Bytes;
use prost::Message as _;

use super::messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use crate::policy::{DescriptorFields, DomainDefaults, LimitFields, Resource, ResourceWriter};
use crate::wire::struct_json::struct_to_json;

/// Type URL of the resources that contain policies.
pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Resource with a decoded name and domain, and descriptors that are still encoded.
#[derive(Clone, Debug)]
pub(crate) struct EncodedResource {
    pub(crate) name: String,
    pub(crate) domain: String,
    /// Hash of the encoded resource. Equal hashes mean equal contents.
    pub(crate) hash: blake3::Hash,
    descriptors: Vec<Bytes>,
}

impl EncodedResource {
    /// Decodes the name and the domain of a resource.
    ///
    /// # Errors
    ///
    /// Returns a message if the type is wrong or the bytes cannot be decoded.
    pub(crate) fn decode(type_url: &str, value: Vec<u8>) -> Result<Self, String> {
        if type_url != TYPE_URL {
            return Err(format!("its type is {type_url:?}, not {TYPE_URL:?}"));
        }
        let hash = blake3::hash(&value);
        let message = RateLimitConfig::decode(Bytes::from(value))
            .map_err(|error| format!("the message cannot be decoded: {error}"))?;
        let RateLimitConfig { name, domain, descriptors } = message;
        Ok(EncodedResource { name, domain, hash, descriptors })
    }

    /// Decodes the descriptors and returns the resource for the compiler. Records a malformed
    /// descriptor as an error in the returned resource.
    pub(crate) fn decode_descriptors(&self, defaults: DomainDefaults) -> Resource {
        let mut writer = ResourceWriter::new(&self.name, &self.domain, defaults);
        write_descriptors(&mut writer, &self.descriptors);
        writer.finish()
    }
}

/// Decodes the descriptors of one level and, recursively, of the levels below, and passes them to
/// `writer`, which limits the depth.
fn write_descriptors(writer: &mut ResourceWriter, encoded: &[Bytes]) {
    for bytes in encoded {
        let descriptor = match RateLimitDescriptor::decode(bytes.clone()) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                writer.skip_malformed(format!("the descriptor cannot be decoded: {error}"));
                continue;
            }
        };
        let unit = descriptor.rate_limit.as_ref().and_then(unit_name);
        let limit = descriptor.rate_limit.as_ref().map(|limit| LimitFields {
            unit: unit.as_deref(),
            requests_per_unit: limit.requests_per_unit,
            unlimited: limit.unlimited,
            name: &limit.name,
            replaces: limit.replaces.iter().map(|replaced| &*replaced.name).collect(),
        });
        let fields = DescriptorFields {
            key: &descriptor.key,
            value: &descriptor.value,
            limit,
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            detailed_metric: descriptor.detailed_metric,
            metadata: descriptor.metadata.as_ref().map(struct_to_json),
        };
        if writer.begin_descriptor(&fields) {
            write_descriptors(writer, &descriptor.descriptors);
            writer.end_descriptor();
        }
    }
}

/// Returns the name of a limit's unit, as in policy files. Returns `None` if the limit is unlimited
/// and its unit is UNKNOWN. If the enum does not define the unit, returns its number as text, which
/// the compiler rejects.
fn unit_name(limit: &RateLimitPolicy) -> Option<String> {
    match RateLimitUnit::try_from(limit.unit) {
        Ok(RateLimitUnit::Unknown) if limit.unlimited => None,
        Ok(unit) => Some(unit.as_str_name().to_ascii_lowercase()),
        Err(_) => Some(limit.unit.to_string()),
    }
}
