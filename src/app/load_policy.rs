//! From policy files to a policy that can decide.
//!
//! Not here: finding the files (`files`), what they mean (`policy`), when they are loaded again
//! (`reload`).

use std::path::{Path, PathBuf};

use super::environment::secret_file;
use super::exit_codes::Failure;
use super::policy_files::{Fingerprint, Places};
use super::settings::{Settings, Sources};
use crate::domain::RuleId;
use crate::policy::{self, Diagnostic, LimitPair, Options, Policy, Secret, Source};

/// A policy that was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The policy.
    pub policy: Policy,
    /// What works, but perhaps not as meant.
    pub warnings: Vec<Diagnostic>,
    /// Which limits can meet in a call, and whether a Redis Cluster keeps their counters together.
    pub colocation: Vec<LimitPair>,
    /// How many files it is from.
    pub files: usize,
    /// Their content.
    pub fingerprint: Fingerprint,
}

/// How to load policies: the same way at the start and at every reload.
#[derive(Clone, Debug)]
pub(super) struct Loader {
    pub(super) places: Places,
    options: Options,
    pub(super) secret: Secret,
}

impl Loader {
    pub(super) fn of(settings: &Settings) -> Result<Loader, Failure> {
        let secret = match &settings.key_secret_file {
            Some(path) => Secret::derive(&secret_file(path)?),
            None => Secret::derive(settings.key_secret.reveal()),
        };
        let options = Options {
            merge_domains: settings.merge_domain_config,
            file_bytes_max: settings.policy_file_size,
            all_bytes_max: settings.policy_size,
        };
        Ok(Loader { places: Places::of(settings)?, options, secret })
    }

    /// Reads and compiles; rules are numbered from `first` on.
    pub(super) fn load(&self, first: RuleId) -> Result<Loaded, Failure> {
        self.compile(&self.places.read()?, first)
    }

    pub(super) fn compile(&self, files: &[Source], first: RuleId) -> Result<Loaded, Failure> {
        let compiled = policy::compile(files, &self.options).map_err(Failure::Policy)?;
        Ok(Loaded {
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
/// A setting that cannot be used, what cannot be read, or every fault.
pub fn check(paths: &[PathBuf], sources: Sources) -> Result<Loaded, Failure> {
    Ok(load_at(paths, sources)?.0)
}

/// The same, with the settings.
pub(super) fn load_at(
    paths: &[PathBuf],
    mut sources: Sources,
) -> Result<(Loaded, Settings), Failure> {
    let comma = |path: &Path| path.as_os_str().as_encoded_bytes().contains(&b',');
    if let Some(path) = paths.iter().find(|path| comma(path)) {
        let wrong = format!("{}: a path with a comma cannot be named", path.display());
        return Err(Failure::Usage(wrong));
    }
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    sources.flags.insert("policy".to_owned(), paths.join(","));
    let (settings, _) = Settings::read(&sources).map_err(Failure::Settings)?;
    Ok((Loader::of(&settings)?.load(RuleId(0))?, settings))
}

/// The JSON Schema of policy files.
pub fn schema() -> String {
    // Printing a value that is JSON already cannot fail.
    serde_json::to_string_pretty(&policy::schema()).unwrap_or_default()
}
