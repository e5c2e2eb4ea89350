//! Compiles the `.proto` files of this directory into `OUT_DIR`, without a system `protoc`.
//!
//! Two products: the descriptor set as written, which reflection serves, and the Rust messages, in
//! which a descriptor's keys and values are bytes. The bytes on the wire are the same either way,
//! but prost refuses a `string` that is not UTF-8, Envoy sends header values as they come, and a
//! call that errs lets the request pass: whoever sends a stray 0xFF would not be limited at all.

use std::error::Error;
use std::path::{Path, PathBuf};

use prost::Message as _;
use tonic_prost_build::FileDescriptorSet;

/// The file that imports all others.
const ROOT: &str = "envoy/service/ratelimit/v3/rls.proto";
/// The message whose fields become bytes, and the file it stands in.
const BYTES_FILE: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const BYTES_MESSAGE: &str = "RateLimitDescriptor";
const BYTES_NESTED: &str = "Entry";
/// `bytes` in `google.protobuf.FieldDescriptorProto.Type`.
const TYPE_BYTES: i32 = 12;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut files = protox::compile([ROOT], ["proto"])?;
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    make_entries_bytes(&mut files)?;
    generate(files, &out)
}

fn make_entries_bytes(files: &mut FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    let entry = files
        .file
        .iter_mut()
        .find(|file| file.name() == BYTES_FILE)
        .and_then(|file| file.message_type.iter_mut().find(|m| m.name() == BYTES_MESSAGE))
        .and_then(|message| message.nested_type.iter_mut().find(|m| m.name() == BYTES_NESTED))
        .ok_or("the message whose fields become bytes is not where build.rs looks for it")?;
    for field in &mut entry.field {
        field.r#type = Some(TYPE_BYTES);
    }
    Ok(())
}

fn generate(files: FileDescriptorSet, out: &Path) -> Result<(), Box<dyn Error>> {
    tonic_prost_build::configure()
        .build_server(false)
        .out_dir(out)
        .include_file("messages.rs")
        .compile_fds(files)?;
    Ok(())
}
