//! Many updates of a large policy, as Envoy Gateway sends them: one resource with all routes, of which
//! one has changed.

use std::time::Duration;

use super::messages::{RateLimitDescriptor, resource, yearly};
use super::plane::ControlPlane;
use super::served::{enforces_count, plain};
use crate::support::http::get;
use crate::support::paired_waits::{self, PAIRS};
use crate::support::tidegate_process::metric;
use crate::support::wait::until;
use crate::support::{heavy, proof};

/// Routes of a listener, with four rules each.
const ROUTES: usize = 400;

/// Number of updates before memory is read for the first time. By then, the allocator has its pages.
const WARM_UP: usize = 20;

/// Number of updates before memory is read for the second time. Each takes a second: Tidegate activates
/// no more.
const UPDATES: usize = 70;

/// Maximum growth of memory between the two readings, in KiB. A leak of one policy per update, of half
/// a KiB per rule, would be twice as much. The allocator takes memory from the system in steps of
/// 4 MiB, and keeps more or less of it beside other tests: 11 MiB were seen.
const GROWTH_KIB_MAX: usize = (UPDATES - WARM_UP) * 4_096 / 10;

/// The shape of Envoy Gateway: a node for the route, below it one for each rule.
fn route(at: usize, requests_per_unit: u32) -> RateLimitDescriptor {
    let rule = |rule: usize| RateLimitDescriptor {
        value: format!("rule-{rule}-match--1"),
        ..yearly(&format!("rule-{rule}-match--1"), requests_per_unit)
    };
    let name = format!("httproute/default/route-{at}/rule/0/match/0/www_example_com");
    RateLimitDescriptor {
        key: name.clone(),
        value: name,
        descriptors: (0..4).map(rule).collect(),
        ..Default::default()
    }
}

#[test]
fn memory_stays_flat_over_many_updates_of_a_large_policy() {
    let plane = ControlPlane::start("test", None);
    let update = |version: usize| {
        let number = |at: usize| if at == 17 { version as u32 } else { 5 };
        let routes = (0..ROUTES).map(|at| route(at, number(at))).collect();
        let steady = resource("steady", vec![yearly("client", 5)]);
        plane.set(&version.to_string(), vec![resource("default/gateway/http", routes), steady]);
    };
    update(1);
    let serving = plain(&plane.address.to_string(), &[], &[]);
    let mut memory = Vec::new();
    for version in 2..=UPDATES {
        update(version);
        plane.acknowledged(&version.to_string());
        if [WARM_UP, UPDATES].contains(&version) {
            memory.push(serving.proc_status("VmRSS"));
        }
    }
    let [warm, last] = memory[..] else { panic!("{memory:?}") };
    println!("{warm} KiB after {WARM_UP} updates, {last} KiB after {UPDATES}");
    assert!(last <= warm + GROWTH_KIB_MAX, "{memory:?} KiB");
    // The other domain was compiled once.
    assert_eq!(metric(&serving, "xds_compiled_domains_total"), UPDATES as u64 + 1);
    let listed = || get(serving.port("debug"), "/rlconfig").body;
    let last_limit = format!("requests_per_unit={UPDATES},");
    until("the last limit", || listed().contains(&last_limit).then_some(()));
    assert_eq!(listed().lines().count(), ROUTES * 4 + 1);
}

/// Routes of a large gateway.
const MANY_ROUTES: usize = 1_000;

/// How long calls are measured before and during an update, in milliseconds. At full length, an update
/// takes effect within it.
fn measured() -> Duration {
    Duration::from_millis(proof::times(200, 2_000))
}

/// How many times as long the slowest hundredth of the calls may take during updates.
const P99_TIMES_MAX: u32 = 3;

#[test]
fn updates_of_a_thousand_routes_do_not_disturb_calls() {
    let _alone = heavy::blocking_turn();
    let plane = ControlPlane::start("test", None);
    let update = |version: usize| {
        let number = |at: usize| if at == 17 { version as u32 } else { 5 };
        let routes = (0..MANY_ROUTES).map(|at| route(at, number(at))).collect();
        let other = resource("other", vec![yearly("client", u32::MAX)]);
        plane.set(&version.to_string(), vec![resource("default/gateway/http", routes), other]);
    };
    update(1);
    let serving = plain(&plane.address.to_string(), &[], &[]);
    plane.acknowledged("1");
    enforces_count(&serving, MANY_ROUTES * 4 + 1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let p99 = || runtime.block_on(paired_waits::p99_of_calls(&serving, "other", measured()));
    let mut pairs = Vec::new();
    for version in 2..2 + PAIRS {
        let before = p99();
        update(version);
        pairs.push((before, p99()));
        plane.acknowledged(&version.to_string());
    }
    let (before, during) = paired_waits::medians("updates of 4,000 rules", &pairs);
    assert_eq!(metric(&serving, "xds_acks_total"), 1 + PAIRS as u64);
    if proof::judges_times() {
        assert!(during <= before * P99_TIMES_MAX, "{before:?} before, {during:?} during updates");
    }
}
