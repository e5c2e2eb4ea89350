//! The least-privilege ACL of each topology, as the documentation states it. Every test on a real
//! server runs under it.

/// The ACL user of the tests.
pub const USER: &str = "tidegate";
/// Its password.
pub const PASSWORD: &str = "only-in-tests";

/// On a single server (`+select` besides, where a database other than 0 is used).
pub const SINGLE: &str = "~tg1* resetchannels -@all +hello +ping +client|setname +script|load +evalsha \
                          +info +get +mget +set +incr +incrby +time +strlen +getrange +append +pexpire \
                          +zcount +zrange +zmscore +zadd +zrem +zremrangebyscore +hmget +hset +hdel \
                            +hlen +hscan +zrangebyscore";
/// On a master that sentinels watch, and on its replicas.
pub const SENTINEL_MASTER: &str = "~tg1* resetchannels -@all +hello +ping +client|setname +script|load \
                                   +evalsha +info +get +mget +set +incr +incrby +time +role +strlen \
                                   +getrange +append +pexpire +zcount +zrange +zmscore +zadd +zrem \
                                   +zremrangebyscore +hmget +hset +hdel \
                            +hlen +hscan +zrangebyscore";
/// On the sentinels themselves.
pub const SENTINEL: &str = "resetchannels -@all +hello +sentinel|get-master-addr-by-name";
/// On every node of a cluster.
pub const CLUSTER: &str = "~tg1* resetchannels -@all +hello +ping +client|setname +script|load +evalsha \
                           +info +get +mget +set +incr +incrby +time +strlen +getrange +append \
                           +pexpire +zcount +zrange +zmscore +zadd +zrem +zremrangebyscore +hmget +hset +hdel \
                            +hlen +hscan +zrangebyscore \
                           +cluster|shards +cluster|slots +cluster|nodes +asking";

/// The configuration line that makes the user.
pub fn line(rules: &str) -> String {
    format!("user {USER} on >{PASSWORD} {rules}")
}
