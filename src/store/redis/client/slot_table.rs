//! Reads who holds which slots out of CLUSTER SHARDS and CLUSTER SLOTS.
//!
//! Both shapes of every reply are understood: RESP3's maps and RESP2's flat arrays. Not here: whom
//! to ask and when (`cluster`), a key's slot (the item brings it).

use redis::Value;

use super::config::Address;
use crate::store::redis::keys::SLOTS;

/// One master and its slots, as first and last of each range. A master that is just joining has
/// none yet, and is listed all the same: the first slot on its way there asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotOwner {
    /// Where it is.
    pub master: Address,
    /// First and last of each range, at most [`SLOTS`] - 1.
    pub slots: Vec<(u16, u16)>,
}

/// Reads CLUSTER SHARDS. `asked` is the node that answered, whose host stands in where it does not
/// know its own. `None` if this is no such reply, or no slot has a master.
pub fn of_shards(reply: &Value, asked: &Address, tls: bool) -> Option<Vec<SlotOwner>> {
    let mut holdings = Vec::new();
    for shard in list(reply)? {
        let Some(master) = list(field(shard, "nodes")?)?
            .iter()
            .filter(|node| text(field(node, "role")) == Some("master"))
            // During a failover a shard shows its former master too, as failed. Alone it is still
            // the one whose connections refuse the slot's items at once.
            .max_by_key(|node| text(field(node, "health")) == Some("online"))
        else {
            continue;
        };
        let port = if tls { field(master, "tls-port") } else { field(master, "port") };
        let Some(port) = port.or_else(|| field(master, "port")).and_then(number) else { continue };
        let host = text(field(master, "endpoint")).or_else(|| text(field(master, "ip")));
        let Some(master) = address(host, port, asked) else { continue };
        let bounds: Vec<u16> = list(field(shard, "slots")?)?.iter().filter_map(number).collect();
        let slots = bounds.chunks_exact(2).map(|range| (range[0], range[1])).collect();
        holdings.push(SlotOwner { master, slots });
    }
    usable(holdings)
}

/// Reads CLUSTER SLOTS, which servers before 7.0 and some proxies know instead.
pub fn of_slots(reply: &Value, asked: &Address) -> Option<Vec<SlotOwner>> {
    let mut holdings: Vec<SlotOwner> = Vec::new();
    for range in list(reply)? {
        let [first, last, master, ..] = list(range)? else { return None };
        let [host, port, ..] = list(master)? else { return None };
        let slots = (number(first)?, number(last)?);
        let Some(master) = address(text(Some(host)), number(port)?, asked) else { continue };
        match holdings.iter_mut().find(|held| held.master == master) {
            Some(held) => held.slots.push(slots),
            None => holdings.push(SlotOwner { master, slots: vec![slots] }),
        }
    }
    usable(holdings)
}

fn usable(holdings: Vec<SlotOwner>) -> Option<Vec<SlotOwner>> {
    let sane = |(first, last): &(u16, u16)| first <= last && *last < SLOTS;
    let any = holdings.iter().any(|held| !held.slots.is_empty());
    let all_sane = holdings.iter().flat_map(|held| &held.slots).all(sane);
    (any && all_sane).then_some(holdings)
}

fn address(host: Option<&str>, port: u16, asked: &Address) -> Option<Address> {
    match (host, asked) {
        (None | Some("" | "?"), Address::Tcp(asked, _)) => Some(Address::Tcp(asked.clone(), port)),
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

    fn asked() -> Address {
        Address::Tcp("10.0.0.9".into(), 7000)
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    fn word(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    fn node(role: &str, port: i64, health: &str, flat: bool) -> Value {
        let pairs = vec![
            (word("id"), word("x")),
            (word("port"), Value::Int(port)),
            (word("endpoint"), word("10.0.0.1")),
            (word("role"), word(role)),
            (word("health"), word(health)),
        ];
        if flat {
            Value::Array(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())
        } else {
            Value::Map(pairs)
        }
    }

    fn shard(slots: &[i64], nodes: Vec<Value>, flat: bool) -> Value {
        let pairs = vec![(word("slots"), ints(slots)), (word("nodes"), Value::Array(nodes))];
        if flat {
            Value::Array(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())
        } else {
            Value::Map(pairs)
        }
    }

    #[test]
    fn shards_are_read_in_both_shapes() {
        for flat in [false, true] {
            let reply = Value::Array(vec![
                shard(
                    &[0, 5, 7, 7],
                    vec![node("replica", 1, "online", flat), node("master", 2, "online", flat)],
                    flat,
                ),
                shard(&[], vec![node("master", 3, "online", flat)], flat),
            ]);
            let read = of_shards(&reply, &asked(), false).unwrap();
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
    fn of_two_masters_of_a_shard_the_one_online_counts() {
        let nodes = vec![node("master", 1, "online", true), node("master", 2, "fail", true)];
        let reply = Value::Array(vec![shard(&[0, 16383], nodes, true)]);
        assert_eq!(of_shards(&reply, &asked(), false).unwrap()[0].master, tcp("10.0.0.1", 1));
    }

    #[test]
    fn slots_are_read_and_an_unknown_host_is_the_asked_one() {
        let range = |first, last, host: Value, port| {
            let master = Value::Array(vec![host, Value::Int(port), word("id")]);
            let replica = Value::Array(vec![word("10.0.0.7"), Value::Int(9), word("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
        };
        let reply = Value::Array(vec![
            range(0, 99, word("10.0.0.1"), 1),
            range(100, 16383, Value::Nil, 2),
            range(100, 100, word("10.0.0.1"), 1),
        ]);
        assert_eq!(
            of_slots(&reply, &asked()).unwrap(),
            vec![
                SlotOwner { master: tcp("10.0.0.1", 1), slots: vec![(0, 99), (100, 100)] },
                SlotOwner { master: tcp("10.0.0.9", 2), slots: vec![(100, 16383)] },
            ]
        );
    }

    #[test]
    fn nonsense_is_no_table() {
        let outside = shard(&[0, 16384], vec![node("master", 1, "online", false)], false);
        let empty = shard(&[], vec![node("master", 1, "online", false)], false);
        for reply in [Value::Nil, Value::Array(vec![outside]), Value::Array(vec![empty])] {
            assert_eq!(of_shards(&reply, &asked(), false), None);
            assert_eq!(of_slots(&reply, &asked()), None);
        }
    }
}
