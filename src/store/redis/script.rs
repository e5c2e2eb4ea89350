//! The Lua scripts as the service runs them: joined, cut, hashed.
//!
//! (being built)

/// A script with the name that EVALSHA calls it by.
#[derive(Debug)]
pub struct Script {
    /// What SCRIPT LOAD sends.
    pub text: String,
    /// The SHA1 of the text, in hex: what EVALSHA names.
    pub sha: String,
}
