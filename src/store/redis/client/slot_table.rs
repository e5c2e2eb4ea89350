//! Slot table of a Redis Cluster, and parsers for the replies to CLUSTER SHARDS, CLUSTER SLOTS, and
//! CLUSTER NODES.
//!
//! Replies may be RESP3 maps or RESP2 flat arrays. Not here: querying the nodes (`slot_refresh`),
//! computing the slot of a key (`keys`).

use std::collections::HashMap;
use std::sync::Arc;

use redis::{FromRedisValue, Value};

use super::config::Address;
use super::node::Node;
use crate::store::redis::script::keys::SLOTS;

/// Node index of a hash slot that no known node owns.
const NO_NODE: u16 = u16::MAX;

/// Table of a cluster's nodes, and of the node that owns each hash slot.
#[derive(Debug)]
pub(crate) struct SlotTable {
    /// For each hash slot, the index of its owner in `nodes`, or [`NO_NODE`].
    owners: Box<[u16]>,
    nodes: Vec<Arc<Node>>,
    /// Number of nodes that the cluster itself listed. These come first in `nodes`; any further
    /// nodes were added by redirects.
    listed_count: usize,
}

impl Default for SlotTable {
    fn default() -> Self {
        let owners = vec![NO_NODE; usize::from(SLOTS)].into_boxed_slice();
        SlotTable { owners, nodes: Vec::new(), listed_count: 0 }
    }
}

impl SlotTable {
    /// Builds the table from the masters of a cluster. `node_at` returns the node at an address,
    /// given a hash slot that it owns, if it owns any.
    pub(crate) fn new(
        masters: &[SlotOwner],
        node_at: impl Fn(&Address, Option<u16>) -> Arc<Node>,
    ) -> SlotTable {
        let mut table = SlotTable::default();
        // A u16 is enough: Redis recommends at most 1,000 nodes.
        for (index, owner) in (0..NO_NODE).zip(masters) {
            table.nodes.push(node_at(&owner.master, owner.slots.first().map(|(slot, _)| *slot)));
            for (first, last) in &owner.slots {
                table.owners[usize::from(*first)..=usize::from(*last)].fill(index);
            }
        }
        table.listed_count = table.nodes.len();
        table
    }

    /// Returns a copy of the table with one more node, which owns no hash slots yet.
    pub(crate) fn with_node(&self, node: Arc<Node>) -> SlotTable {
        let mut nodes = self.nodes.clone();
        nodes.push(node);
        SlotTable { owners: self.owners.clone(), nodes, listed_count: self.listed_count }
    }

    /// Returns the index of the node that owns a hash slot, or [`NO_NODE`].
    pub(crate) fn owner(&self, slot: Option<u16>) -> u16 {
        slot.and_then(|slot| self.owners.get(usize::from(slot)).copied()).unwrap_or(NO_NODE)
    }

    /// Returns the node with this index; `None` for [`NO_NODE`].
    pub(crate) fn node(&self, index: u16) -> Option<&Arc<Node>> {
        self.nodes.get(usize::from(index))
    }

    pub(crate) fn node_at(&self, address: &Address) -> Option<Arc<Node>> {
        self.nodes.iter().find(|node| node.address() == address).cloned()
    }

    /// Returns the node at an address if the cluster listed it; `None` if only a redirect added it.
    pub(crate) fn listed_node(&self, address: &Address) -> Option<Arc<Node>> {
        self.nodes[..self.listed_count].iter().find(|node| node.address() == address).cloned()
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub(crate) fn owning_nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        let nodes = (0..NO_NODE).zip(&self.nodes);
        nodes.filter(|(index, _)| self.owners.contains(index)).map(|(_, node)| node)
    }

    /// Returns the ranges of hash slots that no known node owns: the first and the last slot of each.
    pub(crate) fn unowned_slots(&self) -> Vec<(u16, u16)> {
        let owners = (0..SLOTS).zip(self.owners.iter());
        let unowned = owners.filter(|(_, owner)| **owner == NO_NODE).map(|(slot, _)| slot);
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in unowned {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                Some(_) | None => ranges.push((slot, slot)),
            }
        }
        ranges
    }

    /// Returns whether both tables consist of the same nodes, each with the same hash slots.
    pub(crate) fn is_same(&self, other: &SlotTable) -> bool {
        self.owners == other.owners
            && self.listed_count == other.listed_count
            && self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// Master of a cluster and the hash slots that it owns. A master without slots is included too,
/// because calls are redirected to it as soon as a slot is migrated to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotOwner {
    /// Address of the master.
    pub master: Address,
    /// Ranges of hash slots: the first and the last slot of each, both inclusive and below
    /// [`SLOTS`].
    pub slots: Vec<(u16, u16)>,
}

/// Fields of a shard, of a node, or of a node's metadata.
type Fields = HashMap<String, Value>;

/// Parses a reply to CLUSTER SHARDS from `node`. A master without a known host gets the host of
/// `node`. Returns `None` if the reply is malformed or no hash slot has a master.
pub fn parse_shards(reply: &Value, node: &Address, tls: bool) -> Option<Vec<SlotOwner>> {
    let mut owners = Vec::new();
    for shard in parse::<Vec<Fields>>(reply)? {
        let is = |node: &Fields, name, text| field::<String>(node, name).as_deref() == Some(text);
        let nodes: Vec<Fields> = field(&shard, "nodes")?;
        let masters = nodes.iter().filter(|node| is(node, "role", "master"));
        // During a failover a shard also lists its former master, as failed. A failed master is
        // used only if there is no other: calls to it fail immediately.
        let Some(master) = masters.max_by_key(|node| is(node, "health", "online")) else {
            continue;
        };
        let tls_port = if tls { field(master, "tls-port") } else { None };
        let port = tls_port.or_else(|| field(master, "port")).and_then(to_u16);
        let Some(port) = port else { continue };
        // With preferred host names, "?" stands for a node without one, and its IP address is used.
        let names = [field(master, "endpoint"), field(master, "ip")];
        let Some(master) = master_address(names, port, node) else { continue };
        let bounds: Vec<i64> = field(&shard, "slots")?;
        let bounds: Vec<u16> = bounds.into_iter().filter_map(to_u16).collect();
        let slots = bounds.chunks_exact(2).map(|range| (range[0], range[1])).collect();
        owners.push(SlotOwner { master, slots });
    }
    validate(owners)
}

/// Parses a reply to CLUSTER SLOTS from `node`. A master without a known host gets the host of
/// `node`. Used for Redis before 7.0 and some proxies, which do not support CLUSTER SHARDS. Returns
/// `None` if the reply is malformed or no hash slot has a master.
pub fn parse_slots(reply: &Value, node: &Address) -> Option<Vec<SlotOwner>> {
    let mut owners: Vec<SlotOwner> = Vec::new();
    for range in parse::<Vec<Vec<Value>>>(reply)? {
        let [first, last, master, ..] = &range[..] else { return None };
        let master: Vec<Value> = parse(master)?;
        let [host, port, rest @ ..] = &master[..] else { return None };
        let number = |value| parse(value).and_then(to_u16);
        let slots = (number(first)?, number(last)?);
        // From 7.0 on, the IP address is in the networking metadata if the host is not one.
        let metadata: Option<Fields> = rest.get(1).and_then(parse);
        let names = [parse(host), metadata.and_then(|metadata| field(&metadata, "ip"))];
        let Some(master) = master_address(names, number(port)?, node) else { continue };
        match owners.iter_mut().find(|owner| owner.master == master) {
            Some(owner) => owner.slots.push(slots),
            None => owners.push(SlotOwner { master, slots: vec![slots] }),
        }
    }
    validate(owners)
}

/// Returns `owners` unchanged, or `None` if no hash slot has a master or a range is invalid.
fn validate(owners: Vec<SlotOwner>) -> Option<Vec<SlotOwner>> {
    let is_valid = |(first, last): &(u16, u16)| first <= last && *last < SLOTS;
    let any = owners.iter().any(|owner| !owner.slots.is_empty());
    let all_valid = owners.iter().flat_map(|owner| &owner.slots).all(is_valid);
    (any && all_valid).then_some(owners)
}

/// Builds the address of a master from the first of its names that is known: neither empty nor `?`. If
/// none is, uses the host of `node`. Returns `None` for port 0, which no server can listen on.
fn master_address(names: [Option<String>; 2], port: u16, node: &Address) -> Option<Address> {
    let known = names.into_iter().flatten().find(|name| !matches!(&**name, "" | "?"));
    let host = match (known, node) {
        (Some(host), _) => host,
        (None, Address::Tcp(host, _)) => host.clone(),
        (None, Address::Unix(_)) => return None,
    };
    (port > 0).then_some(Address::Tcp(host, port))
}

/// Nodes and config epoch of a cluster, as reported by one of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Ids of the cluster's nodes, as listed by CLUSTER NODES.
    node_ids: Vec<String>,
    /// Highest config epoch of a master with slots. Every failover and every slot migration raises
    /// the epoch, so a lower epoch means an older slot table.
    pub config_epoch: u64,
}

impl Membership {
    /// Returns whether the two node lists have no node in common.
    pub fn is_other_cluster(&self, other: &Membership) -> bool {
        !self.node_ids.iter().any(|id| other.node_ids.contains(id))
    }
}

/// Parses a reply to CLUSTER NODES: one line per node with ID, address, flags, master, ping and
/// pong times, config epoch, link state, and slots. Returns `None` if the reply is malformed.
pub fn parse_nodes(reply: Value) -> Option<Membership> {
    let text: String = redis::from_redis_value(reply).ok()?;
    let (mut node_ids, mut config_epoch) = (Vec::new(), 0);
    for line in text.lines() {
        let mut words = line.split(' ');
        node_ids.push(words.next()?.to_owned());
        let flags = words.nth(1)?;
        let epoch: u64 = words.nth(3)?.parse().ok()?;
        // A slot in brackets is being migrated and belongs to another node.
        let has_slots = words.nth(1).is_some_and(|slots| !slots.starts_with('['));
        if has_slots && flags.split(',').any(|flag| flag == "master") {
            config_epoch = config_epoch.max(epoch);
        }
    }
    (!node_ids.is_empty()).then_some(Membership { node_ids, config_epoch })
}

/// Returns a port or a slot. `redis` would convert a number beyond 16 bits to another one.
fn to_u16(number: i64) -> Option<u16> {
    u16::try_from(number).ok()
}

fn parse<T: FromRedisValue>(value: &Value) -> Option<T> {
    redis::from_redis_value_ref(value).ok()
}

fn field<T: FromRedisValue>(fields: &Fields, name: &str) -> Option<T> {
    fields.get(name).and_then(parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender() -> Address {
        Address::Tcp("10.0.0.9".into(), 7000)
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    fn node(role: &str, port: i64, health: &str, flat: bool) -> Value {
        let pairs = vec![
            (bulk("id"), bulk("x")),
            (bulk("port"), Value::Int(port)),
            (bulk("endpoint"), bulk("10.0.0.1")),
            (bulk("role"), bulk(role)),
            (bulk("health"), bulk(health)),
        ];
        if flat {
            Value::Array(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())
        } else {
            Value::Map(pairs)
        }
    }

    fn shard(slots: &[i64], nodes: Vec<Value>, flat: bool) -> Value {
        let pairs = vec![(bulk("slots"), ints(slots)), (bulk("nodes"), Value::Array(nodes))];
        if flat {
            Value::Array(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())
        } else {
            Value::Map(pairs)
        }
    }

    #[test]
    fn shards_are_parsed_as_maps_and_as_flat_arrays() {
        for flat in [false, true] {
            let reply = Value::Array(vec![
                shard(
                    &[0, 5, 7, 7],
                    vec![node("replica", 1, "online", flat), node("master", 2, "online", flat)],
                    flat,
                ),
                shard(&[], vec![node("master", 3, "online", flat)], flat),
            ]);
            let read = parse_shards(&reply, &sender(), false).unwrap();
            assert_eq!(
                read,
                vec![
                    SlotOwner { master: tcp("10.0.0.1", 2), slots: vec![(0, 5), (7, 7)] },
                    SlotOwner { master: tcp("10.0.0.1", 3), slots: vec![] },
                ]
            );
        }
    }

    #[test]
    fn the_online_master_of_a_shard_is_used() {
        let online = || node("master", 1, "online", true);
        let failed = || node("master", 2, "fail", true);
        for nodes in [vec![online(), failed()], vec![failed(), online()]] {
            let reply = Value::Array(vec![shard(&[0, 16383], nodes, true)]);
            let owners = parse_shards(&reply, &sender(), false).unwrap();
            assert_eq!(owners[0].master, tcp("10.0.0.1", 1));
        }
    }

    #[test]
    fn the_tls_port_of_a_master_is_used_over_tls_only() {
        let master = Value::Map(vec![
            (bulk("port"), Value::Int(1)),
            (bulk("tls-port"), Value::Int(2)),
            (bulk("endpoint"), bulk("")),
            (bulk("ip"), bulk("10.0.0.1")),
            (bulk("role"), bulk("master")),
        ]);
        let reply = Value::Array(vec![shard(&[0, 16383], vec![master], false)]);
        for (tls, port) in [(false, 1), (true, 2)] {
            let owners = parse_shards(&reply, &sender(), tls).unwrap();
            assert_eq!(owners[0].master, tcp("10.0.0.1", port));
        }
    }

    #[test]
    fn slots_are_parsed_and_an_unknown_host_means_that_of_the_sender() {
        let range = |first, last, host: Value, port| {
            let master = Value::Array(vec![host, Value::Int(port), bulk("id")]);
            let replica = Value::Array(vec![bulk("10.0.0.7"), Value::Int(9), bulk("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
        };
        let reply = Value::Array(vec![
            range(0, 99, bulk("10.0.0.1"), 1),
            range(100, 16383, Value::Nil, 2),
            range(100, 100, bulk("10.0.0.1"), 1),
        ]);
        assert_eq!(
            parse_slots(&reply, &sender()).unwrap(),
            vec![
                SlotOwner { master: tcp("10.0.0.1", 1), slots: vec![(0, 99), (100, 100)] },
                SlotOwner { master: tcp("10.0.0.9", 2), slots: vec![(100, 16383)] },
            ]
        );
    }

    #[test]
    fn an_unknown_host_name_leads_to_the_ip_address_and_port_0_to_no_node() {
        let master = |port: i64| {
            let pairs = [
                (bulk("port"), Value::Int(port)),
                (bulk("endpoint"), bulk("?")),
                (bulk("ip"), bulk("10.0.0.3")),
                (bulk("role"), bulk("master")),
            ];
            Value::Map(pairs.into())
        };
        let shards = |port| Value::Array(vec![shard(&[0, 16383], vec![master(port)], false)]);
        let owners = parse_shards(&shards(7), &sender(), false).unwrap();
        assert_eq!(owners[0].master, tcp("10.0.0.3", 7));
        assert_eq!(parse_shards(&shards(0), &sender(), false), None);
        let metadata = Value::Array(vec![bulk("ip"), bulk("10.0.0.3")]);
        let node = Value::Array(vec![bulk("?"), Value::Int(7), bulk("id"), metadata]);
        let range = Value::Array(vec![Value::Int(0), Value::Int(16383), node]);
        let owners = parse_slots(&Value::Array(vec![range]), &sender()).unwrap();
        assert_eq!(owners[0].master, tcp("10.0.0.3", 7));
    }

    #[test]
    fn the_config_epoch_is_the_highest_of_a_master_with_slots() {
        let nodes = "a 10.0.0.1:7000@17000 myself,master - 0 0 3 connected 0-5460 [93-<-b]\n\
                     b 10.0.0.2:7000@17000,host master - 0 1 7 connected 5461-16383\n\
                     c 10.0.0.3:7000@17000 slave b 0 1 7 connected\n\
                     d 10.0.0.4:7000@17000 master - 0 1 9 connected\n\
                     f 10.0.0.6:7000@17000 master - 0 1 11 connected [93-<-a]\n";
        let membership = parse_nodes(bulk(nodes)).unwrap();
        assert_eq!(membership.config_epoch, 7, "an empty master can leave without a trace");
        let other = parse_nodes(bulk("e 10.0.0.5:1@2 master - 0 0 1 connected 0-16383\n")).unwrap();
        assert!(membership.is_other_cluster(&other) && !membership.is_other_cluster(&membership));
        for malformed in ["", "a\n", "a b master - 0 0 x connected"] {
            assert_eq!(parse_nodes(bulk(malformed)), None);
        }
    }

    #[test]
    fn malformed_replies_are_rejected() {
        let outside = shard(&[0, 16384], vec![node("master", 1, "online", false)], false);
        let reversed = shard(&[9, 5], vec![node("master", 1, "online", false)], false);
        let empty = shard(&[], vec![node("master", 1, "online", false)], false);
        let shards = [outside, reversed, empty].map(|shard| Value::Array(vec![shard]));
        for reply in [Value::Nil].into_iter().chain(shards) {
            assert_eq!(parse_shards(&reply, &sender(), false), None);
            assert_eq!(parse_slots(&reply, &sender()), None);
        }
    }
}
