//! Compiles the messages of the server's protocols. The library has none, so without the feature
//! `server` there is nothing to do.

use std::error::Error;

#[cfg(feature = "server")]
mod compile;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    #[cfg(feature = "server")]
    compile::compile_messages()?;
    Ok(())
}
