//! The calls that are driven: ShouldRateLimit requests as ready gRPC frames.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// The request messages, by field number; the bench speaks the wire and nothing of ours.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A request of `descriptors` descriptors of two entries each, as Envoy sends them.
pub fn request(domain: &str, descriptors: usize, client: usize) -> Request {
    Request {
        domain: domain.to_owned(),
        descriptors: (0..descriptors)
            .map(|nth| Descriptor {
                entries: vec![
                    Entry { key: format!("dimension_{nth}"), value: "default".to_owned() },
                    Entry {
                        key: "remote_address".to_owned(),
                        value: format!(
                            "203.{}.{}.{}",
                            client / 65_536 % 256,
                            client / 256 % 256,
                            client % 256
                        ),
                    },
                ],
            })
            .collect(),
        hits_addend: 0,
    }
}

/// The request with gRPC's five bytes of framing.
pub fn framed(message: &impl Message) -> Bytes {
    let mut out = BytesMut::with_capacity(message.encoded_len() + 5);
    out.put_u8(0);
    out.put_u32(u32::try_from(message.encoded_len()).expect("a small message"));
    message.encode(&mut out).expect("the buffer grows");
    out.freeze()
}

/// A policy with the limits that `request` meets, and never reaches.
pub fn policy(domain: &str, descriptors: usize) -> String {
    let mut yaml = format!("domain: {domain}\ndescriptors:\n");
    for nth in 0..descriptors {
        yaml += &format!(
            "  - key: dimension_{nth}\n    value: default\n    descriptors:\n      - key: remote_address\n        rate_limit: {{unit: hour, requests_per_unit: 4000000000}}\n"
        );
    }
    yaml
}
