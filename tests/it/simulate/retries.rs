//! Retrying callers: patient, insistent, broken, and all at the same instant.

use super::{group, simulated};

#[test]
fn in_a_retry_storm_the_backend_sees_no_more_than_the_limit() {
    let result = simulated("retry-storm", &[]);
    let (patient, insistent) = (group(&result, "patient"), group(&result, "insistent"));
    // Everybody is served in the end, ...
    assert_eq!(patient.admitted, patient.offered);
    assert_eq!(insistent.admitted, insistent.offered);
    // ... the backend is never hit by more than burst and rate of both, ...
    assert!(result.one_second_max <= 2 * (120 + 120), "{}", result.one_second_max);
    // ... and patience costs a fifth of the tries: it asks each second, not each 200 ms.
    assert!(insistent.refused > 4 * patient.refused, "{} {}", insistent.refused, patient.refused);
}

#[test]
fn a_broken_bot_gets_its_own_limit_and_the_others_notice_nothing() {
    let lasts_s = 60;
    let result = simulated("broken-bot", &[("lasts_s", &lasts_s.to_string())]);
    let (bot, clients) = (group(&result, "bot"), group(&result, "clients"));
    assert!(bot.tries > 1_111 * lasts_s, "12 million in three hours are 1,111 a second");
    assert!(bot.admitted <= 20 + 10 * lasts_s, "burst and rate: {}", bot.admitted);
    assert_eq!(clients.refused, 0);
    assert!(clients.admitted > 200 * 20, "200 clients, about 30 calls each");
}

/// The most calls that reach the backend within a second.
fn peak(spread: &str) -> u64 {
    let result = simulated("released-at-once", &[("spread", spread)]);
    let callers = &result.groups[0];
    assert_eq!(callers.admitted, 5_000, "spread {spread}: everybody is served in the end");
    result.one_second_max
}

#[test]
fn released_at_one_instant_unless_the_wait_is_spread() {
    assert_eq!(peak("0"), 1_000, "the whole limit of the next minute in its first second");
    // They first come at 200 a second; with a spread of 50 they come back about like that.
    assert_eq!([peak("10"), peak("50"), peak("100")], [911, 248, 200]);
}
