//! How many files, and so connections, the process may have open: as many as the system grants.
//!
//! Not here: how many connections each port takes (`ports`, `admin`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft bound to the hard one. Shells and service managers start programs with a soft
/// 1,024, low for the sake of old ones that call `select`; a thousand idle connections on the HTTP
/// port would leave none for calls. A system that refuses is served within what it grants.
pub(super) fn raise() {
    let granted = getrlimit(Resource::Nofile);
    if granted.current == granted.maximum {
        return;
    }
    let raised = Rlimit { current: granted.maximum, maximum: granted.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, open_files = granted.current, "open files: no more are granted");
    }
}
