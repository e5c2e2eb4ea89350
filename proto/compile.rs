//! Compiles the `.proto` files of this directory into `OUT_DIR`, without a system `protoc`.
//!
//! Two products: the descriptor set as written, which reflection serves, and the Rust messages, in
//! which the strings of a request are `bytes`. The encoding is the same either way, but prost rejects
//! a `string` that is not UTF-8. Envoy copies header values unchecked and lets failed calls pass, so a
//! client could escape its limits by sending a stray 0xFF. `wire::decode` checks the domain.
//!
//! The Rust type is `bytes::Bytes`, a slice of the received message; `Vec<u8>` would copy each string.
//!
//! The requests of a batch are `bytes`, too: each is then decoded, checked, and rejected
//! like the message of a single call.
//!
//! The messages of control planes are a product of their own. A list of descriptors in them is `bytes`,
//! too: prost rejects messages nested more than 100 deep, and policies may be deeper. The client decodes
//! one level after the other. Tests include the same messages as written, with the server's side.

use std::error::Error;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_types::DescriptorProto;
use tonic_prost_build::{Builder, FileDescriptorSet};

/// The files that import all others.
const ROOTS: [&str; 2] = ["envoy/service/ratelimit/v3/rls.proto", "tidegate/v1/limits.proto"];
/// Messages whose `string` fields become `bytes`.
const BYTES_MESSAGES: [&str; 2] = [
    ".envoy.service.ratelimit.v3.RateLimitRequest",
    ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
];
/// The domain, a key, a value.
const BYTES_FIELDS: usize = 3;
/// Package of the batches, and the name of their field that becomes `bytes`.
const LIMITS_PACKAGE: &str = "tidegate.v1";
const REQUEST_FIELDS: [&str; 1] = ["requests"];
/// The message with this field.
const BATCH_MESSAGES: [&str; 1] = [".tidegate.v1.CheckRequest"];
/// The files that import all others of a control plane.
const CONTROL_PLANE_ROOTS: [&str; 2] =
    ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];
/// Package of the policy's messages, and the name of the field that nests them.
const POLICY_PACKAGE: &str = "ratelimit.config.ratelimit.v3";
const NESTED_FIELDS: [&str; 1] = ["descriptors"];
/// Messages whose `descriptors` become `bytes`.
const NESTED_MESSAGES: [&str; 2] = [
    ".ratelimit.config.ratelimit.v3.RateLimitConfig",
    ".ratelimit.config.ratelimit.v3.RateLimitDescriptor",
];
/// The message that is not generated, because its type bounds what is decoded, and this type.
const RESPONSE_MESSAGE: &str = ".envoy.service.discovery.v3.DiscoveryResponse";
const RESPONSE_TYPE: &str = "crate::control_plane::discovery_response::DiscoveryResponse";
/// `string` and `bytes` in `google.protobuf.FieldDescriptorProto.Type`.
const TYPE_STRING: i32 = 9;
const TYPE_BYTES: i32 = 12;

/// Compiles all files into `OUT_DIR`.
pub(super) fn compile_messages() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut files = protox::compile(ROOTS, ["proto"])?;
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    make_strings_bytes(&mut files)?;
    make_messages_bytes(&mut files, LIMITS_PACKAGE, &REQUEST_FIELDS, BATCH_MESSAGES.len())?;
    let builder = tonic_prost_build::configure().build_server(false);
    generate(files, builder, &[&BYTES_MESSAGES[..], &BATCH_MESSAGES].concat(), &out)?;
    generate_control_plane(&out)
}

fn generate_control_plane(out: &Path) -> Result<(), Box<dyn Error>> {
    let mut files = protox::compile(CONTROL_PLANE_ROOTS, ["proto"])?;
    generate(
        files.clone(),
        tonic_prost_build::configure(),
        &[],
        &out.join("control_plane_server"),
    )?;
    make_messages_bytes(&mut files, POLICY_PACKAGE, &NESTED_FIELDS, NESTED_MESSAGES.len())?;
    let builder = tonic_prost_build::configure()
        .build_server(false)
        .extern_path(RESPONSE_MESSAGE, RESPONSE_TYPE);
    generate(files, builder, &NESTED_MESSAGES, &out.join("control_plane"))
}

/// Turns fields of messages into `bytes`, which have the same encoding.
fn make_messages_bytes(
    files: &mut FileDescriptorSet,
    package: &str,
    names: &[&str],
    expected: usize,
) -> Result<(), Box<dyn Error>> {
    let of_package = files.file.iter_mut().filter(|file| file.package() == package);
    let fields = of_package.flat_map(|file| &mut file.message_type).flat_map(|it| &mut it.field);
    let mut changed = 0;
    for field in fields.filter(|field| names.contains(&field.name())) {
        field.r#type = Some(TYPE_BYTES);
        field.type_name = None;
        changed += 1;
    }
    if changed == expected {
        Ok(())
    } else {
        Err(format!("{changed} messages of {package} became bytes, expected {expected}").into())
    }
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

fn generate(
    files: FileDescriptorSet,
    builder: Builder,
    bytes_messages: &[&str],
    out: &Path,
) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(out)?;
    bytes_messages
        .iter()
        .fold(builder, |builder, message| builder.bytes(message))
        .out_dir(out)
        .include_file("messages.rs")
        .compile_fds(files)?;
    Ok(())
}
