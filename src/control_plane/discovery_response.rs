//! Response of a control plane, with a bound on the resources that are decoded. The type that prost
//! generates would take 48 bytes for each empty resource, which takes two in the message.

use bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, message, skip_field, string};
use prost::{DecodeError, Message};

use super::last_good::{RESOURCES_MAX, RawResource};

/// Resources of a control plane in one version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DiscoveryResponse {
    pub(crate) version_info: String,
    /// At most one resource more than [`RESOURCES_MAX`], so that the excess is noticed.
    pub(crate) resources: Vec<RawResource>,
    pub(crate) type_url: String,
    pub(crate) nonce: String,
}

impl Message for DiscoveryResponse {
    fn encode_raw(&self, out: &mut impl BufMut) {
        string::encode(1, &self.version_info, out);
        message::encode_repeated(2, &self.resources, out);
        string::encode(4, &self.type_url, out);
        string::encode(5, &self.nonce, out);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => string::merge(wire_type, &mut self.version_info, from, context),
            2 if self.resources.len() <= RESOURCES_MAX => {
                message::merge_repeated(wire_type, &mut self.resources, from, context)
            }
            4 => string::merge(wire_type, &mut self.type_url, from, context),
            5 => string::merge(wire_type, &mut self.nonce, from, context),
            _ => skip_field(wire_type, tag, from, context),
        }
    }

    fn encoded_len(&self) -> usize {
        string::encoded_len(1, &self.version_info)
            + message::encoded_len_repeated(2, &self.resources)
            + string::encoded_len(4, &self.type_url)
            + string::encoded_len(5, &self.nonce)
    }

    fn clear(&mut self) {
        *self = DiscoveryResponse::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_beyond_the_bound_are_skipped_without_memory() {
        let encoded = [0x12, 0x00].repeat(8 << 20);
        let mut response = DiscoveryResponse::default();
        let measured = allocation_counter::measure(|| response.merge(&encoded[..]).unwrap());
        assert_eq!(response.resources.len(), RESOURCES_MAX + 1);
        assert!(measured.bytes_max < 4 << 20, "{}", measured.bytes_max);
        let text = |text: &str| text.to_owned();
        let resources = vec![RawResource { type_url: text("t"), value: vec![1].into() }];
        let (type_url, nonce) = (text("u"), text("n"));
        let sent = DiscoveryResponse { version_info: text("1"), resources, type_url, nonce };
        assert_eq!(DiscoveryResponse::decode(&*sent.encode_to_vec()).unwrap(), sent);
    }
}
