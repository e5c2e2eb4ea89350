//! Raises the process's limit on open files, which also limits the number of connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard limit. Shells and service managers start
/// programs with a soft limit of 1,024, because `select` cannot handle more. At 1,024, a thousand
/// idle connections on the HTTP port would leave no file descriptors for gRPC. On failure, logs a
/// warning and keeps the old limit.
pub(crate) fn raise_open_file_limit() {
    let granted = getrlimit(Resource::Nofile);
    if granted.current == granted.maximum {
        return;
    }
    let raised = Rlimit { current: granted.maximum, maximum: granted.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, open_files = granted.current, "cannot raise the limit on open files");
    }
}
