//! What a server says of itself in INFO: the lines that tell whether it will go on counting.
//!
//! Not here: asking for it (`census`, and `dial` at connect), the names of metrics (`app`).

/// A server's own figures, as of its last answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Commands in the last moments, per second, everybody's.
    pub ops_per_second: u64,
    /// Commands since it was started, everybody's; those that scripts run count too.
    pub commands: u64,
    /// Memory that its data takes, in bytes.
    pub memory_bytes: u64,
    /// Memory that it may take, in bytes; 0: no bound.
    pub memory_bytes_max: u64,
    /// What it does at that bound: `noeviction`, or a policy under which counters are forgotten.
    pub eviction_policy: String,
    /// Keys that it dropped at that bound.
    pub evicted_keys: u64,
    /// Script calls that it ran, everybody's.
    pub script_calls: u64,
    /// Time that it spent in them, in microseconds.
    pub script_us: u64,
    /// Keys of our database.
    pub keys: u64,
    /// Those of them that have an end.
    pub keys_expiring: u64,
}

impl NodeInfo {
    /// Reads the text of `INFO all`. `db`: which database is ours. A line that is missing reads 0:
    /// servers that speak the protocol do not all have all of them.
    pub(crate) fn of(info: &str, db: i64) -> NodeInfo {
        let mut vitals = NodeInfo::default();
        let ours = format!("db{db}");
        for line in info.lines() {
            let Some((name, told)) = line.split_once(':') else { continue };
            let whole = || told.trim().parse().unwrap_or(0);
            match name {
                "instantaneous_ops_per_sec" => vitals.ops_per_second = whole(),
                "total_commands_processed" => vitals.commands = whole(),
                "used_memory" => vitals.memory_bytes = whole(),
                "maxmemory" => vitals.memory_bytes_max = whole(),
                "maxmemory_policy" => vitals.eviction_policy = told.trim().to_owned(),
                "evicted_keys" => vitals.evicted_keys = whole(),
                "cmdstat_evalsha" | "cmdstat_eval" => {
                    vitals.script_calls += part(told, "calls");
                    vitals.script_us += part(told, "usec");
                }
                _ if name == ours => {
                    vitals.keys = part(told, "keys");
                    vitals.keys_expiring = part(told, "expires");
                }
                _ => {}
            }
        }
        vitals
    }

    /// Whether it has a bound beyond which it drops keys.
    pub(crate) fn may_evict(&self) -> bool {
        let evicts = !matches!(&*self.eviction_policy, "" | "noeviction");
        self.memory_bytes_max > 0 && evicts
    }
}

/// A number of a line such as `calls=12,usec=340`; 0 where it is not there.
fn part(told: &str, name: &str) -> u64 {
    let of_name = |part: &str| {
        let (held, number) = part.split_once('=')?;
        (held == name).then(|| number.trim().parse().ok()).flatten()
    };
    told.split(',').find_map(of_name).unwrap_or(0)
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
    fn the_lines_that_matter_are_read_and_those_of_our_database() {
        let vitals = NodeInfo {
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
        assert_eq!(NodeInfo::of(INFO, 3), vitals);
    }

    #[test]
    fn what_is_missing_or_no_number_reads_zero() {
        assert_eq!(NodeInfo::of("", 0), NodeInfo::default());
        let odd = "used_memory:lots\r\ndb0:keys\r\ncmdstat_evalsha:calls=,usec=x\r\n:\r\n";
        assert_eq!(NodeInfo::of(odd, 0), NodeInfo::default());
    }

    fn may_evict(info: &str) -> bool {
        NodeInfo::of(info, 0).may_evict()
    }

    #[test]
    fn a_redis_evicts_if_it_has_a_bound_and_a_policy_for_it() {
        let memory = |bound, policy| {
            may_evict(&format!("# Memory\r\nmaxmemory:{bound}\r\nmaxmemory_policy:{policy}\r\n"))
        };
        assert!(memory("1048576", "volatile-ttl"));
        assert!(!memory("0", "volatile-ttl"));
        assert!(!memory("1048576", "noeviction"));
        assert!(!may_evict("NOPERM"));
    }
}
