//! Builds the Redis client's configuration from the settings, and reads password and certificate
//! files.
//!
//! `settings` parses the settings; `store::redis` makes the connections.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::app::process::exit_codes::Failure;
use crate::app::process::files_and_env::{read_certificates, read_secret_file};
use crate::app::process::watcher_thread::WatchedValue;
use crate::settings::{RedisLogin, RedisSettings, RedisType, ServerUrl, Settings, parse_login};
use crate::store::redis::client::config::{Address, Auth, Password, RedisConfig, TopologyConfig};
use crate::store::redis::script::keys::Prefix;
use crate::tls::{CertificateReader, ClientCertificates};

/// Returns the configuration of the Redis client. Connections run on `worker_runtimes`, so that
/// each worker's calls can use a connection on the worker's own runtime.
///
/// # Errors
///
/// Returns an error if a file named in the settings cannot be read, or if the key prefix is
/// invalid.
pub(crate) fn redis_config(
    settings: &Settings,
    redis: &RedisSettings,
    worker_runtimes: Vec<Handle>,
) -> Result<RedisConfig, Failure> {
    let prefix = Prefix::new(&settings.cache_key_prefix)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let topology = match (&redis.master, settings.redis_type) {
        (Some((master, login)), _) => {
            TopologyConfig::Sentinel { master: master.clone(), auth: fixed_auth(login) }
        }
        (None, RedisType::Cluster) => TopologyConfig::Cluster,
        (None, _) => TopologyConfig::Single,
    };
    Ok(RedisConfig {
        topology,
        addresses: redis.addresses.iter().map(address).collect(),
        auth: auth(settings, redis)?,
        tls: redis.uses_tls.then(|| read_tls(settings)).transpose()?,
        tls_reloader: redis.uses_tls.then(|| tls_reloader(settings.clone())).transpose()?,
        db: i64::from(redis.database),
        prefix,
        connections_per_node: settings.redis_pool_size,
        connect_timeout: settings.redis_timeout,
        worker_runtimes,
        // Every 10 s, so that each scrape, usually every 15 s, finds new values.
        info_interval: Some(settings.test_info_poll),
        ..RedisConfig::default()
    })
}

fn address(url: &ServerUrl) -> Address {
    match url.port.filter(|_| !url.host.is_empty()) {
        Some(port) => Address::Tcp(url.host.clone(), port),
        None => Address::Unix(url.path.clone().into()),
    }
}

fn fixed_auth((user, password): &RedisLogin) -> Auth {
    let password = match password.is_empty() {
        true => Password::None,
        false => Password::Fixed(password.reveal().to_owned()),
    };
    Auth { user: user.clone(), password }
}

/// Returns the Redis credentials. If they come from a password file, a background thread rereads
/// the password every second, so that the password can be rotated. New connections use the last
/// password read, so a hanging file system does not delay them. The user name in the file is read
/// only once, at startup.
fn auth(settings: &Settings, redis: &RedisSettings) -> Result<Auth, Failure> {
    let Some(path) = settings.redis_auth_file.clone() else {
        return Ok(fixed_auth(&redis.login));
    };
    let (user, _) = parse_login(&read_secret_file(&path)?);
    let read = move || Ok(parse_login(&read_secret_file(&path)?).1.reveal().to_owned());
    let on_failure =
        |error: &Failure| tracing::error!(%error, "cannot read the Redis password file");
    let password = WatchedValue::start("redis-password", read, on_failure)?;
    Ok(Auth {
        user: user.or_else(|| redis.login.0.clone()),
        password: Password::Reloaded(Arc::new(move || password.get())),
    })
}

/// Returns the reader of the Redis certificates. A background thread rereads the certificate files
/// every second.
fn tls_reloader(settings: Settings) -> Result<CertificateReader, Failure> {
    let on_failure =
        |error: &Failure| tracing::error!(%error, "cannot read the Redis certificates");
    let latest = WatchedValue::start("redis-tls", move || read_tls(&settings), on_failure)?;
    Ok(CertificateReader::new(move || latest.get()))
}

fn read_tls(settings: &Settings) -> Result<ClientCertificates, Failure> {
    let (chain, key) = (&settings.redis_tls_client_cert, &settings.redis_tls_client_key);
    let client = chain.as_deref().zip(key.as_deref());
    let certificates = read_certificates(settings.redis_tls_cacert.as_deref(), client)?;
    let skip_hostname = settings.redis_tls_skip_hostname_verification;
    Ok(ClientCertificates { skip_hostname, ..certificates })
}
