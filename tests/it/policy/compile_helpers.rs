//! Short ways to compile text.

use tidegate::policy::{CompiledPolicy, Diagnostic, Diagnostics, Options, Source, compile};

/// One file of that text.
pub fn one(text: impl AsRef<[u8]>) -> Result<CompiledPolicy, Diagnostics> {
    many(&[("p.yaml", text.as_ref())], false)
}

/// Several files.
pub fn many(files: &[(&str, &[u8])], merge_domains: bool) -> Result<CompiledPolicy, Diagnostics> {
    let sources: Vec<Source> = files
        .iter()
        .map(|(name, text)| Source { name: (*name).to_owned(), text: text.to_vec() })
        .collect();
    compile(&sources, &Options { merge_domains, ..Options::default() })
}

/// The policy that one file of that text means.
pub fn good(text: impl AsRef<[u8]>) -> CompiledPolicy {
    one(text).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The faults of one file of that text.
pub fn bad(text: impl AsRef<[u8]>) -> Vec<Diagnostic> {
    match one(text) {
        Ok(compiled) => panic!("compiles: {compiled:#?}"),
        Err(Diagnostics(faults)) => faults,
    }
}

/// `text` below `domain: edge` and one descriptor with a `rate_limit`.
pub fn rate_limit(text: &str) -> String {
    format!("domain: edge\ndescriptors: [{{key: a, rate_limit: {{{text}}}}}]\n")
}
