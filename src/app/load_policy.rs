//! Loads policy files into a [`Policy`]: at the start, at a reload, and for `check` and `explain`.
//!
//! Finding the files is in `policy_files`, their meaning in `policy`.

use std::path::PathBuf;

use super::exit_codes::Failure;
use super::files_and_env::secret_file;
use super::policy_files::{Fingerprint, PolicyFiles};
use crate::domain::RuleId;
use crate::policy::{self, Diagnostic, LimitPair, Options, Policy, Secret, Source};
use crate::settings::{Settings, Sources};

/// A compiled policy and what is known about it.
#[derive(Debug)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Policy,
    /// Warnings: valid configuration that is probably a mistake.
    pub warnings: Vec<Diagnostic>,
    /// Pairs of limits that one call can use, and whether Redis Cluster keeps them on one node.
    pub colocation: Vec<LimitPair>,
    /// Number of files.
    pub files: usize,
    /// Hash of their content.
    pub fingerprint: Fingerprint,
}

/// Loads policies in the same way at the start and at every reload.
#[derive(Clone, Debug)]
pub(super) struct PolicyLoader {
    pub(super) files: PolicyFiles,
    options: Options,
    pub(super) secret: Secret,
}

impl PolicyLoader {
    pub(super) fn new(settings: &Settings) -> Result<PolicyLoader, Failure> {
        let secret = match &settings.key_secret_file {
            Some(path) => Secret::derive(&secret_file(path)?),
            None => Secret::derive(settings.key_secret.reveal()),
        };
        let options = Options {
            merge_domains: settings.merge_domain_config,
            file_bytes_max: settings.policy_file_size,
            all_bytes_max: settings.policy_size,
        };
        Ok(PolicyLoader { files: PolicyFiles::new(settings)?, options, secret })
    }

    /// Reads and compiles the files. Rules are numbered from `first`.
    pub(super) fn load(&self, first: RuleId) -> Result<LoadedPolicy, Failure> {
        self.compile(&self.files.read()?, first)
    }

    /// Compiles files that were read already.
    pub(super) fn compile(&self, files: &[Source], first: RuleId) -> Result<LoadedPolicy, Failure> {
        let compiled = policy::compile(files, &self.options).map_err(Failure::Policy)?;
        Ok(LoadedPolicy {
            policy: Policy::build_numbered(compiled.domains, self.secret.clone(), first),
            warnings: compiled.warnings,
            colocation: compiled.colocation,
            files: files.len(),
            fingerprint: Fingerprint::of(files),
        })
    }
}

/// Loads the policy at these paths, as `serve` would with these settings.
///
/// # Errors
///
/// An invalid setting, an unreadable file, or every error of the policy.
pub fn check(paths: &[PathBuf], sources: Sources) -> Result<LoadedPolicy, Failure> {
    Ok(load_at(paths, sources)?.0)
}

/// Does the same as [`check`] and returns the settings too.
pub(super) fn load_at(
    paths: &[PathBuf],
    mut sources: Sources,
) -> Result<(LoadedPolicy, Settings), Failure> {
    let has_comma = |path: &&PathBuf| path.as_os_str().as_encoded_bytes().contains(&b',');
    if let Some(path) = paths.iter().find(has_comma) {
        // The setting separates paths with commas.
        let reason = format!("{}: a path must not contain a comma", path.display());
        return Err(Failure::Usage(reason));
    }
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    sources.flags.insert("policy".to_owned(), paths.join(","));
    let (settings, _) = Settings::read(&sources).map_err(Failure::Settings)?;
    Ok((PolicyLoader::new(&settings)?.load(RuleId(0))?, settings))
}

/// Returns the JSON Schema of policy files.
pub fn schema() -> String {
    // Serializing a JSON value cannot fail.
    serde_json::to_string_pretty(&policy::schema()).unwrap_or_default()
}
