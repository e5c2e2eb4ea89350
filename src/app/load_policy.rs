//! Loads policy files into a [`Policy`], for `serve`, for each reload, and for `check` and
//! `explain`.
//!
//! `policy_files` finds and reads the files; `policy` compiles them.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use super::policy_files::PolicyFiles;
use super::process::exit_codes::Failure;
use super::process::files_and_env::{FileError, malformed, read_secret_file, unreadable_with};
use super::watched_files::WatchedFiles;
use super::wiring::server_config;
use crate::domain::RuleId;
use crate::policy::{self, Diagnostic, FILE_BYTES_CEILING, Options, Policy, Secret, Source};
use crate::settings::{DropIn, Settings, Sources};

/// Compiled policy with its warnings and the fingerprint of its files.
#[derive(Debug)]
pub struct LoadedPolicy {
    /// Compiled policy. Its rules have consecutive ids.
    pub policy: Policy,
    /// Warnings about configuration that is valid but contradicts itself or has no effect.
    pub warnings: Vec<Diagnostic>,
    /// Advice about configuration that is valid and works as written.
    pub notes: Vec<Diagnostic>,
    /// Number of policy files that were read.
    pub files: usize,
    /// Hash of the names and contents of the policy files.
    pub fingerprint: Fingerprint,
}

/// Hash of the names and contents of all policy files. Replicas with the same policy have the same
/// fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub(super) blake3::Hash);

impl Fingerprint {
    /// Hashes the names and contents of `files`, which must be in policy order (see `policy_files::FileKey`).
    pub(super) fn from_sources(files: &[&Source]) -> Fingerprint {
        let mut hasher = blake3::Hasher::new();
        for file in files {
            for part in [file.name.as_bytes(), &file.text] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
            }
        }
        Fingerprint(hasher.finalize())
    }
}

impl fmt::Display for Fingerprint {
    /// Writes the first 16 hexadecimal digits, which are enough to compare replicas by eye.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex()[..16])
    }
}

/// Loader of the configured policy files. Uses the same options at startup and at every reload.
#[derive(Clone, Debug)]
pub(super) struct PolicyLoader {
    pub(super) files: PolicyFiles,
    options: Options,
    secret: Secret,
}

impl PolicyLoader {
    /// Creates a loader whose policies hash counter keys with `secret`.
    pub(super) fn new(settings: &Settings, secret: Secret) -> Result<PolicyLoader, Failure> {
        let (files, options) = (PolicyFiles::new(settings)?, policy_options(settings));
        Ok(PolicyLoader { files, options, secret })
    }

    /// Reads and compiles the policy files. The first rule gets the id 0. Also returns the files, to
    /// detect later changes.
    pub(super) fn load(&self) -> Result<(LoadedPolicy, WatchedFiles), Failure> {
        let files = WatchedFiles::read_all(&self.files).map_err(Failure::policy_files)?;
        Ok((self.compile(&files.sources(), RuleId(0))?, files))
    }

    /// Compiles files that are already in memory. The first rule gets the id `first`.
    ///
    /// Uses a thread of its own: memory that one thread has allocated and another one frees cannot
    /// be reused before the first thread allocates again or ends. A large policy would never be
    /// freed, because the thread that has allocated it waits for the next one.
    pub(super) fn compile(
        &self,
        files: &[&Source],
        first: RuleId,
    ) -> Result<LoadedPolicy, Failure> {
        thread::scope(|scope| {
            let compile = || self.compile_here(files, first);
            let compiling = thread::Builder::new().name("compile".to_owned());
            let compiling = compiling.spawn_scoped(scope, compile).map_err(Failure::runtime)?;
            compiling.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn compile_here(&self, files: &[&Source], first: RuleId) -> Result<LoadedPolicy, Failure> {
        let compiled = policy::compile(files, &self.options).map_err(Failure::Policy)?;
        Ok(LoadedPolicy {
            policy: Policy::build_with_first_id(&compiled.domains, self.secret.clone(), first)
                .with_checks_max(self.options.bounds.checks_max),
            warnings: compiled.warnings,
            notes: compiled.notes,
            files: files.len(),
            fingerprint: Fingerprint::from_sources(files),
        })
    }
}

/// Reads the secret that is used to compute the hashes in counter keys.
fn read_key_secret(settings: &Settings) -> Result<Secret, Failure> {
    Ok(match &settings.key_secret_file {
        Some(path) => Secret::derive(&read_secret_file(path)?),
        None => Secret::derive(settings.key_secret.reveal()),
    })
}

/// Returns the secret with which `serve` hashes counter keys: the configured one or, with counters in
/// memory only, a random one, because no other process needs to compute the same keys.
pub(super) fn serving_key_secret(settings: &Settings) -> Result<Secret, Failure> {
    let is_configured = settings.key_secret_file.is_some() || !settings.key_secret.is_empty();
    if is_configured || settings.counts_in_redis() {
        return read_key_secret(settings);
    }
    // The keys of `RandomState` have 128 random bits, and its hashes do not reveal them.
    let random = RandomState::new();
    let words: Vec<String> = (0..4).map(|at| random.hash_one(at).to_string()).collect();
    Ok(Secret::derive(&words.join(" ")))
}

/// Returns the compiler options for policies from files and from a control plane.
pub(super) fn policy_options(settings: &Settings) -> Options {
    Options {
        merge_domains: settings.merge_domain_config,
        charge: settings.charge,
        // The ratio is 0 to 1.
        near_at: (settings.near_limit_ratio * 1e6).round() as u32,
        bounds: server_config::bounds(settings),
        file_bytes_max: settings.policy_file_size,
        total_bytes_max: settings.policy_size,
    }
}

/// Policy loaded by `tidegate check`.
#[derive(Debug)]
pub struct CheckedPolicy {
    /// Policy, loaded exactly as `serve` would load it with the same settings.
    pub loaded: LoadedPolicy,
    /// Number of errors that the policy would have in drop-in mode, where `--charge` defaults to
    /// `billed`. With `billed`, the maximum capacity of a bucket is half as large, to leave room
    /// for debt. 0 if `--charge` is set.
    pub errors_if_billed: usize,
}

/// Loads the policy at `paths` exactly as `serve` does with the same settings. The path `-` means
/// standard input.
///
/// # Errors
///
/// Returns an error if a setting is invalid, a file is unreadable, or the policy does not compile.
pub fn check(paths: &[PathBuf], sources: Sources) -> Result<CheckedPolicy, Failure> {
    // As a drop-in, only an unset `--charge` differs.
    let drop_in = Sources { drop_in: Some(DropIn::default()), ..sources.clone() };
    let is_stdin = |path: &PathBuf| path.as_os_str() == STDIN;
    let stdin = match paths {
        [only] if is_stdin(only) => Some(read_stdin().map_err(Failure::policy_files)?),
        _ if paths.iter().any(is_stdin) => {
            let reason = "`-` means standard input and cannot be combined with files: give only one \
                          of them";
            return Err(Failure::Usage(reason.to_owned()));
        }
        _ => None,
    };
    let load = |sources| match &stdin {
        Some(text) => load_text(text, sources),
        None => Ok(load_paths(paths, sources)?.0),
    };
    let loaded = load(sources)?;
    let errors_if_billed = match load(drop_in) {
        Err(Failure::Policy(errors)) => errors.0.len(),
        Ok(_) | Err(_) => 0,
    };
    Ok(CheckedPolicy { loaded, errors_if_billed })
}

/// Path that means standard input.
const STDIN: &str = "-";

/// Reads a policy from standard input, up to the largest value that `--policy-file-size` accepts.
fn read_stdin() -> Result<Source, FileError> {
    let (path, bytes_max) = (Path::new("<stdin>"), FILE_BYTES_CEILING);
    let mut text = Vec::new();
    let read = io::stdin().lock().take(bytes_max as u64 + 1).read_to_end(&mut text);
    match read {
        Err(error) => {
            let advice = "give the policy on standard input, or as a file";
            Err(unreadable_with(path, &error, advice))
        }
        Ok(bytes) if bytes > bytes_max => {
            Err(malformed(path, format!("more than {bytes_max} bytes (--policy-file-size)")))
        }
        Ok(_) => Ok(Source { name: path.display().to_string(), text }),
    }
}

/// Compiles a policy that was read from standard input.
fn load_text(text: &Source, mut sources: Sources) -> Result<LoadedPolicy, Failure> {
    sources.flags.insert("policy".to_owned(), STDIN.to_owned());
    let (settings, _) = Settings::read(&sources)?;
    PolicyLoader::new(&settings, read_key_secret(&settings)?)?.compile(&[text], RuleId(0))
}

/// Loads the policy at `paths`. Also returns the parsed settings.
///
/// # Errors
///
/// Returns the errors of [`check`].
pub fn load_paths(
    paths: &[PathBuf],
    mut sources: Sources,
) -> Result<(LoadedPolicy, Settings), Failure> {
    let has_comma = |path: &&PathBuf| path.as_os_str().as_encoded_bytes().contains(&b',');
    if let Some(path) = paths.iter().find(has_comma) {
        // `--policy` is a comma-separated list, so a comma would split the path in two.
        let reason = format!("{}: a path must not contain a comma", path.display());
        return Err(Failure::Usage(reason));
    }
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    sources.flags.insert("policy".to_owned(), paths.join(","));
    let (settings, _) = Settings::read(&sources)?;
    let (loaded, _) = PolicyLoader::new(&settings, read_key_secret(&settings)?)?.load()?;
    Ok((loaded, settings))
}

/// Returns the JSON Schema of policy files.
pub fn schema() -> String {
    // Serializing a JSON value cannot fail.
    serde_json::to_string_pretty(&policy::schema()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_in_memory_only_have_a_random_secret_until_one_is_set() {
        let secret = |flags: &[(&str, &str)]| {
            let (settings, _) = Settings::read(&Sources::from_flags(flags)).unwrap();
            serving_key_secret(&settings).unwrap().0
        };
        assert_ne!(secret(&[]), secret(&[]));
        assert_eq!(secret(&[("key-secret", "a")]), Secret::derive("a").0);
        assert_eq!(secret(&[("redis-url", "redis:6379")]), Secret::default().0);
    }
}
