//! Parser for INFO: the load, memory, and keys of a Redis server.
//!
//! Not here: sending INFO (`info_poll`; `dialer` in the handshake), names of the metrics (`app`).

use redis::InfoDict;

/// Values that a Redis server reported in INFO. The command counts cover all clients of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Commands per second at the time of the report (`instantaneous_ops_per_sec`).
    pub ops_per_second: u64,
    /// Number of commands since the server started, including those run by scripts.
    pub commands: u64,
    /// `used_memory` of the server, in bytes.
    pub memory_bytes: u64,
    /// `maxmemory`, in bytes; 0 means unlimited.
    pub memory_bytes_max: u64,
    /// `maxmemory-policy`, for example `noeviction`. Empty if not reported.
    pub eviction_policy: String,
    /// Number of keys evicted since the server started.
    pub evicted_keys: u64,
    /// Number of script calls since the server started.
    pub script_calls: u64,
    /// Time spent in script calls since the server started, in microseconds.
    pub script_us: u64,
    /// Number of keys in the database that the client uses.
    pub keys: u64,
    /// Number of keys with an expiry time in the database that the client uses.
    pub keys_expiring: u64,
}

impl NodeInfo {
    /// Parses the text of `INFO all`. `db` is the number of the client's database. Missing values
    /// are 0, because not every compatible server sends all of them.
    pub(crate) fn parse(text: &str, db: i64) -> NodeInfo {
        let info = InfoDict::new(text);
        let number = |name: &str| info.get(name).unwrap_or(0);
        // From a line such as `calls=12,usec=340`.
        let field = |line: &str, name: &str| {
            let line: String = info.get(line).unwrap_or_default();
            let mut fields = line.split(',').filter_map(|field| field.split_once('='));
            let (_, value) = fields.find(|(key, _)| *key == name).unwrap_or_default();
            value.parse().unwrap_or(0)
        };
        let of_scripts = |name| field("cmdstat_evalsha", name) + field("cmdstat_eval", name);
        let our_db = format!("db{db}");
        NodeInfo {
            ops_per_second: number("instantaneous_ops_per_sec"),
            commands: number("total_commands_processed"),
            memory_bytes: number("used_memory"),
            memory_bytes_max: number("maxmemory"),
            eviction_policy: info.get("maxmemory_policy").unwrap_or_default(),
            evicted_keys: number("evicted_keys"),
            script_calls: of_scripts("calls"),
            script_us: of_scripts("usec"),
            keys: field(&our_db, "keys"),
            keys_expiring: field(&our_db, "expires"),
        }
    }

    /// Returns whether the server evicts keys when its memory is full.
    pub(crate) fn may_evict(&self) -> bool {
        let evicts = !matches!(&*self.eviction_policy, "" | "noeviction");
        self.memory_bytes_max > 0 && evicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Memory\r\nused_memory:1048576\r\nmaxmemory:2097152\r\n\
        maxmemory_policy:allkeys-lru\r\n# Stats\r\ntotal_commands_processed:77\r\n\
        instantaneous_ops_per_sec:5\r\nevicted_keys:3\r\n# Commandstats\r\n\
        cmdstat_evalsha:calls=10,usec=250,usec_per_call=25.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_eval:calls=1,usec=9\r\n# Keyspace\r\ndb0:keys=1,expires=1,avg_ttl=9\r\n\
        db3:keys=12,expires=11,avg_ttl=100\r\n";

    #[test]
    fn relevant_lines_and_those_of_our_database_are_parsed() {
        let info = NodeInfo {
            ops_per_second: 5,
            commands: 77,
            memory_bytes: 1_048_576,
            memory_bytes_max: 2_097_152,
            eviction_policy: "allkeys-lru".to_owned(),
            evicted_keys: 3,
            script_calls: 11,
            script_us: 259,
            keys: 12,
            keys_expiring: 11,
        };
        assert_eq!(NodeInfo::parse(INFO, 3), info);
    }

    #[test]
    fn missing_and_malformed_numbers_read_as_zero() {
        assert_eq!(NodeInfo::parse("", 0), NodeInfo::default());
        let odd = "used_memory:lots\r\ndb0:keys\r\ncmdstat_evalsha:calls=,usec=x\r\n:\r\n";
        assert_eq!(NodeInfo::parse(odd, 0), NodeInfo::default());
    }

    fn may_evict(info: &str) -> bool {
        NodeInfo::parse(info, 0).may_evict()
    }

    #[test]
    fn redis_may_evict_if_it_has_a_memory_limit_and_an_eviction_policy() {
        let memory = |bound, policy| {
            may_evict(&format!("# Memory\r\nmaxmemory:{bound}\r\nmaxmemory_policy:{policy}\r\n"))
        };
        assert!(memory("1048576", "volatile-ttl"));
        assert!(!memory("0", "volatile-ttl"));
        assert!(!memory("1048576", "noeviction"));
        assert!(!may_evict("NOPERM"));
    }
}
