//! Builds the process's store: the memory store, or Redis with the memory store as fallback.

use std::time::Duration;

use tokio::runtime::Handle;

use super::redis_config::redis_config;
use crate::app::process::exit_codes::Failure;
use crate::clock::Clock;
use crate::decide::Decider;
use crate::domain::FailureKind;
use crate::limiter::any_store::AnyStore;
use crate::policy::Secret;
use crate::resilience::stack::StackConfig;
use crate::settings::Settings;
use crate::store::Store as _;
use crate::telemetry::Telemetry;

/// Decider of the running service. It uses the configured store and reports its decisions to
/// telemetry.
pub(crate) type ServiceDecider = Decider<AnyStore, Telemetry>;

/// Maximum time to wait for Redis under `--require-redis`, 10 s. Enough for Redis to load a data
/// set or for Sentinel to elect a master. If Redis takes longer, the process exits with code 69 and
/// its supervisor restarts it.
const REQUIRED_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl AnyStore {
    /// Opens the configured store. Connections to Redis are opened in the background and run on the
    /// `workers` runtimes, so that each worker's calls can use a connection on the worker's own
    /// runtime.
    pub(crate) fn open(
        settings: &Settings,
        secret: &Secret,
        workers: Vec<Handle>,
    ) -> Result<AnyStore, Failure> {
        if !settings.counts_in_redis() {
            return Ok(AnyStore::in_memory(settings.max_keys));
        }
        let redis = settings.redis().map_err(|error| vec![error])?;
        let config = redis_config(settings, &redis, workers)?;
        let stack = StackConfig {
            budget: settings.redis_budget,
            // Without the setting, replicas count each other in Redis.
            replicas: settings.replicas.unwrap_or(1),
            refusal_cache: settings.rejection_cache,
        };
        let opened = AnyStore::open_redis(config, stack, secret, settings.max_keys, Clock::System);
        opened.map_err(|error| Failure::Usage(error.to_string()))
    }

    /// Waits until Redis is connected, so that the first calls to a new replica do not fail.
    /// Without `--require-redis`, waits at most `--redis-timeout`, because calls can be decided
    /// without Redis. Returns whether the store is connected.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Unavailable`] if `--require-redis` is set and Redis was not reached within ten
    /// seconds.
    pub(crate) async fn wait_until_ready(&self, settings: &Settings) -> Result<bool, Failure> {
        let Some(redis) = self.redis() else { return Ok(true) };
        let is_required = settings.require_redis;
        let wait_max = if is_required { REQUIRED_CONNECT_TIMEOUT } else { settings.redis_timeout };
        match tokio::time::timeout(wait_max, self.wait_until_connected()).await {
            Ok(()) => {
                tracing::info!("Redis is connected");
                Ok(true)
            }
            Err(_) if is_required => {
                let cause = redis
                    .remote()
                    .failure(FailureKind::NotConnected)
                    .map_or(String::new(), |why| format!(": {why}"));
                Err(Failure::Unavailable(format!(
                    "--require-redis: Redis was not reached within {wait_max:?}{cause}"
                )))
            }
            Err(_) => {
                tracing::warn!("Redis is not connected, starting without it");
                Ok(false)
            }
        }
    }
}
