//! A real Redis Cluster of six processes: three masters, each with a replica.

use redis::Value;

use super::fault_proxy::Proxy;
use super::redis_server::{Server, free_port, redis_cli, until};
use super::wait::{self, until_so};

/// Masters come first, in the order in which `redis-cli --cluster create` deals the slots.
pub struct Cluster {
    pub nodes: Vec<Server>,
    /// In front of the first master, where one was asked for.
    pub proxy: Option<Proxy>,
}

impl Cluster {
    /// Starts and joins six nodes. `lines` go into every configuration file.
    pub fn start(lines: &[&str]) -> Cluster {
        Cluster::start_nodes(lines, false)
    }

    /// The same, and clients reach the first master only through a proxy.
    pub fn start_behind_a_proxy(lines: &[&str]) -> Cluster {
        Cluster::start_nodes(lines, true)
    }

    fn start_nodes(lines: &[&str], proxied: bool) -> Cluster {
        let mut all = vec![
            "cluster-enabled yes",
            "cluster-config-file nodes.conf",
            "cluster-node-timeout 2000",
            "cluster-require-full-coverage no",
            "cluster-migration-barrier 10",
            "repl-diskless-sync-delay 0",
        ];
        all.extend(lines);
        let mut cluster = Cluster { nodes: Vec::new(), proxy: None };
        while cluster.nodes.len() < 6 {
            let port = free_port();
            let mut own = all.clone();
            let announced;
            if proxied && cluster.nodes.is_empty() {
                let proxy = cluster.proxy.insert(Proxy::start(port));
                let bus = port + 10_000;
                announced = [
                    "cluster-announce-ip 127.0.0.1".to_owned(),
                    format!("cluster-announce-port {}", proxy.port),
                    format!("cluster-announce-bus-port {bus}"),
                ];
                own.extend(announced.iter().map(String::as_str));
            }
            cluster.nodes.extend(Server::try_start(port, &own, &[]));
        }
        cluster.join();
        cluster
    }

    fn join(&self) {
        let addresses: Vec<String> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let mut arguments = vec!["--cluster", "create"];
        arguments.extend(addresses.iter().map(String::as_str));
        arguments.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        redis_cli(&arguments);
        until_so("the cluster settles", || self.nodes.iter().all(|node| self.is_settled(node)));
    }

    /// It knows all slots and all six nodes, and its replication works.
    fn is_settled(&self, node: &Server) -> bool {
        let info = text(node.ask(&["CLUSTER", "INFO"]));
        let nodes = text(node.ask(&["CLUSTER", "NODES"]));
        let replication = text(node.ask(&["INFO", "replication"]));
        info.contains("cluster_state:ok")
            && info.contains("cluster_slots_ok:16384")
            && nodes.matches("slave").count() == 3
            && nodes.matches("master").count() == 3
            && (replication.contains("role:master") && replication.contains("connected_slaves:1")
                || replication.contains("master_link_status:up"))
    }

    /// The number of the node that `asked` believes to hold the slot. In the middle of a failover
    /// it may know of none: then it is asked until it does.
    pub fn owner(&self, asked: usize, slot: u16) -> usize {
        let what = format!("an owner of slot {slot}");
        self.index_of(wait::until(&what, || self.owner_port(asked, slot)))
    }

    fn owner_port(&self, asked: usize, slot: u16) -> Option<u16> {
        let Value::Array(ranges) = self.nodes[asked].ask(&["CLUSTER", "SLOTS"]) else {
            panic!("CLUSTER SLOTS is no list");
        };
        for range in ranges {
            let Value::Array(parts) = range else { panic!("a range is no list") };
            let bound = |at: usize| redis::from_redis_value::<u16>(parts[at].clone()).unwrap();
            if (bound(0)..=bound(1)).contains(&slot) {
                let Value::Array(master) = &parts[2] else { panic!("a node is no list") };
                return Some(redis::from_redis_value(master[1].clone()).unwrap());
            }
        }
        None
    }

    fn index_of(&self, port: u16) -> usize {
        if self.proxy.as_ref().is_some_and(|proxy| proxy.port == port) {
            return 0;
        }
        self.nodes.iter().position(|node| node.port == port).expect("a node of ours")
    }

    /// The number of the replica of a master.
    pub fn replica_of(&self, master: usize) -> usize {
        let id = text(self.nodes[master].ask(&["CLUSTER", "MYID"]));
        let list = text(self.nodes[master].ask(&["CLUSTER", "NODES"]));
        let line = list.lines().find(|line| line.contains("slave") && line.contains(&id));
        let place = line.expect("a replica").split(' ').nth(1).unwrap();
        let port = place.split(['@', ',']).next().unwrap().rsplit(':').next().unwrap();
        self.index_of(port.parse().unwrap())
    }

    /// Moves every slot of one master to another, with its keys, while both serve.
    pub async fn reshard(&self, from: usize, to: usize) {
        let middle = 8_000;
        assert_eq!(self.owner(from, middle), from, "the master in the middle moves");
        if text(self.nodes[from].ask(&["INFO", "server"])).contains("valkey_version:9") {
            // Valkey moves slots as a whole; redis-cli's way, slot by slot, is refused there.
            let range = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "5461", "10922", "NODE"];
            self.nodes[from].ask(&[&range[..], &[&self.id(to)]].concat());
        } else {
            redis_cli(&[
                "--cluster",
                "reshard",
                &format!("127.0.0.1:{}", self.nodes[from].port),
                "--cluster-from",
                &self.id(from),
                "--cluster-to",
                &self.id(to),
                "--cluster-slots",
                "5462",
                "--cluster-yes",
            ]);
        }
        let moved = |slot| (0..6).all(|asked| self.owner(asked, slot) == to);
        until("the shard has moved", || [5_461, middle, 10_922].into_iter().all(moved)).await;
    }

    /// A key's slot.
    pub fn slot_of(&self, key: &str) -> u16 {
        redis::from_redis_value(self.nodes[0].ask(&["CLUSTER", "KEYSLOT", key])).unwrap()
    }

    /// The node's own id.
    pub fn id(&self, node: usize) -> String {
        text(self.nodes[node].ask(&["CLUSTER", "MYID"]))
    }
}

pub fn text(value: Value) -> String {
    redis::from_redis_value(value).unwrap()
}
