//! Detects settings that do not fit the Redis server: address, TLS, credentials, deployment mode,
//! master name. Returns advice for the log, which usually names the flag to change.
//!
//! Runs in a separate task, and only for failures that are logged: at most once a minute for each
//! kind of failure and node. Not here: connecting (`client_context`).

use std::collections::HashMap;

use redis::Value;

use super::client_context::ClientContext;
use super::config::{Address, Auth, Password, TopologyConfig};
use super::error_reply::{DENIED_IN_SCRIPT, IS_REPLICA};
use crate::peer_protocol::{Peer, detect_peer};

/// Maximum number of master names, as reported by a sentinel, that a hint in the log lists.
const LISTED_MASTERS_MAX: usize = 5;

/// Returns advice on which setting to change so that the server can be used, or `None` if no wrong
/// setting was found. `error` is the text of the failure.
pub(crate) async fn find_advice(
    context: &ClientContext,
    address: &Address,
    auth: &Auth,
    error: &str,
) -> Option<String> {
    if let Some(advice) = advice_on_reply(context, address, auth, error).await {
        return Some(advice);
    }
    let uses_tls = match address {
        Address::Tcp(host, port) => {
            let uses_tls = context.config.tls.is_some();
            let peer = detect_peer(host, *port, context.config.connect_timeout).await;
            if let Some(advice) = advice_on_peer(peer, uses_tls) {
                return Some(advice.to_owned());
            }
            uses_tls
        }
        Address::Unix(_) => false,
    };
    let info = context.query(address, auth, redis::cmd("INFO").arg("server")).await;
    let info = match info {
        Ok(info) => redis::from_redis_value::<String>(info).ok()?,
        Err(own) => {
            let (own, addresses) = (own.to_string(), &context.config.addresses);
            let is_sentinel = matches!(context.config.topology, TopologyConfig::Sentinel { .. })
                && addresses.contains(address);
            let text = format!("{error} {own}");
            return advice_on_hostname(&own, address, addresses)
                .or_else(|| advice_on_error(&text, auth, is_sentinel, uses_tls));
        }
    };
    let mode = info_field(&info, "redis_mode")?;
    match &context.config.topology {
        topology if mode != "sentinel" => {
            let advice = advice_on_mode(topology, mode).map(str::to_owned);
            advice.or_else(|| advice_on_error(error, auth, false, false))
        }
        TopologyConfig::Sentinel { master, .. } => {
            advice_on_master(&query_master_names(context, address, auth).await?, master)
        }
        TopologyConfig::Single | TopologyConfig::Cluster => {
            let masters = query_master_names(context, address, auth).await.unwrap_or_default();
            Some(format_sentinel_advice(&masters, address))
        }
    }
}

/// Returns a field of a reply to INFO or CLUSTER INFO; `None` if the reply does not contain it.
pub(crate) fn info_field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(field, _)| *field == name)?;
    Some(value.trim()).filter(|value| !value.is_empty())
}

fn advice_on_peer(peer: Peer, uses_tls: bool) -> Option<&'static str> {
    Some(match peer {
        Peer::UnknownHost => "the host name cannot be resolved: correct --redis-url",
        Peer::ConnectionRefused => "nothing listens there: start Redis, or correct --redis-url",
        Peer::Http => "an HTTP server answers there, not Redis: correct --redis-url",
        Peer::Http2 => "an HTTP/2 or gRPC server answers there, not Redis: correct --redis-url",
        Peer::Tls if !uses_tls => {
            "this port speaks TLS: add --redis-tls, or write rediss:// in --redis-url"
        }
        Peer::Redis if uses_tls => {
            "this port speaks plain text: give the TLS port, or turn TLS off (redis:// in \
             --redis-url, no --redis-tls)"
        }
        Peer::Unidentified => {
            "the server accepts connections but does not answer: is it Redis? correct --redis-url"
        }
        Peer::Redis | Peer::Tls => return None,
    })
}

/// Advice on error replies, by the code at their start.
const REPLY_ADVICE: &[(&str, &str)] = &[
    (
        "OOM",
        "Redis is full: raise maxmemory, and use this Redis for the rate limiter alone, with \
         maxmemory-policy noeviction",
    ),
    (
        "MISCONF",
        "Redis cannot save its data, and its log says why: free the disk, or turn persistence off \
         (CONFIG SET save \"\")",
    ),
    ("NOREPLICAS", "bring the replicas back, or set min-replicas-to-write 0 in Redis"),
    ("BUSY", "end the script with SCRIPT KILL, and use this Redis for the rate limiter alone"),
    ("LOADING", "wait until Redis has loaded its data; without persistence, it starts immediately"),
    (
        "CLUSTERDOWN",
        "hash slots have no node: run redis-cli --cluster fix, or set cluster-require-full-coverage \
         no in Redis",
    ),
    ("MASTERDOWN", "the replica has lost its master: wait for the failover, or start the master"),
];

/// Commands that the ACL must permit in each topology.
const ACL_COMMANDS: &str = "+hello +ping +client|setname +script|load +evalsha +info +get +mget +set \
                            +incr +incrby +time +strlen +getrange +append +pexpire +zcount +zrange \
                            +zmscore +zadd +zrem +zremrangebyscore +hmget +hset +hdel \
                            +hlen +hscan +zrangebyscore";

/// Returns advice on an error reply, from its text and, for a replica, from INFO.
async fn advice_on_reply(
    context: &ClientContext,
    node: &Address,
    auth: &Auth,
    error: &str,
) -> Option<String> {
    if error.starts_with("NOPERM") || error.contains(DENIED_IN_SCRIPT) {
        let user = auth.user.as_deref().unwrap_or("default");
        let keys = context.config.prefix.key_pattern();
        let is_sentinel = context.config.addresses.contains(node);
        let more = match &context.config.topology {
            TopologyConfig::Single if context.config.db > 0 => " +select",
            TopologyConfig::Single => "",
            TopologyConfig::Sentinel { .. } if is_sentinel => {
                return Some(format!(
                    "the sentinel's ACL must permit: ACL SETUSER {user} +hello \
                     +sentinel|get-master-addr-by-name"
                ));
            }
            TopologyConfig::Sentinel { .. } => " +role",
            TopologyConfig::Cluster => " +cluster|shards +cluster|slots +cluster|nodes +asking",
        };
        return Some(format!(
            "the ACL must permit keys and commands: ACL SETUSER {user} ~{keys} {ACL_COMMANDS}{more}"
        ));
    }
    if error.starts_with("READONLY") || error == IS_REPLICA {
        if !matches!(context.config.topology, TopologyConfig::Single) {
            // A failover is under way.
            return None;
        }
        let primary = query_primary(context, node, auth).await;
        return Some(match primary {
            Some(primary) => format!("the primary is {primary}: write it in --redis-url"),
            None => "write the address of the primary in --redis-url".to_owned(),
        });
    }
    let row = REPLY_ADVICE.iter().find(|(code, _)| error.starts_with(code))?;
    Some(row.1.to_owned())
}

/// Returns the address of the primary that a replica reports; `None` if it reports none.
async fn query_primary(context: &ClientContext, node: &Address, auth: &Auth) -> Option<Address> {
    let info = context.query(node, auth, redis::cmd("INFO").arg("replication")).await.ok()?;
    let info = redis::from_redis_value::<String>(info).ok()?;
    let port = info_field(&info, "master_port")?.parse().ok()?;
    Some(Address::Tcp(info_field(&info, "master_host")?.to_owned(), port))
}

/// Words in the error of a login with a wrong user or password.
const WRONG_LOGIN: [&str; 3] = ["WRONGPASS", "AUTH failed", "AuthenticationFailed"];
/// Words in the error of a server without a command that connections need.
const MISSING_COMMAND: [&str; 2] = ["unknown command", "unknown subcommand"];

/// Returns advice on an error of a login. `is_sentinel` says whether a sentinel rejects it.
fn advice_on_login(text: &str, auth: &Auth, is_sentinel: bool) -> Option<String> {
    if text.contains("NOAUTH") {
        return Some(match is_sentinel {
            true => "the sentinel requires a password: set --redis-sentinel-auth".to_owned(),
            false => "set --redis-auth or --redis-auth-file".to_owned(),
        });
    }
    if MISSING_COMMAND.iter().any(|words| text.contains(words)) {
        return Some(
            "a proxy or service between Tidegate and Redis does not support HELLO 3 or SCRIPT LOAD: \
             give the address of Redis itself"
                .to_owned(),
        );
    }
    WRONG_LOGIN.iter().find(|word| text.contains(*word))?;
    let (server, settings) = match is_sentinel {
        true => ("sentinel", "--redis-url or --redis-sentinel-auth"),
        false => ("server", "--redis-url, --redis-auth, or --redis-auth-file"),
    };
    // Nothing else tells a user who is not there from a password with a colon.
    let colon = match auth.user.is_some() {
        true => {
            "; the text before the first colon is the user: write :PASSWORD if there is no user"
        }
        false => "",
    };
    let code = match &auth.password {
        Password::Fixed(password) if has_percent_code(password) => {
            "; the password has a percent code: one in --redis-url is decoded once, elsewhere it is \
             plain text"
        }
        _ => "",
    };
    Some(format!(
        "the {server} rejects the user or password: correct it in {settings}{colon}{code}"
    ))
}

/// Returns whether a text contains a percent code, such as `%2F`.
fn has_percent_code(text: &str) -> bool {
    let mut codes = text.split('%').skip(1).filter_map(|rest| rest.as_bytes().first_chunk::<2>());
    codes.any(|code| code.iter().all(u8::is_ascii_hexdigit))
}

/// Advice on errors of a connection with TLS, by a word in the error's text. The first row that
/// matches applies.
const TLS_ADVICE: &[(&[&str], &str)] = &[
    (
        // A CA of the same name has another key, and a self-signed certificate is its own CA.
        &["UnknownIssuer", "BadSignature", "CaUsedAsEndEntity"],
        "no trusted CA signed the server's certificate: set --redis-tls-cacert to the CA that did",
    ),
    (
        &["not valid for name", "NotValidForName"],
        "the server's certificate is for another name: write that name in --redis-url; \
         --redis-tls-skip-hostname-verification would accept any name, which is less safe",
    ),
    (&["expired", "Expired"], "renew the server's certificate"),
    (
        &["CertificateRequired", "HandshakeFailure"],
        "the server requires a client certificate: set --redis-tls-client-cert and \
         --redis-tls-client-key",
    ),
];

fn advice_on_mode(topology: &TopologyConfig, mode: &str) -> Option<&'static str> {
    Some(match (topology, mode) {
        (TopologyConfig::Single, "cluster") => {
            "the server is a node of a Redis Cluster: set --redis-type cluster"
        }
        (TopologyConfig::Cluster, "standalone") => {
            "the server is not part of a Redis Cluster: set --redis-type single"
        }
        (TopologyConfig::Sentinel { .. }, "standalone") => {
            "this is a Redis server, not a sentinel: give the sentinels' addresses after the master's \
             name, or set --redis-type single and --redis-url to this address alone"
        }
        (TopologyConfig::Sentinel { .. }, "cluster") => {
            "this is a node of a Redis Cluster, not a sentinel: set --redis-type cluster, and \
             --redis-url to nodes only"
        }
        _ => return None,
    })
}

/// Returns advice on a failure whose cause can be recognized from its message, otherwise `None`.
/// `text` contains the messages of the failure and of a second attempt.
fn advice_on_error(text: &str, auth: &Auth, is_sentinel: bool, uses_tls: bool) -> Option<String> {
    let tls = if uses_tls { TLS_ADVICE } else { &[] };
    let matches = |(words, _): &&(&[&str], &str)| words.iter().any(|word| text.contains(word));
    advice_on_login(text, auth, is_sentinel)
        .or_else(|| tls.iter().find(matches).map(|(_, advice)| (*advice).to_owned()))
}

/// Returns advice on a certificate that was issued for a different DNS name than the host in
/// `address`. Returns `None` for any other failure. `configured` contains the addresses from the
/// settings.
fn advice_on_hostname(text: &str, address: &Address, configured: &[Address]) -> Option<String> {
    let Address::Tcp(_, port) = address else { return None };
    let (_, names) = text.split_once("certificate is only valid for ")?;
    let (_, name) = names.split_once("DnsName(\"")?;
    let (name, _) = name.split_once('"')?;
    let way_out = match configured.contains(address) {
        true => format!("write {name}:{port} instead of {address} in --redis-url"),
        false => format!("make the cluster or the sentinels announce {name} instead of {address}"),
    };
    Some(format!(
        "the server's certificate is for {name}: {way_out}; --redis-tls-skip-hostname-verification \
         would accept any name, which is less safe"
    ))
}

/// Maximum length in bytes of a master's name that is quoted in advice. Longer names are left out.
const MASTER_NAME_BYTES_MAX: usize = 255;

/// Returns the names of the masters that a sentinel monitors, or `None` if the query fails or the
/// reply is malformed. Leaves out names longer than [`MASTER_NAME_BYTES_MAX`].
async fn query_master_names(
    context: &ClientContext,
    address: &Address,
    auth: &Auth,
) -> Option<Vec<String>> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("MASTERS");
    master_names(context.query(address, auth, &command).await.ok()?)
}

/// Reads a reply to SENTINEL MASTERS: a map for each master, in RESP2 a flat list.
fn master_names(reply: Value) -> Option<Vec<String>> {
    let masters: Vec<HashMap<String, String>> = redis::from_redis_value(reply).ok()?;
    let names = masters.into_iter().filter_map(|mut master| master.remove("name"));
    Some(names.filter(|name| name.len() <= MASTER_NAME_BYTES_MAX).collect())
}

/// Returns advice for a sentinel whose address was configured as the address of a Redis server.
fn format_sentinel_advice(masters: &[String], address: &Address) -> String {
    let master = match masters {
        [master] => master,
        _ => "MASTER",
    };
    format!(
        "this is a sentinel: set --redis-type sentinel and --redis-url {master},{address} (the \
         master's name, then the sentinels, separated by commas)"
    )
}

/// Returns advice on a configured master name that is not among `known`, the masters that the
/// sentinel monitors. Returns `None` if the sentinel monitors the master.
fn advice_on_master(known: &[String], master: &str) -> Option<String> {
    if known.iter().any(|known| known == master) {
        return None;
    }
    let shown: Vec<String> =
        known.iter().take(LISTED_MASTERS_MAX).map(|name| format!("{name:?}")).collect();
    Some(match shown.is_empty() {
        true => "the sentinel monitors no master: correct its configuration".to_owned(),
        false => format!(
            "the sentinel knows only {}: correct the master's name, the first entry of --redis-url",
            shown.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_info_is_found_by_its_whole_name() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:\r\n";
        assert_eq!(info_field(info, "redis_mode"), Some("cluster"));
        for absent in ["mode", "redis", "run_id", "# Server"] {
            assert_eq!(info_field(info, absent), None, "{absent}");
        }
    }

    #[test]
    fn hostname_advice_names_the_setting_or_the_server_to_correct() {
        let node = |host: &str| Address::Tcp(host.to_owned(), 6380);
        let text = "certificate not valid for name \"10.0.0.1\"; certificate is only valid for any \
                    of DnsName(\"a.example\"), DnsName(\"b.example\")";
        let configured = advice_on_hostname(text, &node("10.0.0.1"), &[node("10.0.0.1")]).unwrap();
        let correction = "write a.example:6380 instead of 10.0.0.1:6380 in --redis-url";
        assert!(configured.contains(correction), "{configured}");
        let announced = advice_on_hostname(text, &node("10.0.0.1"), &[node("10.0.0.2")]).unwrap();
        let correction = "make the cluster or the sentinels announce a.example instead of 10.0.0.1";
        assert!(announced.contains(correction), "{announced}");
        let other = "certificate is only valid for IpAddress(10.0.0.2)";
        assert_eq!(advice_on_hostname(other, &node("10.0.0.1"), &[]), None);
        assert_eq!(advice_on_hostname("UnknownIssuer", &node("10.0.0.1"), &[]), None);
    }

    #[test]
    fn sentinel_advice_names_the_master_if_there_is_only_one() {
        let address = Address::Tcp("10.0.0.1".to_owned(), 26_379);
        let one = format_sentinel_advice(&["counters".to_owned()], &address);
        assert!(one.contains("--redis-url counters,10.0.0.1:26379 ("), "{one}");
        let two = format_sentinel_advice(&["a".to_owned(), "b".to_owned()], &address);
        assert!(two.contains("--redis-url MASTER,10.0.0.1:26379 ("), "{two}");
    }

    #[test]
    fn the_names_of_masters_are_read_from_maps_and_from_lists() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let map = Value::Map(vec![(text("ip"), text("::1")), (text("name"), text("counters"))]);
        let list = Value::Array(vec![text("name"), text("limits"), text("ip"), text("::1")]);
        let long = Value::Map(vec![(text("name"), text(&"n".repeat(256)))]);
        let nameless = Value::Map(vec![(text("ip"), text("::1"))]);
        let names = master_names(Value::Array(vec![map, list, long, nameless]));
        assert_eq!(names, Some(vec!["counters".to_owned(), "limits".to_owned()]));
        assert_eq!(master_names(Value::Okay), None);
    }
}
