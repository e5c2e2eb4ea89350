//! Callers who try again: patient, insistent, broken, and all at the same instant.

use crate::{group, ran};

#[test]
fn in_a_retry_storm_the_backend_sees_no_more_than_the_limit() {
    let ran = ran("retry-storm", &[]);
    let (patient, insistent) = (group(&ran, "patient"), group(&ran, "insistent"));
    // Everybody is served in the end, ...
    assert_eq!(patient.admitted, patient.offered);
    assert_eq!(insistent.admitted, insistent.offered);
    // ... the backend is never hit by more than burst and rate of both, ...
    assert!(ran.second_max <= 2 * (120 + 120), "{}", ran.second_max);
    // ... and patience costs a fifth of the tries: it asks each second, not each 200 ms.
    assert!(insistent.refused > 4 * patient.refused, "{} {}", insistent.refused, patient.refused);
}

#[test]
fn a_broken_bot_gets_its_own_limit_and_the_others_notice_nothing() {
    let lasts_s = 60;
    let ran = ran("broken-bot", &[("lasts_s", &lasts_s.to_string())]);
    let (bot, clients) = (group(&ran, "bot"), group(&ran, "clients"));
    assert!(bot.tries > 1_111 * lasts_s, "12 million in three hours are 1,111 a second");
    assert!(bot.admitted <= 20 + 10 * lasts_s, "burst and rate: {}", bot.admitted);
    assert_eq!(clients.refused, 0);
    assert!(clients.admitted > 200 * 20, "200 clients, about 30 calls each");
}

/// The largest number of tries in a slice of 20 seconds after the first one.
fn tries_max(spread: &str) -> u64 {
    let ran = ran("released-at-once", &[("spread", spread)]);
    let callers = &ran.groups[0];
    assert_eq!(callers.admitted, 5_000, "spread {spread}: everybody is served in the end");
    assert_eq!(ran.window_max.0 % 1_000, 0);
    let after = callers.slices.iter().skip(2);
    after.map(|slice| slice.admitted + slice.refused).max().unwrap()
}

#[test]
fn released_at_one_instant_unless_the_wait_is_spread() {
    let (together, spread) = (tries_max("0"), tries_max("100"));
    assert_eq!(together, 4_000, "all that were refused come back in the same second");
    assert!(spread < together * 3 / 4, "{spread} of {together}");
}

#[test]
fn what_is_released_at_once_reaches_the_backend_at_once() {
    assert_eq!(ran("released-at-once", &[("spread", "0")]).second_max, 1_000);
}
