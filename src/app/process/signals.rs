//! Signal handling: SIGTERM and SIGINT stop the service, SIGHUP reloads the policy and the
//! certificates, and signals that mean something to other servers only are logged.

use std::process;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit_codes::Failure;
use crate::server::Drain;

/// Signals without a meaning here. Other servers reopen logs or dump their state on some of them, so
/// operators send them, and the default action would terminate the process. SIGQUIT keeps its
/// default action, because it asks for a core dump.
const UNUSED: [(SignalKind, &str); 4] = [
    (SignalKind::user_defined1(), "SIGUSR1"),
    (SignalKind::user_defined2(), "SIGUSR2"),
    (SignalKind::alarm(), "SIGALRM"),
    (SignalKind::io(), "SIGIO"),
];

/// Installed signal handlers. They replace the default action of SIGTERM, SIGINT, SIGHUP and of the
/// unused signals, which is to terminate the process.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Installs the signal handlers, and starts to log unused signals.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Unavailable`] if the operating system rejects a handler.
    pub(crate) fn install() -> Result<Signals, Failure> {
        let handle = |kind| signal(kind).map_err(Failure::runtime);
        for (kind, signal) in UNUSED {
            let mut received = handle(kind)?;
            tokio::spawn(async move {
                while received.recv().await.is_some() {
                    let advice = "SIGHUP reloads the policy and the certificates, SIGTERM stops";
                    tracing::info!(signal, advice, "signal ignored");
                }
            });
        }
        Ok(Signals {
            terminate: handle(SignalKind::terminate())?,
            interrupt: handle(SignalKind::interrupt())?,
            hang_up: handle(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGTERM or SIGINT, and returns whether the drain delay applies. SIGINT skips the
    /// delay, because a person who presses Ctrl-C does not want to wait, and no load balancer has
    /// to notice the shutdown. Calls `reload` on each SIGHUP.
    pub(crate) async fn wait_for_stop(&mut self, reload: impl Fn()) -> Drain {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Drain::AfterDelay,
                _ = self.interrupt.recv() => return Drain::AtOnce,
                _ = self.hang_up.recv() => reload(),
            }
        }
    }

    /// Exits on the next SIGTERM or SIGINT, without waiting for calls or connections to finish.
    pub(crate) async fn exit_on_next_signal(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        tracing::warn!("second signal, exiting immediately");
        process::exit(0);
    }
}
