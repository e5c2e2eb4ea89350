//! Decodes a resource of the control plane: the name and domain first, and the descriptors only if
//! the resource has changed.
//!
//! Not here: compiling the descriptors (`policy`).

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use serde_json::{Map, Value as Json, json};

use super::last_good::escape_and_truncate;
use super::messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use crate::policy::{DomainDefaults, NESTING_MAX, NODES_MAX, Resource, ResourceWriter};
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
    /// Number of nodes in the descriptors.
    nodes: usize,
}

impl EncodedResource {
    /// Decodes the name and the domain of a resource. Subtracts the number of its nodes from
    /// `nodes_left`, before memory is allocated for them.
    ///
    /// # Errors
    ///
    /// Returns a message if the type is wrong, the bytes cannot be decoded, or there are too many
    /// nodes.
    pub(crate) fn decode(
        type_url: &str,
        value: Bytes,
        nodes_left: &mut usize,
    ) -> Result<Self, String> {
        if type_url != TYPE_URL {
            let type_url = escape_and_truncate(type_url);
            return Err(format!("its type is {type_url:?}, not {TYPE_URL:?}"));
        }
        let before = *nodes_left;
        count_nodes(&value, MessageType::Config, 0, nodes_left)?;
        let nodes = before - *nodes_left;
        let hash = blake3::hash(&value);
        let message = RateLimitConfig::decode(value)
            .map_err(|error| format!("the message cannot be decoded: {error}"))?;
        let RateLimitConfig { name, domain, descriptors } = message;
        Ok(EncodedResource { name, domain, hash, descriptors, nodes })
    }

    /// Decodes the descriptors and returns the resource for the compiler. Records a malformed
    /// descriptor as an error in the returned resource.
    pub(crate) fn decode_descriptors(&self, defaults: DomainDefaults) -> Resource {
        let mut writer = ResourceWriter::new(&self.name, &self.domain, defaults);
        writer.reserve(self.nodes, self.descriptors.iter().map(Bytes::len).sum());
        write_descriptors(&mut writer, &self.descriptors);
        writer.finish()
    }
}

/// Type of a message within an encoded resource.
#[derive(Clone, Copy)]
enum MessageType {
    Config,
    Descriptor,
    Limit,
    /// `Struct`, an entry of its map, `Value`, or `ListValue`.
    Struct,
    StructEntry,
    Value,
    List,
}

impl MessageType {
    /// Returns the type of the message in a field, and whether the message is a node. Returns
    /// `None` if the field has no message that is counted.
    fn nested(self, field: u32) -> Option<(Option<MessageType>, bool)> {
        match (self, field) {
            (MessageType::Config, 3) | (MessageType::Descriptor, 4) => {
                Some((Some(MessageType::Descriptor), true))
            }
            (MessageType::Descriptor, 3) => Some((Some(MessageType::Limit), true)),
            (MessageType::Descriptor, 8) => Some((Some(MessageType::Struct), false)),
            (MessageType::Limit, 5) => Some((None, true)),
            (MessageType::Struct, 1) => Some((Some(MessageType::StructEntry), true)),
            (MessageType::StructEntry, 2) => Some((Some(MessageType::Value), false)),
            (MessageType::Value, 5) => Some((Some(MessageType::Struct), false)),
            (MessageType::Value, 6) => Some((Some(MessageType::List), false)),
            (MessageType::List, 1) => Some((Some(MessageType::Value), true)),
            (_, _) => None,
        }
    }
}

/// Maximum nesting depth of the messages in a resource: two for each level of descriptors, and those
/// of `metadata`. Messages below are not counted; decoding rejects them.
const COUNTED_DEPTH_MAX: usize = 2 * NESTING_MAX + 128;

/// Counts the nodes of a message and of its nested messages without allocating, and subtracts their
/// number from `nodes_left`. Returns an error if there are more. A malformed message is not an error
/// here, because decoding it reports that.
fn count_nodes(
    mut message: &[u8],
    message_type: MessageType,
    depth: usize,
    nodes_left: &mut usize,
) -> Result<(), String> {
    while let Ok((field, wire_type)) = decode_key(&mut message) {
        let nested = message_type.nested(field);
        let (WireType::LengthDelimited, Some((inner_type, is_node))) = (wire_type, nested) else {
            if skip_field(wire_type, field, &mut message, DecodeContext::default()).is_err() {
                break;
            }
            continue;
        };
        let too_many = || format!("the response has more than {NODES_MAX} nodes; send fewer");
        *nodes_left = nodes_left.checked_sub(usize::from(is_node)).ok_or_else(too_many)?;
        let length = decode_varint(&mut message).ok().and_then(|length| length.try_into().ok());
        let Some((inner, rest)) = length.and_then(|length| message.split_at_checked(length)) else {
            break;
        };
        if let Some(inner_type) = inner_type.filter(|_| depth < COUNTED_DEPTH_MAX) {
            count_nodes(inner, inner_type, depth + 1, nodes_left)?;
        }
        message = rest;
    }
    Ok(())
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
        if writer.begin_descriptor(descriptor_fields(&descriptor)) {
            write_descriptors(writer, &descriptor.descriptors);
            writer.end_descriptor();
        }
    }
}

/// Returns the keys of a descriptor, as in a policy file, without its child descriptors.
fn descriptor_fields(descriptor: &RateLimitDescriptor) -> Map<String, Json> {
    let mut fields = set_fields([
        ("value", json!(descriptor.value)),
        ("rate_limit", descriptor.rate_limit.as_ref().map(limit_fields).into()),
        ("shadow_mode", json!(descriptor.shadow_mode)),
        ("quota_mode", json!(descriptor.quota_mode)),
        ("detailed_metric", json!(descriptor.detailed_metric)),
        ("metadata", descriptor.metadata.as_ref().map(struct_to_json).into()),
    ]);
    fields.insert("key".to_owned(), json!(descriptor.key));
    fields
}

fn limit_fields(limit: &RateLimitPolicy) -> Map<String, Json> {
    let names = limit.replaces.iter().map(|replaced| json!({"name": replaced.name}));
    set_fields([
        ("unit", json!(unit_name(limit))),
        ("requests_per_unit", json!(limit.requests_per_unit)),
        ("unlimited", json!(limit.unlimited)),
        ("name", json!(limit.name)),
        ("replaces", names.collect()),
    ])
}

/// Returns the fields that do not have the default of a policy file.
fn set_fields<const N: usize>(fields: [(&str, Json); N]) -> Map<String, Json> {
    let defaults = [Json::Null, json!(false), json!(""), json!([])];
    let set = fields.into_iter().filter(|(_, value)| !defaults.contains(value));
    set.map(|(name, value)| (name.to_owned(), value)).collect()
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
