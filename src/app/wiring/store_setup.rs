//! Where hits are counted in this process: the embedded store, or Redis with the embedded store
//! behind it.
//!
//! Not here: algorithm; which settings mean Redis (`settings`), what it is made from
//! (`redis_config`).

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::redis_config;
use crate::app::exit_codes::Failure;
use crate::app::settings::Settings;
use crate::clock::Clock;
use crate::decide::Decider;
use crate::domain::{Answers, Call, Receipt};
use crate::policy::Secret;
use crate::resilience::deadline::Deadline;
use crate::resilience::fallback::{Fallback, StandIn};
use crate::resilience::in_flight_limit;
use crate::resilience::refusal_cache::RefusalCache;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::store::redis::RedisStore;
use crate::store::redis::client::topology::Connections;
use crate::store::redis::client::transport::Transport;
use crate::store::redis::script::library::PRODUCTION;
use crate::store::redis::store::Timing;
use crate::telemetry::Telemetry;

/// Redis as the service asks it, from the outside in: with the embedded store behind it, for no
/// longer than the budget, not again what was refused a moment ago, by Lua.
pub(crate) type Shared = Fallback<Deadline<RefusalCache<RedisStore<Connections>>>, MemoryStore>;

/// What decides in this process.
pub(crate) type Deciding = Decider<AnyStore, Arc<Telemetry>>;

/// How long a start under `--require-store` waits for the store: a server that loads its data set,
/// or sentinels that elect, take seconds; a supervisor that sees exit code 69 starts us again.
const REQUIRED_WITHIN: Duration = Duration::from_secs(10);

/// The store of this process, chosen at start.
#[derive(Debug)]
pub(crate) enum AnyStore {
    /// Counters of this process alone. Boxed, as the other is, so that neither makes the other
    /// larger.
    Memory(Box<MemoryStore>),
    /// Counters shared by all replicas.
    Redis(Box<Shared>),
}

impl AnyStore {
    /// The store that the settings choose. Redis is dialled in the background; its connections live on
    /// `cores`, beside the calls that wait for them.
    pub(crate) fn open(
        settings: &Settings,
        secret: &Secret,
        cores: Vec<Handle>,
    ) -> Result<AnyStore, Failure> {
        if !settings.counts_in_redis() {
            return Ok(AnyStore::Memory(Box::new(MemoryStore::new(settings.max_keys))));
        }
        let told = settings.redis().map_err(|fault| Failure::Settings(vec![fault]))?;
        let config = redis_config::of(&told, secret, cores)?;
        let prefix = config.prefix.clone();
        let connections = Connections::open(config, PRODUCTION.each().to_vec())
            .map_err(|fault| Failure::Usage(fault.to_string()))?;
        let splits = connections.is_cluster();
        let redis = RedisStore::new(connections, prefix, Timing::Server);
        let remember = RefusalCache::new(redis, splits).switched(settings.refusal_cache);
        let remote = Deadline::new(remember, told.budget, Clock::System);
        let local = MemoryStore::new(settings.max_keys);
        let stand_in = StandIn {
            replicas: settings.replicas,
            // A budget that somebody raised is waited for: only what outlives it is too old.
            age_max: in_flight_limit::AGE_MAX.max(in_flight_limit::age_max(told.budget)),
            ..StandIn::default()
        };
        Ok(AnyStore::Redis(Box::new(Fallback::new(remote, local, stand_in))))
    }

    /// Waits until the store can be asked, so that a replica that joins does not fail its first
    /// calls; but not for long, because without it there is still an answer to be given.
    ///
    /// # Errors
    ///
    /// [`Failure::Store`] under `--require-store`, if it cannot.
    pub(crate) async fn until_ready(&self, settings: &Settings) -> Result<(), Failure> {
        let AnyStore::Redis(shared) = self else { return Ok(()) };
        let required = settings.require_store;
        let within = if required { REQUIRED_WITHIN } else { settings.redis_timeout };
        let connected = connections(shared).until_connected();
        match tokio::time::timeout(within, connected).await {
            Ok(()) => tracing::info!("Redis is connected"),
            Err(_) if required => {
                let wrong = format!("Redis was not reached within {within:?}, and --require-store");
                return Err(Failure::Store(wrong));
            }
            Err(_) => tracing::warn!("Redis is not connected: starting without it"),
        }
        Ok(())
    }

    /// Forgets what was learnt under the former policy.
    pub(crate) fn forget(&self) {
        if let AnyStore::Redis(shared) = self {
            shared.remote().store().forget_all();
        }
    }

    /// The embedded store: the one that counts, or the one behind Redis.
    pub(crate) fn memory(&self) -> &MemoryStore {
        match self {
            AnyStore::Memory(memory) => memory,
            AnyStore::Redis(shared) => shared.local(),
        }
    }

    /// Redis, if this is it.
    pub(crate) fn redis(&self) -> Option<&Shared> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(shared) => Some(shared),
        }
    }
}

/// The connections below what guards them.
pub(crate) fn connections(shared: &Shared) -> &Connections {
    shared.remote().store().inner().transport()
}

impl Store for AnyStore {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        match self {
            AnyStore::Memory(memory) => memory.apply(call).await,
            // Boxed, so that calls that count in memory do not carry the room for it: it is twice
            // what they need.
            AnyStore::Redis(shared) => Box::pin(shared.apply(call)).await,
        }
    }

    async fn refund(&self, receipts: &[Receipt]) {
        match self {
            AnyStore::Memory(memory) => memory.refund(receipts).await,
            AnyStore::Redis(shared) => shared.refund(receipts).await,
        }
    }
}
