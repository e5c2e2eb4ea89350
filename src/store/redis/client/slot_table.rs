//! A cluster's slot table: which node holds which slot, and reading it from CLUSTER SHARDS and
//! CLUSTER SLOTS.
//!
//! Replies are understood as RESP3 maps and as RESP2 flat arrays. Not here: which node is asked and
//! when (`slot_refresh`), a key's slot (`keys`).

use std::sync::Arc;

use redis::Value;

use super::config::Address;
use super::node::Node;
use crate::store::redis::keys::SLOTS;

/// The index of a slot's node if no node holds it.
const NO_NODE: u16 = u16::MAX;

/// The nodes of a cluster, and which of them holds which slot.
#[derive(Debug)]
pub(crate) struct SlotTable {
    /// Per slot, the index of its node.
    owners: Box<[u16]>,
    nodes: Vec<Arc<Node>>,
}

impl Default for SlotTable {
    fn default() -> Self {
        let owners = vec![NO_NODE; usize::from(SLOTS)].into_boxed_slice();
        SlotTable { owners, nodes: Vec::new() }
    }
}

impl SlotTable {
    /// The table of these masters; `node_at` makes or finds their nodes.
    pub(crate) fn new(masters: &[SlotOwner], node_at: impl Fn(&Address) -> Arc<Node>) -> SlotTable {
        let mut table = SlotTable::default();
        // Redis allows a thousand nodes, which fit in a u16.
        for (index, owner) in (0..NO_NODE).zip(masters) {
            table.nodes.push(node_at(&owner.master));
            for (first, last) in &owner.slots {
                table.owners[usize::from(*first)..=usize::from(*last)].fill(index);
            }
        }
        table
    }

    /// The same table with another node, which holds no slot yet.
    pub(crate) fn with_node(&self, node: Arc<Node>) -> SlotTable {
        let mut nodes = self.nodes.clone();
        nodes.push(node);
        SlotTable { owners: self.owners.clone(), nodes }
    }

    /// The index of the node that holds a slot.
    pub(crate) fn owner(&self, slot: Option<u16>) -> u16 {
        slot.and_then(|slot| self.owners.get(usize::from(slot)).copied()).unwrap_or(NO_NODE)
    }

    /// The node with an index.
    pub(crate) fn node(&self, index: u16) -> Option<&Arc<Node>> {
        self.nodes.get(usize::from(index))
    }

    pub(crate) fn node_at(&self, address: &Address) -> Option<Arc<Node>> {
        self.nodes.iter().find(|node| node.address() == address).cloned()
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Whether every slot has a node with an open connection.
    pub(crate) fn is_connected(&self) -> bool {
        let connected: Vec<bool> = self.nodes.iter().map(|node| node.is_connected()).collect();
        self.owners.iter().all(|owner| connected.get(usize::from(*owner)) == Some(&true))
    }

    pub(crate) fn is_same(&self, other: &SlotTable) -> bool {
        self.owners == other.owners
            && self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// One master and its slots. A master that has just joined holds none yet; it is listed all the
/// same, because the first slot that is migrated to it leads calls there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotOwner {
    /// The master's address.
    pub master: Address,
    /// First and last slot of each range, at most [`SLOTS`] - 1.
    pub slots: Vec<(u16, u16)>,
}

/// Parses a reply to CLUSTER SHARDS. `node` is the one that sent it; its host is used for a node
/// that does not know its own. Returns `None` if the reply is malformed or no slot has a master.
pub fn parse_shards(reply: &Value, node: &Address, tls: bool) -> Option<Vec<SlotOwner>> {
    let mut owners = Vec::new();
    for shard in list(reply)? {
        let Some(master) = list(field(shard, "nodes")?)?
            .iter()
            .filter(|node| text(field(node, "role")) == Some("master"))
            // During a failover a shard also lists its former master, as failed. If that is the only
            // one, it is still used: calls to it fail at once.
            .max_by_key(|node| text(field(node, "health")) == Some("online"))
        else {
            continue;
        };
        let port = if tls { field(master, "tls-port") } else { field(master, "port") };
        let Some(port) = port.or_else(|| field(master, "port")).and_then(number) else { continue };
        let host = text(field(master, "endpoint")).or_else(|| text(field(master, "ip")));
        let Some(master) = address(host, port, node) else { continue };
        let bounds: Vec<u16> = list(field(shard, "slots")?)?.iter().filter_map(number).collect();
        let slots = bounds.chunks_exact(2).map(|range| (range[0], range[1])).collect();
        owners.push(SlotOwner { master, slots });
    }
    validated(owners)
}

/// Parses a reply to CLUSTER SLOTS, which servers before 7.0 and some proxies support instead.
pub fn parse_slots(reply: &Value, node: &Address) -> Option<Vec<SlotOwner>> {
    let mut owners: Vec<SlotOwner> = Vec::new();
    for range in list(reply)? {
        let [first, last, master, ..] = list(range)? else { return None };
        let [host, port, ..] = list(master)? else { return None };
        let slots = (number(first)?, number(last)?);
        let Some(master) = address(text(Some(host)), number(port)?, node) else { continue };
        match owners.iter_mut().find(|owner| owner.master == master) {
            Some(owner) => owner.slots.push(slots),
            None => owners.push(SlotOwner { master, slots: vec![slots] }),
        }
    }
    validated(owners)
}

fn validated(owners: Vec<SlotOwner>) -> Option<Vec<SlotOwner>> {
    let is_valid = |(first, last): &(u16, u16)| first <= last && *last < SLOTS;
    let any = owners.iter().any(|owner| !owner.slots.is_empty());
    let all_valid = owners.iter().flat_map(|owner| &owner.slots).all(is_valid);
    (any && all_valid).then_some(owners)
}

fn address(host: Option<&str>, port: u16, node: &Address) -> Option<Address> {
    match (host, node) {
        (None | Some("" | "?"), Address::Tcp(node, _)) => Some(Address::Tcp(node.clone(), port)),
        (None | Some("" | "?"), Address::Unix(_)) => None,
        (Some(host), _) => Some(Address::Tcp(host.to_owned(), port)),
    }
}

fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn field<'v>(map: &'v Value, name: &str) -> Option<&'v Value> {
    match map {
        Value::Map(pairs) => {
            pairs.iter().find(|(key, _)| text(Some(key)) == Some(name)).map(|(_, value)| value)
        }
        Value::Array(flat) => flat
            .chunks_exact(2)
            .find(|pair| text(Some(&pair[0])) == Some(name))
            .map(|pair| &pair[1]),
        _ => None,
    }
}

fn text(value: Option<&Value>) -> Option<&str> {
    match value? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        other => text(Some(other))?.parse().ok(),
    }
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
    fn of_two_masters_in_a_shard_the_one_online_is_used() {
        let nodes = vec![node("master", 1, "online", true), node("master", 2, "fail", true)];
        let reply = Value::Array(vec![shard(&[0, 16383], nodes, true)]);
        assert_eq!(parse_shards(&reply, &sender(), false).unwrap()[0].master, tcp("10.0.0.1", 1));
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
    fn malformed_replies_are_rejected() {
        let outside = shard(&[0, 16384], vec![node("master", 1, "online", false)], false);
        let empty = shard(&[], vec![node("master", 1, "online", false)], false);
        for reply in [Value::Nil, Value::Array(vec![outside]), Value::Array(vec![empty])] {
            assert_eq!(parse_shards(&reply, &sender(), false), None);
            assert_eq!(parse_slots(&reply, &sender()), None);
        }
    }
}
