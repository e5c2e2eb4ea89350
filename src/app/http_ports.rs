//! HTTP ports of the service: public, debug and, if configured, a Prometheus port like that of
//! envoyproxy/ratelimit.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::admin_wiring::{AdminWiring, MetricsEndpoints};
use super::debug_port::debug_routes;
use super::process::exit_codes::Failure;
use super::wiring::server_config;
use crate::admin::{self, AllowedHosts, HTTP_CONNECTIONS_MAX, HttpPhase};
use crate::settings::Settings;

/// HTTP listeners that are bound but not yet serving requests.
pub(super) struct HttpPorts {
    public: TcpListener,
    debug: TcpListener,
    prometheus: Option<TcpListener>,
}

impl HttpPorts {
    /// Binds the addresses from the settings.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Unavailable`] for the first address that cannot be resolved or bound.
    pub(super) async fn bind(settings: &Settings) -> Result<Self, Failure> {
        let (host, port) = &settings.prometheus_addr;
        Ok(HttpPorts {
            public: bind(&settings.http_host, settings.http_port, HTTP_FLAGS).await?,
            debug: bind(&settings.debug_host, settings.debug_port, DEBUG_FLAGS).await?,
            prometheus: match settings.use_prometheus {
                true => Some(bind(host, *port, PROMETHEUS_FLAGS).await?),
                false => None,
            },
        })
    }

    /// Logs the bound addresses. If a port is configured as 0, this log line shows which port the
    /// operating system has chosen.
    pub(super) fn log_addresses(&self, grpc: Option<String>) {
        let address = |listener: &TcpListener| {
            listener.local_addr().as_ref().map(SocketAddr::to_string).unwrap_or_default()
        };
        tracing::info!(
            grpc,
            http = address(&self.public),
            debug = address(&self.debug),
            prometheus = self.prometheus.as_ref().map(address),
            "listening"
        );
    }

    /// Starts serving requests, with one task per port.
    pub(super) fn serve(
        self,
        wiring: &Arc<AdminWiring>,
        metrics: MetricsEndpoints,
    ) -> RunningHttpPorts {
        let (phase, phases) = watch::channel(HttpPhase::Serving);
        let mut running = RunningHttpPorts { tasks: JoinSet::new(), phase };
        let unreadable = Arc::clone(&wiring.unreadable);
        let mut spawn = |listener: TcpListener, routes| {
            running.tasks.spawn(admin::serve(
                listener,
                routes,
                HTTP_CONNECTIONS_MAX,
                Arc::clone(&unreadable),
                phases.clone(),
            ));
        };
        let MetricsEndpoints { public, with_ratelimit_names } = metrics;
        let hosts = allowed_hosts(&self.debug);
        let json = wiring.json_bodies();
        spawn(self.public, admin::public_routes(Arc::clone(wiring), public, json));
        let with_names = Arc::clone(&with_ratelimit_names);
        spawn(self.debug, debug_routes().build(Arc::clone(wiring), with_names, hosts));
        if let Some(listener) = self.prometheus {
            let path = &wiring.configuration.settings.prometheus_path;
            spawn(listener, admin::metrics_routes(with_ratelimit_names, path));
        }
        running
    }
}

pub(super) struct RunningHttpPorts {
    tasks: JoinSet<()>,
    phase: watch::Sender<HttpPhase>,
}

impl RunningHttpPorts {
    /// Makes each response close its connection from now on. Called when the drain delay begins.
    pub(super) fn leave(&self) {
        self.phase.send_replace(HttpPhase::Leaving);
    }

    /// Stops accepting requests, and waits until `deadline` for requests in flight to finish.
    pub(super) async fn stop(mut self, deadline: Instant) {
        self.phase.send_replace(HttpPhase::Draining);
        let stopped = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout_at(deadline, stopped).await;
    }
}

/// Returns the host names that the debug port accepts in the `Host` header: only local ones if the
/// port listens on loopback.
fn allowed_hosts(debug: &TcpListener) -> AllowedHosts {
    match debug.local_addr() {
        Ok(address) if !address.ip().is_loopback() => AllowedHosts::Any,
        Ok(_) | Err(_) => AllowedHosts::Local,
    }
}

const HTTP_FLAGS: [&str; 2] = ["--http-host", "--http-port"];
const DEBUG_FLAGS: [&str; 2] = ["--debug-host", "--debug-port"];
const PROMETHEUS_FLAGS: [&str; 2] = ["--prometheus-addr", "--prometheus-addr"];

async fn bind(host: &str, port: u16, flags: [&'static str; 2]) -> Result<TcpListener, Failure> {
    let address = server_config::resolve(host, port, flags)?;
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| Failure::address(flags, &address.to_string(), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_debug_port_on_loopback_is_limited_to_local_host_names() {
        for (address, hosts) in
            [("127.0.0.1:0", AllowedHosts::Local), ("0.0.0.0:0", AllowedHosts::Any)]
        {
            let listener = TcpListener::bind(address).await.unwrap();
            assert_eq!(allowed_hosts(&listener), hosts, "{address}");
        }
    }
}
