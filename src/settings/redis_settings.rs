//! The settings of the Redis store as one plain value: where the servers are, in each of the forms
//! that envoyproxy/ratelimit and Redis tools write them, who we are to them, and how TLS is done.
//!
//! Not here: connecting (`store::redis`).

use std::path::PathBuf;
use std::time::Duration;

use super::value_types::{RedisType, SecretText};
use super::{SettingError, Settings};

/// A port that Redis listens on unless told otherwise.
const REDIS_PORT: u16 = 6_379;
/// A port that sentinels listen on unless told otherwise.
const SENTINEL_PORT: u16 = 26_379;
/// Databases that a server can be configured for; more is a typing error.
const DATABASE_MAX: u32 = 65_535;

/// Where one server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddress {
    /// A host and a port.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// How many servers there are and who knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single(RedisAddress),
    /// Sentinels name the present master.
    Sentinel {
        /// The master's name.
        master: String,
        /// At least one.
        sentinels: Vec<RedisAddress>,
    },
    /// A Redis Cluster: at least one node to ask for the others.
    Cluster(Vec<RedisAddress>),
}

/// How TLS is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisTls {
    /// Whose certificates are believed, PEM; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate and private key, PEM.
    pub client: Option<(PathBuf, PathBuf)>,
    /// A certificate for another name is accepted.
    pub any_host_name: bool,
}

/// Everything that the Redis store is told.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Where the servers are.
    pub topology: Topology,
    /// The database; 0 unless the URL says otherwise, always 0 in a cluster.
    pub database: u32,
    /// The user, where it is not the default one.
    pub user: Option<String>,
    /// The password; may be empty.
    pub password: SecretText,
    /// A file with the password (or user:password), read again when it changes.
    pub password_file: Option<PathBuf>,
    /// The sentinels' user and password.
    pub sentinel_user: Option<String>,
    /// The sentinels' password; may be empty.
    pub sentinel_password: SecretText,
    /// TLS, if it is used.
    pub tls: Option<RedisTls>,
    /// Connections to each server.
    pub connections: usize,
    /// Time to connect.
    pub connect_timeout: Duration,
    /// How often servers are asked for their own figures; `None`: never.
    pub census: Option<Duration>,
    /// Time that a call has.
    pub budget: Duration,
    /// Start of every key.
    pub key_prefix: String,
}

/// One item of `redis-url`, taken apart.
struct Url {
    address: RedisAddress,
    user: Option<String>,
    password: Option<String>,
    database: u32,
    tls: bool,
}

impl Settings {
    /// The Redis store's settings.
    ///
    /// # Errors
    ///
    /// An address that cannot be read, or settings that contradict each other.
    pub fn redis(&self) -> Result<RedisSettings, SettingError> {
        let fault = |way_out: &str| SettingError::Together {
            names: "--redis-url, --redis-type",
            way_out: way_out.to_owned(),
        };
        let items: Vec<&str> = self
            .redis_url
            .reveal()
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .collect();
        let (master, items) = match (self.redis_type, items.as_slice()) {
            (RedisType::Sentinel, [master, rest @ ..]) if !rest.is_empty() => {
                (Some((*master).to_owned()), rest)
            }
            (RedisType::Sentinel, _) => {
                return Err(fault("for sentinel: the master's name, then host:port of sentinels"));
            }
            (RedisType::Single, [_]) | (RedisType::Cluster, [_, ..]) => (None, items.as_slice()),
            (RedisType::Single, _) => {
                return Err(fault("one address; several need --redis-type cluster or sentinel"));
            }
            (RedisType::Cluster, []) => return Err(fault("for cluster: host:port of nodes")),
        };
        let port = if master.is_some() { SENTINEL_PORT } else { REDIS_PORT };
        let unix = self.redis_socket_type.eq_ignore_ascii_case("unix");
        let urls: Vec<Url> = items
            .iter()
            .map(|item| parse(item, port, unix))
            .collect::<Result<_, _>>()
            .map_err(|wrong| fault(&wrong))?;
        self.assemble(master, urls).ok_or_else(|| {
            fault(
                "databases other than 0 do not exist in a cluster, and its nodes and sentinels \
                 are not on unix sockets",
            )
        })
    }

    fn assemble(&self, master: Option<String>, urls: Vec<Url>) -> Option<RedisSettings> {
        let first = urls.first()?;
        let (database, tls) = (first.database, self.redis_tls || first.tls);
        let (mut user, mut password) = login(self.redis_auth.reveal());
        if password.is_empty() {
            user = first.user.clone();
            password = SecretText::from(first.password.as_deref().unwrap_or_default());
        }
        let several = master.is_some() || self.redis_type == RedisType::Cluster;
        let addresses: Vec<RedisAddress> = urls.into_iter().map(|url| url.address).collect();
        if several && addresses.iter().any(|address| matches!(address, RedisAddress::Unix(_))) {
            return None;
        }
        if self.redis_type == RedisType::Cluster && database != 0 {
            return None;
        }
        let topology = match (master, self.redis_type) {
            (Some(master), _) => Topology::Sentinel { master, sentinels: addresses },
            (None, RedisType::Cluster) => Topology::Cluster(addresses),
            (None, _) => Topology::Single(addresses.into_iter().next()?),
        };
        let (sentinel_user, sentinel_password) = login(self.redis_sentinel_auth.reveal());
        let client = self.redis_tls_client_cert.clone().zip(self.redis_tls_client_key.clone());
        Some(RedisSettings {
            topology,
            database,
            user,
            password,
            password_file: self.redis_auth_file.clone(),
            sentinel_user,
            sentinel_password,
            tls: tls.then(|| RedisTls {
                ca: self.redis_tls_cacert.clone(),
                client,
                any_host_name: self.redis_tls_skip_hostname_verification,
            }),
            connections: self.redis_pool_size,
            connect_timeout: self.redis_timeout,
            census: Some(self.redis_info_poll).filter(|every| !every.is_zero()),
            budget: self.store_budget,
            key_prefix: self.cache_key_prefix.clone(),
        })
    }
}

/// User and password out of `password`, or `user:password`. As envoyproxy/ratelimit reads it: a bare
/// password that contains a colon must be written with an empty user in front, `:pass:word`.
pub fn login(auth: &str) -> (Option<String>, SecretText) {
    match auth.split_once(':') {
        Some((user, password)) => {
            ((!user.is_empty()).then(|| user.to_owned()), SecretText::from(password))
        }
        None => (None, SecretText::from(auth)),
    }
}

/// Diagnostics never repeat the text: it may hold a password.
fn parse(item: &str, default_port: u16, unix: bool) -> Result<Url, String> {
    let bare = |address, tls| Url { address, user: None, password: None, database: 0, tls };
    let (scheme, rest) = item.split_once("://").unwrap_or(("", item));
    let tls = match scheme {
        "" if unix || rest.starts_with('/') => {
            return Ok(bare(RedisAddress::Unix(PathBuf::from(rest)), false));
        }
        "unix" | "redis+unix" if rest.starts_with('/') => {
            return Ok(bare(RedisAddress::Unix(PathBuf::from(rest)), false));
        }
        "" | "redis" | "tcp" => false,
        "rediss" => true,
        _ => return Err("the scheme is redis://, rediss:// or unix:///path".to_owned()),
    };
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let database = match database {
        "" => 0,
        number => number
            .parse()
            .ok()
            .filter(|number| *number <= DATABASE_MAX)
            .ok_or("after the last slash comes the database's number".to_owned())?,
    };
    let (credentials, place) = match authority.rsplit_once('@') {
        Some((credentials, place)) => (Some(credentials), place),
        None => (None, authority),
    };
    let address = host_and_port(place, default_port)
        .ok_or_else(|| "an address is host:port, such as redis:6379 or [::1]:6379".to_owned())?;
    let (user, password) = match credentials.map(|text| text.split_once(':')) {
        None => (None, None),
        Some(Some((user, password))) => {
            ((!user.is_empty()).then(|| user.to_owned()), Some(password.to_owned()))
        }
        Some(None) => {
            return Err("a login in an address is user:password@ or :password@".to_owned());
        }
    };
    Ok(Url { address, user, password, database, tls })
}

fn host_and_port(place: &str, default_port: u16) -> Option<RedisAddress> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':'))
        }
        None => match place.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => return None,
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => default_port,
    };
    let good = !host.is_empty() && !host.contains(char::is_whitespace);
    good.then(|| RedisAddress::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    fn read(flags: &[(&str, &str)]) -> Result<RedisSettings, Vec<SettingError>> {
        let flags = flags.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        let (settings, _) = Settings::read(&Sources { flags, ..Sources::default() })?;
        settings.redis().map_err(|fault| vec![fault])
    }

    fn tcp(host: &str, port: u16) -> RedisAddress {
        RedisAddress::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn every_form_of_an_address_is_read() {
        let single = |url: &str| match read(&[("redis-url", url)]).unwrap().topology {
            Topology::Single(address) => address,
            other => panic!("{other:?}"),
        };
        assert_eq!(single("redis:6379"), tcp("redis", 6379));
        assert_eq!(single("redis"), tcp("redis", 6379));
        assert_eq!(single("[::1]:7000"), tcp("::1", 7000));
        assert_eq!(single("redis://h:1/0"), tcp("h", 1));
        assert_eq!(single("/run/redis.sock"), RedisAddress::Unix("/run/redis.sock".into()));
        assert_eq!(single("unix:///run/r"), RedisAddress::Unix("/run/r".into()));
    }

    #[test]
    fn a_url_brings_login_database_and_tls() {
        let redis = read(&[("redis-url", "rediss://ann:p:w@h:1/3")]).unwrap();
        assert_eq!(redis.user.as_deref(), Some("ann"));
        assert_eq!(redis.password.reveal(), "p:w");
        assert_eq!(redis.database, 3);
        assert!(redis.tls.is_some());
    }

    #[test]
    fn auth_is_a_password_or_user_and_password() {
        let with = |auth| read(&[("redis-url", "h:1"), ("redis-auth", auth)]).unwrap();
        assert_eq!((with("pw").user, with("pw").password.reveal().to_owned()), (None, "pw".into()));
        assert_eq!(with("ann:pw").user.as_deref(), Some("ann"));
    }

    #[test]
    fn a_sentinel_url_begins_with_the_masters_name() {
        let flags = [("redis-type", "SENTINEL"), ("redis-url", "mymaster,a:1,b")];
        let sentinels = vec![tcp("a", 1), tcp("b", SENTINEL_PORT)];
        let master = "mymaster".to_owned();
        assert_eq!(read(&flags).unwrap().topology, Topology::Sentinel { master, sentinels });
        assert!(read(&[("redis-type", "sentinel"), ("redis-url", "a:1")]).is_err());
    }

    #[test]
    fn a_cluster_url_is_a_list_of_nodes() {
        let flags = [("redis-type", "cluster"), ("redis-url", "a:1, b:2")];
        let nodes = vec![tcp("a", 1), tcp("b", 2)];
        assert_eq!(read(&flags).unwrap().topology, Topology::Cluster(nodes));
        assert!(read(&[("redis-url", "a:1,b:2")]).is_err(), "several, but single");
        assert!(read(&[("redis-type", "cluster"), ("redis-url", "redis://a:1/2")]).is_err());
    }

    #[test]
    fn a_fault_does_not_repeat_a_password() {
        let faults = read(&[("redis-url", "http://ann:hunter2@h:1")]).unwrap_err();
        assert!(!faults[0].to_string().contains("hunter2"), "{}", faults[0]);
    }
}
