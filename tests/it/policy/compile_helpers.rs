//! Fixture files, and short ways to compile text.

use std::path::PathBuf;

use tidegate::policy::{CompiledPolicy, Diagnostic, Diagnostics, Options, Source, compile};

/// A directory beside this file.
pub fn dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/policy").join(name)
}

/// The paths in a directory, by name.
pub fn entries(dir: &std::path::Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// A file's name without its directory and its last extension.
pub fn stem(path: &std::path::Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// A file as a source, named by its last part.
pub fn source(path: &std::path::Path) -> Source {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    Source { name, text: std::fs::read(path).unwrap() }
}

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
