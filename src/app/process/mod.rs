//! What the process reads from its environment and its files, when it stops, and with which exit
//! code.

pub(crate) mod exit_codes;
pub(crate) mod files_and_env;
pub(crate) mod rlimit;
pub(crate) mod signals;
pub(crate) mod watcher_thread;
