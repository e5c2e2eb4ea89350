//! A real Redis master with two replicas, watched by three sentinels.

use super::redis_cluster::text;
use super::redis_server::Server;
use super::wait::until_so;

/// The name under which the sentinels watch the master.
pub const NAME: &str = "counters";

pub struct Group {
    /// The master comes first, until it is failed over.
    pub servers: Vec<Server>,
    pub sentinels: Vec<Server>,
}

impl Group {
    /// Starts them and waits until every sentinel knows of every other part. `lines` go into the
    /// servers' configuration, `sentinel_lines` into the sentinels'.
    pub fn start(lines: &[&str], sentinel_lines: &[&str]) -> Group {
        let mut own = vec!["repl-diskless-sync-delay 0"];
        own.extend(lines);
        let master = Server::start(&own);
        let replica_of = format!("replicaof 127.0.0.1 {}", master.port);
        own.push(&replica_of);
        let servers = vec![Server::start(&own), Server::start(&own)];
        let watch = [
            format!("sentinel monitor {NAME} 127.0.0.1 {} 2", master.port),
            format!("sentinel down-after-milliseconds {NAME} 1000"),
            format!("sentinel failover-timeout {NAME} 10000"),
        ];
        let mut watched: Vec<&str> = watch.iter().map(String::as_str).collect();
        watched.extend(sentinel_lines);
        let sentinels = (0..3).map(|_| Server::start_sentinel(&watched)).collect();
        let mut all = vec![master];
        all.extend(servers);
        let group = Group { servers: all, sentinels };
        until_so("the sentinels settle", || group.is_settled());
        group
    }

    fn is_settled(&self) -> bool {
        let both_replicate =
            text(self.servers[0].ask(&["INFO", "replication"])).matches("state=online").count()
                == 2;
        let sees_all = |sentinel: &Server| {
            let info = text(sentinel.ask(&["INFO", "sentinel"]));
            info.contains("slaves=2") && info.contains("sentinels=3") && info.contains("status=ok")
        };
        both_replicate && self.sentinels.iter().all(sees_all)
    }

    /// The number of the server that a sentinel names as master.
    pub fn master(&self) -> usize {
        let named: (String, u16) = redis::from_redis_value(self.sentinels[0].ask(&[
            "SENTINEL",
            "GET-MASTER-ADDR-BY-NAME",
            NAME,
        ]))
        .unwrap();
        self.servers.iter().position(|server| server.port == named.1).expect("a server of ours")
    }
}
