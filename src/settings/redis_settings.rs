//! Settings of the Redis store. Parses Redis addresses in the formats that envoyproxy/ratelimit and
//! Redis tools accept.

use std::path::PathBuf;

use super::precedence::mask_password;
use super::setting_error::SettingError;
use super::table::Settings;
use super::value_types::{RedisType, SecretText};

/// Default TCP port of a Redis server.
const REDIS_PORT: u16 = 6_379;
/// Default TCP port of a Redis Sentinel.
const SENTINEL_PORT: u16 = 26_379;
/// Maximum Redis database number that is accepted. A larger number is probably a typo.
const DATABASE_MAX: u32 = 65_535;

/// Address of a Redis server or a Redis Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddress {
    /// TCP address.
    Tcp {
        /// Host name or IP address.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// What the settings of the Redis store say together.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Name under which the sentinels monitor the master; `None` without sentinels.
    pub master: Option<String>,
    /// Addresses to connect to first, at least one: of the server, of the sentinels, or of nodes of
    /// a cluster, from which the other nodes are discovered.
    pub addresses: Vec<RedisAddress>,
    /// Redis database number; always 0 in a cluster.
    pub database: u32,
    /// Redis user name; `None` means the server's default user.
    pub user: Option<String>,
    /// Redis password; empty if Redis requires none.
    pub password: SecretText,
    /// Whether connections use TLS.
    pub uses_tls: bool,
}

/// Entry of the `--redis-url` list, parsed into address, credentials, database number, and whether
/// the connection uses TLS.
struct ParsedRedisUrl {
    address: RedisAddress,
    user: Option<String>,
    password: Option<String>,
    database: u32,
    tls: bool,
}

impl Settings {
    /// Returns the settings for the Redis store.
    ///
    /// # Errors
    ///
    /// Returns an error if an address is malformed or if settings contradict each other.
    pub fn redis(&self) -> Result<RedisSettings, SettingError> {
        let error = |advice: &str| SettingError::Conflict {
            names: "--redis-url, --redis-type",
            advice: advice.to_owned(),
        };
        let items = self.redis_url.reveal().split(',').map(str::trim);
        let items: Vec<&str> = items.filter(|item| !item.is_empty()).collect();
        // A comma in a password splits it, and a part may look like an address.
        let may_split_a_password = items.len() > 1 && items.iter().any(|item| item.contains('@'));
        let shown = |item: &str| match may_split_a_password {
            true => "(hidden)".to_owned(),
            false => mask_password(item),
        };
        let (master, items) = match (self.redis_type, items.as_slice()) {
            (RedisType::Sentinel, [master, rest @ ..]) if !rest.is_empty() => {
                (Some((*master).to_owned()), rest)
            }
            (RedisType::Sentinel, _) => {
                return Err(error(
                    "for sentinel, write MASTER,HOST:PORT,HOST:PORT: the master's name, then the \
                     sentinels",
                ));
            }
            (RedisType::Single, [_]) | (RedisType::Cluster, [_, ..]) => (None, items.as_slice()),
            (_, []) => return Err(error("give an address, as HOST:PORT")),
            (RedisType::Single, several) => {
                let shown: Vec<String> = several.iter().map(|item| shown(item)).collect();
                return Err(error(&format!(
                    "{:?} has {} addresses, but --redis-type is single, which is the default: give \
                     one address, or set --redis-type cluster; for sentinel, set --redis-type \
                     sentinel and --redis-url MASTER,HOST:PORT,HOST:PORT",
                    shown.join(","),
                    several.len()
                )));
            }
        };
        let port = if master.is_some() { SENTINEL_PORT } else { REDIS_PORT };
        let parse = |item: &&str| {
            let shown = shown(item);
            parse_url(item, &shown, port).map_err(|advice| format!("{shown:?}: {advice}"))
        };
        let urls: Result<Vec<ParsedRedisUrl>, String> = items.iter().map(parse).collect();
        let urls =
            urls.map_err(|advice| SettingError::Conflict { names: "--redis-url", advice })?;
        let is_single = self.redis_type == RedisType::Single;
        let is_cluster = self.redis_type == RedisType::Cluster;
        let has_socket = urls.iter().any(|url| matches!(url.address, RedisAddress::Unix(_)));
        let first = urls
            .first()
            .filter(|first| (is_single || !has_socket) && (!is_cluster || first.database == 0));
        let first = first.ok_or_else(|| {
            error(
                "a cluster has database 0 only, and neither cluster nodes nor sentinels can be \
                 unix sockets",
            )
        })?;
        let (mut user, mut password) = parse_login(self.redis_auth.reveal());
        if password.is_empty() {
            user = first.user.clone();
            password = SecretText::from(first.password.as_deref().unwrap_or_default());
        }
        Ok(RedisSettings {
            master,
            database: first.database,
            user,
            password,
            uses_tls: self.redis_tls || first.tls,
            addresses: urls.into_iter().map(|url| url.address).collect(),
        })
    }
}

/// Parses `password` or `user:password` and returns the user, if any, and the password. As in
/// envoyproxy/ratelimit, a password that contains a colon needs a leading colon if there is no
/// user: `:pass:word`.
pub fn parse_login(auth: &str) -> (Option<String>, SecretText) {
    match auth.split_once(':') {
        Some((user, password)) => {
            ((!user.is_empty()).then(|| user.to_owned()), SecretText::from(password))
        }
        None => (None, SecretText::from(auth)),
    }
}

/// Parses `item`, one entry of the `--redis-url` list. On failure, returns an error message. The
/// message quotes only `masked`, the same entry with its password masked, so it never contains the
/// password.
fn parse_url(item: &str, masked: &str, default_port: u16) -> Result<ParsedRedisUrl, String> {
    let bare =
        |address, tls| ParsedRedisUrl { address, user: None, password: None, database: 0, tls };
    let (scheme, rest) = item.split_once("://").unwrap_or(("", item));
    let tls = match scheme {
        "" if rest.starts_with('/') => {
            return Ok(bare(RedisAddress::Unix(PathBuf::from(rest)), false));
        }
        "unix" | "redis+unix" if rest.starts_with('/') => {
            return Ok(bare(RedisAddress::Unix(PathBuf::from(rest)), false));
        }
        "" | "redis" | "tcp" => false,
        "rediss" => true,
        _ => {
            let forms =
                "HOST:PORT, redis://HOST:PORT, rediss://HOST:PORT (with TLS), or unix:///PATH";
            // Masked if it is no scheme: text before `://` may be part of a password.
            let Some(rest) = masked.strip_prefix(scheme) else {
                return Err(format!("write {forms}"));
            };
            let meant = if scheme.ends_with('s') { "rediss" } else { "redis" };
            return Err(format!(
                "{scheme}:// is not Redis; did you mean {meant}{rest}? Valid are {forms}"
            ));
        }
    };
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let database = match database {
        "" => 0,
        number => number
            .parse()
            .ok()
            .filter(|number| *number <= DATABASE_MAX)
            .ok_or("write a database number as path, as in redis://HOST:PORT/0".to_owned())?,
    };
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials), host),
        None => (None, authority),
    };
    let address = parse_host_and_port(host, default_port)
        .ok_or_else(|| "write HOST:PORT, such as redis:6379 or [::1]:6379".to_owned())?;
    let (user, password) = match credentials.map(|text| text.split_once(':')) {
        None => (None, None),
        Some(Some((user, password))) => {
            ((!user.is_empty()).then(|| user.to_owned()), Some(password.to_owned()))
        }
        Some(None) => {
            return Err("write credentials as USER:PASSWORD@ or :PASSWORD@".to_owned());
        }
    };
    Ok(ParsedRedisUrl { address, user, password, database, tls })
}

fn parse_host_and_port(text: &str, default_port: u16) -> Option<RedisAddress> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':'))
        }
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => return None,
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => default_port,
    };
    let is_valid = !host.is_empty() && !host.contains(char::is_whitespace);
    is_valid.then(|| RedisAddress::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    fn read(flags: &[(&str, &str)]) -> Result<RedisSettings, Vec<SettingError>> {
        let (settings, _) = Settings::read(&Sources::from_flags(flags))?;
        settings.redis().map_err(|error| vec![error])
    }

    fn tcp_address(host: &str, port: u16) -> RedisAddress {
        RedisAddress::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn every_address_format_is_parsed() {
        let single = |url: &str| read(&[("redis-url", url)]).unwrap().addresses.remove(0);
        assert_eq!(single("redis:6379"), tcp_address("redis", 6379));
        assert_eq!(single("redis"), tcp_address("redis", 6379));
        assert_eq!(single("[::1]:7000"), tcp_address("::1", 7000));
        assert_eq!(single("redis://h:1/0"), tcp_address("h", 1));
        assert_eq!(single("/run/redis.sock"), RedisAddress::Unix("/run/redis.sock".into()));
        assert_eq!(single("unix:///run/r"), RedisAddress::Unix("/run/r".into()));
    }

    #[test]
    fn a_url_sets_credentials_database_and_tls() {
        let redis = read(&[("redis-url", "rediss://ann:p:w@h:1/3")]).unwrap();
        assert_eq!(redis.user.as_deref(), Some("ann"));
        assert_eq!(redis.password.reveal(), "p:w");
        assert_eq!(redis.database, 3);
        assert!(redis.uses_tls);
    }

    #[test]
    fn auth_contains_a_password_or_a_user_and_a_password() {
        let with = |auth| read(&[("redis-url", "h:1"), ("redis-auth", auth)]).unwrap();
        assert_eq!((with("pw").user, with("pw").password.reveal().to_owned()), (None, "pw".into()));
        assert_eq!(with("ann:pw").user.as_deref(), Some("ann"));
    }

    #[test]
    fn a_sentinel_url_begins_with_the_masters_name() {
        let flags = [("redis-type", "SENTINEL"), ("redis-url", "mymaster,a:1,b")];
        let redis = read(&flags).unwrap();
        assert_eq!(redis.master.as_deref(), Some("mymaster"));
        assert_eq!(redis.addresses, [tcp_address("a", 1), tcp_address("b", SENTINEL_PORT)]);
        assert!(read(&[("redis-type", "sentinel"), ("redis-url", "a:1")]).is_err());
    }

    #[test]
    fn a_cluster_url_is_a_list_of_nodes() {
        let flags = [("redis-type", "cluster"), ("redis-url", "a:1, b:2")];
        let redis = read(&flags).unwrap();
        assert_eq!(redis.master, None);
        assert_eq!(redis.addresses, [tcp_address("a", 1), tcp_address("b", 2)]);
        assert!(read(&[("redis-url", "a:1,b:2")]).is_err(), "several, but single");
        assert!(read(&[("redis-type", "cluster"), ("redis-url", "redis://a:1/2")]).is_err());
    }

    #[test]
    fn an_error_does_not_quote_a_password() {
        for url in [
            "http://ann:hunter2@h:1",
            "http://ann:2222,2222@h:1",
            "redis://ann:2222,2222@h:1",
            "hunter2!://ann@h:1",
        ] {
            let error = read(&[("redis-url", url)]).unwrap_err()[0].to_string();
            assert!(!error.contains("hunter2") && !error.contains("2222"), "{error}");
        }
    }

    #[test]
    fn an_address_of_another_protocol_gets_a_suggestion() {
        let error = |url| read(&[("redis-url", url)]).unwrap_err()[0].to_string();
        assert!(
            error("http://h:1").contains("did you mean redis://h:1?"),
            "{}",
            error("http://h:1")
        );
        let masked = error("https://ann:hunter2@h:1");
        assert!(masked.contains("did you mean rediss://ann:(hidden)@h:1?"), "{masked}");
    }

    #[test]
    fn credentials_of_their_own_settings_win_over_those_of_the_url() {
        let redis = read(&[
            ("redis-type", "sentinel"),
            ("redis-url", "mymaster,redis://ann:old@a:1"),
            ("redis-auth", "new"),
            ("redis-sentinel-auth", "sam:guard"),
        ]);
        let redis = redis.unwrap();
        assert_eq!((redis.user.as_deref(), redis.password.reveal()), (None, "new"));
        let (user, password) = parse_login("sam:guard");
        assert_eq!((user.as_deref(), password.reveal()), (Some("sam"), "guard"));
    }

    #[test]
    fn numbers_and_sockets_that_redis_cannot_have_are_rejected() {
        let of = |flags: &[(&str, &str)]| read(flags).map(|redis| redis.database);
        assert_eq!(of(&[("redis-url", "h:1/65535")]), Ok(65_535));
        assert!(of(&[("redis-url", "h:1/65536")]).is_err());
        assert!(of(&[("redis-type", "cluster"), ("redis-url", "a:1,/run/redis.sock")]).is_err());
        assert!(of(&[("redis-type", "sentinel"), ("redis-url", "m,a:1,/run/redis.sock")]).is_err());
    }
}
