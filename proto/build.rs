//! Compiles the `.proto` files of this directory into `OUT_DIR`, without a system `protoc`.
//!
//! Two products: the descriptor set as written, which reflection serves, and the Rust messages, in
//! which the strings of a request are `bytes`. The encoding is the same either way, but prost rejects
//! a `string` that is not UTF-8. Envoy copies header values unchecked and lets failed calls pass, so a
//! client could escape its limits by sending a stray 0xFF. `wire::decode` checks the domain.
//!
//! The Rust type is `bytes::Bytes`, a slice of the received message; `Vec<u8>` would copy each string.

use std::error::Error;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_types::DescriptorProto;
use tonic_prost_build::FileDescriptorSet;

/// The file that imports all others.
const ROOT: &str = "envoy/service/ratelimit/v3/rls.proto";
/// Messages whose `string` fields become `bytes`.
const BYTES_MESSAGES: [&str; 2] = [
    ".envoy.service.ratelimit.v3.RateLimitRequest",
    ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
];
/// The domain, a key, a value.
const BYTES_FIELDS: usize = 3;
/// `string` and `bytes` in `google.protobuf.FieldDescriptorProto.Type`.
const TYPE_STRING: i32 = 9;
const TYPE_BYTES: i32 = 12;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut files = protox::compile([ROOT], ["proto"])?;
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    make_strings_bytes(&mut files)?;
    generate(files, &out)
}

fn make_strings_bytes(files: &mut FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    let mut changed = 0;
    for file in &mut files.file {
        let scope = format!(".{}", file.package());
        for message in &mut file.message_type {
            changed += make_bytes(&scope, message);
        }
    }
    if changed == BYTES_FIELDS {
        Ok(())
    } else {
        Err(format!("{changed} strings became bytes, expected {BYTES_FIELDS}").into())
    }
}

/// Returns how many fields of the message and of those nested in it were changed.
fn make_bytes(scope: &str, message: &mut DescriptorProto) -> usize {
    let name = format!("{scope}.{}", message.name());
    let mut changed = message.nested_type.iter_mut().map(|nested| make_bytes(&name, nested)).sum();
    if BYTES_MESSAGES.contains(&name.as_str()) {
        for field in message.field.iter_mut().filter(|field| field.r#type == Some(TYPE_STRING)) {
            field.r#type = Some(TYPE_BYTES);
            changed += 1;
        }
    }
    changed
}

fn generate(files: FileDescriptorSet, out: &Path) -> Result<(), Box<dyn Error>> {
    BYTES_MESSAGES
        .into_iter()
        .fold(tonic_prost_build::configure(), |builder, message| builder.bytes(message))
        .build_server(false)
        .out_dir(out)
        .include_file("messages.rs")
        .compile_fds(files)?;
    Ok(())
}
