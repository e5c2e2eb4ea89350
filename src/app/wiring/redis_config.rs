//! Builds the Redis client's configuration from the settings, and reads password and certificate
//! files.
//!
//! `settings` parses the settings; `store::redis` makes the connections.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::app::exit_codes::Failure;
use crate::app::files_and_env::read_secret_file;
use crate::app::read_certificates;
use crate::app::watcher_thread::WatchedValue;
use crate::clock::Clock;
use crate::policy::Secret;
use crate::settings::{
    RedisAddress, RedisSettings, RedisTls, RedisTopology, SecretText, parse_login,
};
use crate::store::redis::client::config;
use crate::store::redis::client::config::{Address, Auth, MonotonicClock, Password, RedisConfig};
use crate::store::redis::keys::{Prefix, key_format};
use crate::tls::{CertificateReader, ClientCertificates};

/// Returns the configuration of the Redis client. Connections run on `worker_runtimes`, so that
/// each worker's calls can use a connection on the worker's own runtime.
///
/// # Errors
///
/// Returns an error if a file named in the settings cannot be read, or if the key prefix is
/// invalid.
pub(crate) fn redis_config(
    settings: &RedisSettings,
    secret: &Secret,
    worker_runtimes: Vec<Handle>,
) -> Result<RedisConfig, Failure> {
    let prefix =
        Prefix::new(&settings.key_prefix).map_err(|error| Failure::Usage(error.to_string()))?;
    let (topology, addresses) = match &settings.topology {
        RedisTopology::Single(single) => (config::TopologyConfig::Single, vec![address(single)]),
        RedisTopology::Sentinel { master, sentinels } => {
            let auth = Auth {
                user: settings.sentinel_user.clone(),
                password: fixed_password(&settings.sentinel_password),
            };
            let topology = config::TopologyConfig::Sentinel { master: master.clone(), auth };
            (topology, sentinels.iter().map(address).collect())
        }
        RedisTopology::Cluster(nodes) => {
            (config::TopologyConfig::Cluster, nodes.iter().map(address).collect())
        }
    };
    Ok(RedisConfig {
        topology,
        addresses,
        auth: auth(settings)?,
        tls: settings.tls.as_ref().map(read_tls).transpose()?,
        tls_reloader: settings.tls.clone().map(tls_reloader).transpose()?,
        db: i64::from(settings.database),
        prefix,
        meta: key_format(&secret.fingerprint()),
        connections_per_node: settings.connections,
        connect_timeout: settings.connect_timeout,
        breaker_clock: Some(monotonic_clock()),
        worker_runtimes,
        info_interval: Some(settings.info_interval),
        ..RedisConfig::with_budget(settings.budget)
    })
}

/// Returns a monotonic clock for the circuit breakers. Its time starts at zero when this function
/// is called.
fn monotonic_clock() -> MonotonicClock {
    MonotonicClock::new(|| Clock::System.monotonic_now())
}

fn address(configured: &RedisAddress) -> Address {
    match configured {
        RedisAddress::Tcp { host, port } => Address::Tcp(host.clone(), *port),
        RedisAddress::Unix(path) => Address::Unix(path.clone()),
    }
}

fn fixed_password(password: &SecretText) -> Password {
    match password.is_empty() {
        true => Password::None,
        false => Password::Fixed(password.reveal().to_owned()),
    }
}

/// Returns the Redis credentials. If they come from a password file, a background thread rereads
/// the password every second, so that the password can be rotated. New connections use the last
/// password read, so a hanging file system does not delay them. The user name in the file is read
/// only once, at startup.
fn auth(settings: &RedisSettings) -> Result<Auth, Failure> {
    let Some(path) = settings.password_file.clone() else {
        return Ok(Auth {
            user: settings.user.clone(),
            password: fixed_password(&settings.password),
        });
    };
    let (user, _) = parse_login(&read_secret_file(&path)?);
    let read = move || Ok(parse_login(&read_secret_file(&path)?).1.reveal().to_owned());
    let on_failure =
        |error: &Failure| tracing::error!(%error, "cannot read the Redis password file");
    let password = WatchedValue::start("redis-password", read, on_failure)?;
    Ok(Auth {
        user: user.or_else(|| settings.user.clone()),
        password: Password::Reloaded(Arc::new(move || password.get())),
    })
}

/// Returns the reader of the Redis certificates. A background thread rereads the certificate files
/// every second.
fn tls_reloader(settings: RedisTls) -> Result<CertificateReader, Failure> {
    let on_failure =
        |error: &Failure| tracing::error!(%error, "cannot read the Redis certificates");
    let latest = WatchedValue::start("redis-tls", move || read_tls(&settings), on_failure)?;
    Ok(CertificateReader::new(move || latest.get()))
}

fn read_tls(settings: &RedisTls) -> Result<ClientCertificates, Failure> {
    let RedisTls { ca, client, skip_hostname_verification } = settings;
    let client = client.as_ref().map(|(chain, key)| (chain.as_path(), key.as_path()));
    let certificates = read_certificates(ca.as_deref(), client)?;
    Ok(ClientCertificates { skip_hostname: *skip_hostname_verification, ..certificates })
}
