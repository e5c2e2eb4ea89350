//! A flood of fresh keys: memory stays under its bound, and existing counters stay exact.

use crate::support::grpc_client::{CallDescriptor, Client};

use super::target::{asked, client, left, question};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, metric};

/// A flood's own rule beside that of the clients.
const FLOODED: &str = "  - {key: flood, rate_limit: {unit: hour, requests_per_unit: 3}}\n";
const MAX_KEYS: u64 = 50_000;
/// 64 bytes for each key of the bound, as docs/SECURITY.md says, and as much again as a serving process
/// allocates for its connections and never gives back.
const GROWTH_MAX_KIB: usize = MAX_KEYS as usize * 64 / 1_024 + 16 * 1_024;
/// Keys in one call.
const AT_ONCE: u64 = 64;

async fn fresh(client: &mut Client, from: u64) {
    let descriptors = (from..from + AT_ONCE).map(|n| CallDescriptor {
        entries: vec![(b"flood".to_vec(), format!("{n:x}-of-a-flood").into_bytes())],
        ..CallDescriptor::default()
    });
    asked(client, &question(descriptors.collect())).await;
}

#[tokio::test]
async fn a_million_fresh_keys_leave_memory_under_its_bound_and_old_keys_as_they_were() {
    let max_keys = MAX_KEYS.to_string();
    let policy = format!("{FIVE_A_DAY}{FLOODED}");
    let serving = Tidegate::policy(&policy, &["--max-keys", &max_keys]);
    let mut client = client(serving.port("grpc")).await;
    let old: Vec<String> = (0..200).map(|n| format!("old-{n}")).collect();
    for name in &old {
        asked(&mut client, &question(vec![super::target::descriptor(name.as_bytes())])).await;
    }
    let before = serving.proc_status("VmRSS");
    let keys = crate::support::proof::times(75_000, 1_000_000);
    for from in (0..keys).step_by(AT_ONCE as usize) {
        fresh(&mut client, from).await;
    }
    let peak = serving.proc_status("VmHWM");
    println!("{keys} fresh keys: {before} KiB before, {peak} KiB at the peak");
    assert!(peak <= before + GROWTH_MAX_KIB, "{before} KiB, then {peak} KiB");
    assert!(metric(&serving, "keys") <= MAX_KEYS);
    assert!(metric(&serving, "keys_overflowed_total") > 0, "the bound was reached");
    for name in &old {
        assert_eq!(left(&mut client, name).await, 4, "{name}");
    }
}
