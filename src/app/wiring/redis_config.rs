//! From the settings of Redis to what its connections are made from: files read, secrets placed.
//!
//! Not here: what the settings say (`settings`), connecting (`store::redis`).

use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::app::environment::secret_file;
use crate::app::exit_codes::Failure;
use crate::app::settings::{RedisAddress, RedisSettings, RedisTls, SecretText, Topology, login};
use crate::clock::Clock;
use crate::domain::Micros;
use crate::policy::Secret;
use crate::store::redis::client::config;
use crate::store::redis::client::config::{
    Address, Auth, Monotonic, OVERDUE, Password, RedisConfig, Tls, TlsReloader,
};
use crate::store::redis::keys::Prefix;

/// The version of keys and states that this build writes: replicas that disagree count apart.
const FORMAT: &str = "tg1";

/// What connections are made from; `homes` are the runtimes of their callers.
///
/// # Errors
///
/// A file that a setting names cannot be used, or the key prefix.
pub(crate) fn of(
    told: &RedisSettings,
    secret: &Secret,
    homes: Vec<Handle>,
) -> Result<RedisConfig, Failure> {
    let prefix =
        Prefix::new(&told.key_prefix).map_err(|fault| Failure::Usage(fault.to_string()))?;
    let (topology, addresses) = match &told.topology {
        Topology::Single(address) => (config::TopologyConfig::Single, vec![place(address)]),
        Topology::Sentinel { master, sentinels } => {
            let auth =
                Auth { user: told.sentinel_user.clone(), password: fixed(&told.sentinel_password) };
            let topology = config::TopologyConfig::Sentinel { master: master.clone(), auth };
            (topology, sentinels.iter().map(place).collect())
        }
        Topology::Cluster(nodes) => {
            (config::TopologyConfig::Cluster, nodes.iter().map(place).collect())
        }
    };
    Ok(RedisConfig {
        topology,
        addresses,
        auth: auth(told)?,
        tls: told.tls.as_ref().map(tls).transpose()?,
        tls_again: told.tls.clone().map(tls_again),
        db: i64::from(told.database),
        prefix,
        meta: format!("{FORMAT} {}", secret.fingerprint()),
        connections: told.connections,
        connect_timeout: told.connect_timeout,
        // A reply within its budget is never overdue.
        overdue: OVERDUE.max(told.budget * 2),
        breaker: Some(monotonic()),
        homes,
        census: told.census,
    })
}

/// The time since now, for breakers.
fn monotonic() -> Monotonic {
    let began = Clock::System.monotonic();
    Monotonic::new(move || {
        let since = Clock::System.monotonic().saturating_duration_since(began);
        Micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    })
}

fn place(address: &RedisAddress) -> Address {
    match address {
        RedisAddress::Tcp { host, port } => Address::Tcp(host.clone(), *port),
        RedisAddress::Unix(path) => Address::Unix(path.clone()),
    }
}

fn fixed(password: &SecretText) -> Password {
    match password.is_empty() {
        true => Password::None,
        false => Password::Fixed(password.reveal().to_owned()),
    }
}

/// The file is read at every dial: whoever rotates the password replaces it. The user is the one
/// it names at the start.
fn auth(told: &RedisSettings) -> Result<Auth, Failure> {
    let Some(path) = told.password_file.clone() else {
        return Ok(Auth { user: told.user.clone(), password: fixed(&told.password) });
    };
    let (user, _) = login(&secret_file(&path)?);
    let ask = move || match secret_file(&path) {
        Ok(text) => Some(login(&text).1.reveal().to_owned()),
        Err(fault) => {
            tracing::error!(%fault, "the password of Redis cannot be read");
            None
        }
    };
    Ok(Auth { user: user.or_else(|| told.user.clone()), password: Password::Asked(Arc::new(ask)) })
}

/// What `told` names, read again; a file that is not there is logged once for each dial.
fn tls_again(told: RedisTls) -> TlsReloader {
    TlsReloader::new(move || match tls(&told) {
        Ok(tls) => Some(tls),
        Err(fault) => {
            tracing::error!(%fault, "the certificates of Redis cannot be read");
            None
        }
    })
}

fn tls(told: &RedisTls) -> Result<Tls, Failure> {
    let pem = |path: &Path| crate::app::pem_file(path);
    let client = match &told.client {
        Some((chain, key)) => Some((pem(chain)?, pem(key)?)),
        None => None,
    };
    Ok(Tls {
        ca: told.ca.as_deref().map(pem).transpose()?,
        client,
        skip_hostname: told.any_host_name,
    })
}
