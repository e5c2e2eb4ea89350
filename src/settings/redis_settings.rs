//! Settings of the Redis store. Parses Redis addresses in the formats that envoyproxy/ratelimit and
//! Redis tools accept.

use super::server_url::{HIDDEN, ServerUrl, UrlForms, hide_secrets};
use super::setting_error::SettingError;
use super::table::Settings;
use super::value_types::{RedisType, SecretText, ValueError};

/// Default TCP port of a Redis server.
const REDIS_PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;
/// Maximum Redis database number that is accepted. A larger number is probably a typo.
const DATABASE_MAX: u32 = 65_535;

/// Forms of the addresses of Redis servers and sentinels.
const REDIS_URL: UrlForms = UrlForms {
    server: "Redis",
    suggested: ["redis", "rediss"],
    others: &["", "tcp", "valkey", "valkeys", "unix", "redis+unix"],
    valid: "HOST:PORT, redis://HOST:PORT, rediss://HOST:PORT (with TLS), or unix:///PATH",
    check,
    advice_on: redis_advice,
};

/// Words in the names of variables and parameters that other programs read for Redis, and what
/// Tidegate reads. The first row with a word of the name applies.
const REDIS_ADVICE: [(&[&str], &str); 6] = [
    (
        &["PASSWORD", "PASS", "AUTH", "USER", "USERNAME", "SECRET", "TOKEN"],
        "set REDIS_AUTH to the password, or to user:password",
    ),
    (
        &["DB", "DATABASE"],
        "write the database number as path in REDIS_URL, as in HOST:PORT/3; a Unix socket has \
         database 0",
    ),
    (
        &["SENTINEL", "SENTINELS", "MASTER", "MASTERNAME", "SENTINELMASTERID"],
        "set REDIS_TYPE=sentinel and REDIS_URL=MASTER,HOST:PORT,HOST:PORT",
    ),
    (&["TLS", "SSL", "SSLMODE"], "set REDIS_TLS=true, or write rediss:// in REDIS_URL"),
    (&["TIMEOUT"], "set REDIS_TIMEOUT (to connect) and --redis-budget (for a call)"),
    (
        &[
            "HOST", "HOSTNAME", "HOSTS", "PORT", "ADDR", "ADDRESS", "URL", "URI", "ENDPOINT",
            "NODES",
        ],
        "set REDIS_URL to the address of Redis, as HOST:PORT or redis://HOST:PORT",
    ),
];

/// Returns the first word in the name of a variable or parameter by which it is known to be for Redis,
/// and advice.
pub(super) fn redis_advice(name: &str) -> Option<(&'static str, &'static str)> {
    REDIS_ADVICE.iter().find_map(|(words, advice)| {
        let is_in_name = |word: &&&str| name.split('_').any(|own| own.eq_ignore_ascii_case(word));
        words.iter().find(is_in_name).map(|word| (*word, *advice))
    })
}

pub(super) fn is_redis_url(text: &str) -> bool {
    text.contains("://")
        && ServerUrl::parse(text, &UrlForms { others: &["valkey", "valkeys"], ..REDIS_URL }).is_ok()
}

/// User name, if any, and password; empty if none is required.
pub type RedisLogin = (Option<String>, SecretText);

/// What the settings of the Redis store say together.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Name under which the sentinels monitor the master, and the login for the sentinels; `None`
    /// without sentinels.
    pub master: Option<(String, RedisLogin)>,
    /// Addresses to connect to first, at least one: of the server, of the sentinels, or of nodes of
    /// a cluster, from which the other nodes are discovered. Each has a port, or is a path.
    pub addresses: Vec<ServerUrl>,
    /// Redis database number; always 0 in a cluster.
    pub database: u32,
    /// Login for the Redis servers.
    pub login: RedisLogin,
    /// Whether connections use TLS.
    pub uses_tls: bool,
}

impl Settings {
    /// Returns the settings for the Redis store.
    ///
    /// # Errors
    ///
    /// Returns an error if an address is malformed or if settings contradict each other.
    pub fn redis(&self) -> Result<RedisSettings, SettingError> {
        let error = |advice: &str| SettingError::conflict("--redis-url, --redis-type", advice);
        let shown = hide_secrets(self.redis_url.reveal());
        let items = self.redis_url.reveal().split(',').map(str::trim);
        let items: Vec<&str> = items.filter(|item| !item.is_empty()).collect();
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
                return Err(error(&format!(
                    "{shown:?} has {} addresses, but --redis-type is single, which is the default: give \
                     one address, or set --redis-type cluster; for sentinel, set --redis-type \
                     sentinel and --redis-url MASTER,HOST:PORT,HOST:PORT{}",
                    several.len(),
                    advice_on_comma(&shown)
                )));
            }
        };
        if master.as_ref().is_some_and(|name| name.contains(['@', ':', '/'])) {
            return Err(error(
                "the first entry must be the master's name, which has no @ : or /: write \
                 MASTER,HOST:PORT,HOST:PORT, and set the master's password with --redis-auth",
            ));
        }
        let urls = parse_list(items, &shown)?;
        let is_single = self.redis_type == RedisType::Single;
        let database = urls.first().and_then(database).unwrap_or(0);
        let has_socket = urls.iter().any(|url| url.host.is_empty());
        if has_socket && !is_single || self.redis_type == RedisType::Cluster && database != 0 {
            return Err(error(
                "a cluster has database 0 only, and neither cluster nodes nor sentinels can be \
                 unix sockets",
            ));
        }
        let mut in_urls = urls.iter().filter_map(|url| url.login.clone());
        let in_url = in_urls.next().unwrap_or_default();
        if in_urls.any(|other| other != in_url) {
            return Err(error(
                "the addresses have different users or passwords: write one for all, with \
                 --redis-auth or, for sentinels, --redis-sentinel-auth",
            ));
        }
        // A password in the address of a sentinel is the sentinel's.
        let own = parse_login(self.redis_auth.reveal());
        let of_sentinel = parse_login(self.redis_sentinel_auth.reveal());
        let or_in_url = |own: RedisLogin| if own.1.is_empty() { in_url.clone() } else { own };
        let (login, master) = match master {
            Some(name) => (own, Some((name, or_in_url(of_sentinel)))),
            None => (or_in_url(own), None),
        };
        let port = if master.is_some() { SENTINEL_PORT } else { REDIS_PORT };
        let uses_tls = self.redis_tls || urls.iter().any(ServerUrl::uses_tls);
        let with_port = |url: ServerUrl| ServerUrl { port: url.port.or(Some(port)), ..url };
        let addresses = urls.into_iter().map(with_port).collect();
        Ok(RedisSettings { master, addresses, database, login, uses_tls })
    }
}

/// Parses `password` or `user:password` and returns the user, if any, and the password. As in
/// envoyproxy/ratelimit, a password that contains a colon needs a leading colon if there is no
/// user: `:pass:word`.
pub fn parse_login(auth: &str) -> RedisLogin {
    match auth.split_once(':') {
        Some((user, password)) => {
            ((!user.is_empty()).then(|| user.to_owned()), SecretText::from(password))
        }
        None => (None, SecretText::from(auth)),
    }
}

/// Returns advice on an address list that is hidden, because a comma in a password splits it.
fn advice_on_comma(shown: &str) -> &'static str {
    match shown == HIDDEN {
        true => "; in a user name or password, write a comma as %2C",
        false => "",
    }
}

/// Parses the entries of an address list. Errors quote `shown`, the list without its secrets.
fn parse_list(items: &[&str], shown: &str) -> Result<Vec<ServerUrl>, SettingError> {
    // A password with a comma, too, could leave such an entry.
    let is_part = |item: &&str| item.contains('@') && !item.contains("://");
    let urls: Result<Vec<ServerUrl>, String> = match items.iter().skip(1).any(is_part) {
        true => Err(String::new()),
        false => items.iter().map(|item| ServerUrl::parse(item, &REDIS_URL)).collect(),
    };
    urls.map_err(|reason| {
        // The reason may quote an entry, which may be a part of a password.
        let advice = match shown == HIDDEN && items.len() > 1 {
            true => format!(
                "{shown:?}: an entry of this list is not an address, or has a password without \
                 redis:// before it: write {}{}",
                REDIS_URL.valid,
                advice_on_comma(shown)
            ),
            false => format!("{shown:?}: {reason}"),
        };
        SettingError::conflict("--redis-url", &advice)
    })
}

/// Returns the database number that is the path of an address; `None` if the path is none.
fn database(url: &ServerUrl) -> Option<u32> {
    match url.path.trim_start_matches('/') {
        "" => Some(0),
        _ if url.host.is_empty() => Some(0),
        number => number.parse().ok().filter(|number| *number <= DATABASE_MAX),
    }
}

fn check(url: &ServerUrl) -> Result<(), ValueError> {
    let has_path = matches!(url.scheme, "unix" | "redis+unix");
    match (has_path, url.host.is_empty()) {
        (true, false) => Err("write unix:///PATH, with three slashes".to_owned()),
        (true, true) if url.path.len() > 1 => Ok(()),
        (_, true) => Err(format!("has no host: write {}", REDIS_URL.valid)),
        (false, false) if database(url).is_some() => Ok(()),
        (false, false) => Err("write a database number as path, as in HOST:PORT/0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    fn read(flags: &[(&str, &str)]) -> Result<RedisSettings, Vec<SettingError>> {
        let (settings, _) = Settings::read(&Sources::from_flags(flags))?;
        settings.redis().map_err(|error| vec![error])
    }

    /// Returns the addresses as text: host and port, or a path.
    fn addresses(redis: &RedisSettings) -> Vec<String> {
        let text = |url: &ServerUrl| match url.host.as_str() {
            "" => url.path.clone(),
            host => format!("{host} {}", url.port.unwrap()),
        };
        redis.addresses.iter().map(text).collect()
    }

    #[test]
    fn every_address_format_is_parsed() {
        for (url, address) in [
            ("redis:6379", "redis 6379"),
            ("redis", "redis 6379"),
            ("[::1]:7000", "::1 7000"),
            ("redis://h:1/0", "h 1"),
            ("/run/redis.sock", "/run/redis.sock"),
            ("unix:///run/r", "/run/r"),
            ("unix:///run/a%20b", "/run/a b"),
        ] {
            assert_eq!(addresses(&read(&[("redis-url", url)]).unwrap()), [address]);
        }
    }

    #[test]
    fn a_url_sets_credentials_database_and_tls() {
        for (url, user, password, database, uses_tls) in [
            ("rediss://ann:p:w@h:1/3", Some("ann"), "p:w", 3, true),
            ("REDISS://ann:pw@h:1/3", Some("ann"), "pw", 3, true),
            ("valkeys://:pw@h", None, "pw", 0, true),
            ("redis://:p%2Fs@h", None, "p/s", 0, false),
            ("redis://a%40b:p%3Fq%23r%2Cs%25@h/", Some("a@b"), "p?q#r,s%", 0, false),
            ("redis://:p%252Fs@h", None, "p%2Fs", 0, false),
            ("redis://:p@s@h", None, "p@s", 0, false),
            ("redis://:%C3%A9 é@h", None, "é é", 0, false),
            (":pw@h:1", None, "pw", 0, false),
            ("redis://:@h", None, "", 0, false),
        ] {
            let redis = read(&[("redis-url", url)]).unwrap();
            let (own, secret) = (redis.login.0.as_deref(), redis.login.1.reveal());
            let found = (own, secret, redis.database, redis.uses_tls);
            assert_eq!(found, (user, password, database, uses_tls), "{url}");
            assert_eq!(redis.addresses[0].host, "h");
        }
    }

    #[test]
    fn a_url_that_is_not_supported_gets_advice_that_keeps_its_meaning() {
        for (url, part) in [
            (
                "rediss://h:1?db=3",
                "`DB` in the query is not supported: write the database number as path",
            ),
            (
                "redis://h?database=3",
                "`DATABASE` in the query is not supported: write the database",
            ),
            ("redis://h?password=X", "`PASSWORD` in the query is not supported: set REDIS_AUTH"),
            ("unix:///s?pass=X", "`PASS` in the query is not supported: set REDIS_AUTH"),
            ("redis://h?a=b&ssl=true", "`SSL` in the query is not supported: set REDIS_TLS=true"),
            ("redis://h?hunter2", "a query (`?…`) is not supported: remove it"),
            ("redis://:a?b@h", "is not an address: write HOST:PORT"),
            ("redis://:a/b@h", "/ as %2F"),
            ("redis://:12#b@h", "# as %23"),
            ("redis://:1%2@h", "% as %25"),
            ("redis://:12/b@h", "/ as %2F"),
            ("redis://pw@h", "write credentials as USER:PASSWORD@ or :PASSWORD@"),
            ("redis://h/x", "write a database number as path"),
            ("unix://run/s", "write unix:///PATH, with three slashes"),
            ("redis:///0", "has no host"),
            ("https://h:1", "did you mean rediss://h:1?"),
            ("tls://ann:X@h:1/3", "did you mean rediss://(hidden)@h:1/3?"),
            ("http://h:1/x", "http:// is not Redis. Write HOST:PORT"),
            ("redis+sentinel://h:1", "has an unknown scheme. Write HOST:PORT"),
        ] {
            let error = read(&[("redis-url", url)]).unwrap_err()[0].to_string();
            assert!(error.starts_with("--redis-url: ") && error.contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn auth_contains_a_password_or_a_user_and_a_password() {
        let with = |auth| read(&[("redis-url", "h:1"), ("redis-auth", auth)]).unwrap();
        assert_eq!(with("pw").login, (None, SecretText::from("pw")));
        assert_eq!(with("ann:pw").login.0.as_deref(), Some("ann"));
    }

    #[test]
    fn a_sentinel_url_begins_with_the_masters_name() {
        let flags = [("redis-type", "SENTINEL"), ("redis-url", "mymaster,a:1,b")];
        let redis = read(&flags).unwrap();
        assert_eq!(addresses(&redis), ["a 1", "b 26379"]);
        assert_eq!(redis.master.unwrap().0, "mymaster");
        for no_name in ["a:1", "a:1,b:2", "redis://m,a:1", ":pw@m,a:1", "m/0,a:1", "u@m,a:1"] {
            let flags = [("redis-type", "sentinel"), ("redis-url", no_name)];
            let error = read(&flags).unwrap_err()[0].to_string();
            assert!(error.contains("MASTER,HOST:PORT,HOST:PORT"), "{no_name}: {error}");
            assert!(!error.contains("pw"), "{error}");
        }
    }

    #[test]
    fn a_cluster_url_is_a_list_of_nodes() {
        let flags = [("redis-type", "cluster"), ("redis-url", "a:1, b:2")];
        let redis = read(&flags).unwrap();
        assert_eq!(redis.master, None);
        assert_eq!(addresses(&redis), ["a 1", "b 2"]);
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
            "ann:2222,hunter2@h:1",
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
        assert!(masked.contains("did you mean rediss://(hidden)@h:1?"), "{masked}");
    }

    #[test]
    fn a_login_in_the_address_of_a_sentinel_is_the_sentinels() {
        let of = |url: &str, own: &str, of_sentinel: &str| {
            let auth = [("redis-auth", own), ("redis-sentinel-auth", of_sentinel)];
            let flags = [&[("redis-type", "sentinel"), ("redis-url", url)], &auth[..]].concat();
            let redis = read(&flags).map_err(|errors| errors[0].to_string())?;
            Ok((redis.login, redis.master.unwrap().1))
        };
        let login =
            |user: Option<&str>, password| (user.map(str::to_owned), SecretText::from(password));
        let (none, new) = (login(None, ""), login(None, "new"));
        let (sam, old) = (login(Some("sam"), "guard"), login(Some("ann"), "old"));
        for (url, own, of_sentinel, expected) in [
            ("m,redis://ann:old@a:1", "", "", (&none, &old)),
            ("m,redis://ann:old@a:1,b:2", "new", "", (&new, &old)),
            ("m,a:1,redis://ann:old@b:2", "new", "", (&new, &old)),
            ("m,redis://ann:old@a:1", "new", "sam:guard", (&new, &sam)),
            ("m,a:1", "new", "", (&new, &none)),
        ] {
            let (master, sentinel) = of(url, own, of_sentinel).unwrap();
            assert_eq!((&master, &sentinel), expected, "{url}");
        }
        let error: String = of("m,redis://:a@a:1,redis://:b@b:2", "", "").unwrap_err();
        assert!(error.contains("the addresses have different users or passwords"), "{error}");
        let of_cluster = [("redis-type", "cluster"), ("redis-url", "redis://:pw@a:1,b:2")];
        assert_eq!(read(&of_cluster).unwrap().login, login(None, "pw"));
        let redis = read(&[("redis-url", "redis://:old@a:1"), ("redis-auth", "new")]).unwrap();
        assert_eq!(redis.login, new);
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
