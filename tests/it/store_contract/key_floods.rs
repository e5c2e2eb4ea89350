//! Floods of fresh keys over one or many rules: users of other rules notice nothing, and almost no
//! user of a flooded rule does. `make proof` uses a store of the default size, `make test` an eighth.

use std::sync::Arc;

use tidegate::domain::Limit;
use tidegate::store::LocalStore;
use tidegate::store::memory::MemoryStore;

use super::full_table::{flood, flood_key};
use super::memory_bound::family;
use super::store_under_test::*;
use crate::support::proof::times;

const HOUR: u64 = 60 * MINUTE;
/// Keys of users begin here, and those of users that came before a flood at twice as much.
const USERS: u64 = 1 << 40;

/// Returns rules with the given ids, of several algorithms, that allow five hits an hour.
fn rules(ids: std::ops::Range<u64>) -> Vec<Arc<Limit>> {
    let kinds = [window(5, HOUR), bucket(5, HOUR), sliding_window(5, HOUR)];
    ids.map(|id| family(id, &kinds[id as usize % kinds.len()])).collect()
}

/// Sends the first hit of `users`, in turn to each of the rules. Returns how many are refused.
fn refused_users(store: &MemoryStore, users: std::ops::Range<u64>, rules: &[Arc<Limit>]) -> u64 {
    let first = |n: u64| {
        let rule = &rules[n as usize % rules.len()];
        store.decide_one(&take(flood_key(USERS + n), rule, 1), START)
    };
    users.map(|n| u64::from(!passes(&first(n)))).sum()
}

/// Floods `number` rules with 11 keys for every 10 of the store's capacity, in both orders.
fn flood_rules_in_both_orders(number: u64) {
    let capacity = times(125_000, 1_000_000);
    let (keys, users) = (capacity / 10 * 11, times(400, 3_000));
    for is_reversed in [false, true] {
        let store = MemoryStore::new(capacity as usize);
        let (mut flooded, mut others) = (rules(1..1 + number), rules(1_000..1_003));
        if is_reversed {
            flooded.reverse();
            others.reverse();
        }
        refused_users(&store, USERS..USERS + capacity / 50, &others);
        // Rule after rule, so that the last ones find a full store.
        for (n, rule) in (0..).zip(&flooded) {
            flood(&store, keys * n / number..keys * (n + 1) / number, rule, START);
        }
        let of_others = refused_users(&store, 0..users, &others);
        let of_flooded = refused_users(&store, users..2 * users, &flooded);
        println!("{number} rules, {is_reversed}: {of_others} and {of_flooded} of {users} refused");
        assert_eq!(of_others, 0, "{number} rules, reversed: {is_reversed}");
        assert!(of_flooded <= users / 100, "{of_flooded}: {number} rules, {is_reversed}");
        assert!(store.len() as u64 <= capacity, "{}", store.len());
    }
}

#[test]
fn a_flood_of_one_rule_stays_there() {
    flood_rules_in_both_orders(1);
}

#[test]
fn a_flood_of_eight_rules_stays_there() {
    flood_rules_in_both_orders(8);
}

#[test]
fn a_flood_of_twelve_rules_stays_there() {
    flood_rules_in_both_orders(12);
}

#[test]
fn a_flood_of_fifty_rules_stays_there() {
    flood_rules_in_both_orders(50);
}

#[test]
fn users_of_other_rules_find_room_in_a_store_that_one_rule_has_filled() {
    let capacity = times(125_000, 1_000_000);
    let users = capacity / 50;
    for is_reversed in [false, true] {
        let store = MemoryStore::new(capacity as usize);
        let mut others = rules(2..6);
        if is_reversed {
            others.reverse();
        }
        refused_users(&store, USERS..USERS + users, &others);
        flood(&store, 0..capacity, &rules(1..2)[0], START);
        for rule in &others {
            let one = std::slice::from_ref(rule);
            let id = rule.limit_id;
            assert_eq!(refused_users(&store, id * users..(id + 1) * users, one), 0, "rule {id}");
        }
    }
}

#[test]
fn honest_logins_beside_a_flood_pass() {
    let capacity = times(125_000, 1_000_000);
    let logins = capacity / 100 * 12;
    for is_mixed in [false, true] {
        let store = MemoryStore::new(capacity as usize);
        let [flooded, honest, other] = rules(1..4).try_into().unwrap();
        let honest = std::slice::from_ref(&honest);
        let before = logins / 3;
        let mut refused = refused_users(&store, 0..before, honest);
        refused_users(&store, USERS..USERS + 1_000, &[other]);
        if !is_mixed {
            flood(&store, 0..capacity / 10 * 11, &flooded, START);
        }
        for n in before..logins {
            if is_mixed {
                flood(&store, n * 15..(n + 1) * 15, &flooded, START);
            }
            refused += refused_users(&store, n..n + 1, honest);
        }
        println!("mixed: {is_mixed}: {refused} of {logins} refused");
        assert!(refused <= logins / 1_000, "{refused} of {logins}");
    }
}
