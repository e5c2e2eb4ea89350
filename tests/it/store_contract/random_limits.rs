//! The limits of random calls: every algorithm, class method and calendar window, up to the bounds of
//! the arithmetic, charged in each way, and with hits that can be held.

use std::sync::Arc;

use tidegate::domain::{Limit, Unit};

use crate::support::limits::*;

const YEAR: u64 = 8_760 * HOUR;

/// Eight of windows and buckets, the same charged always, twelve more, and eleven that charge bills
/// in any case.
pub const HOLDS: u64 = 16 + 12 + 11;
/// Then three whose hits can be held.
pub const COUNTERS: u64 = HOLDS + 3;
/// The counter of slots, and how many ask for them.
pub const SLOTS: u64 = 24;

/// A counter keeps its algorithm, its window and its charge; its other numbers change.
pub fn limit_of(counter: u64, variant: u64) -> Arc<Limit> {
    let limit = match counter {
        0..8 => plain(counter, variant),
        8..16 => return always(&plain(counter - 8, variant)),
        28..36 => return billed(&plain(counter - 28, variant)),
        36..HOLDS => return billed(&other([18, 21, 23][(counter - 36) as usize], variant)),
        HOLDS.. => holds(counter - HOLDS, variant),
        _ => other(counter, variant),
    };
    match counter {
        18 | 21 | 23 => always(&limit),
        _ => limit,
    }
}

/// Windows and buckets.
fn plain(counter: u64, variant: u64) -> Arc<Limit> {
    let pick = |numbers: [u64; 5]| numbers[usize::try_from(variant).unwrap()];
    let window_hits = pick([5, 3, 20, 0, u64::from(u32::MAX)]);
    match counter {
        0 => window(window_hits, SECOND),
        1 => window(window_hits, 7 * MINUTE),
        2 => window(window_hits, 10 * YEAR),
        3 => bucket(pick([10, 3, 40, 0, 1_000_000]), pick([70_000, 50, SECOND, 1, 3])),
        4 => match variant {
            4 => bucket(12, 333_333),
            _ => credits(pick([7, 4, 90, 0, 1]), pick([7, 3, 89, 1, 1]), SECOND),
        },
        // At the bounds: burst * emission just below 2^51 µs, burst * window just below 2^52.
        5 => {
            bucket(pick([2, 1, 100, 71_000_000, 3]), pick([HOUR, MINUTE, YEAR / 50, 31_000_000, 9]))
        }
        6 => credits(
            pick([52_000, 7, 1_000, 3, 4_000_000]),
            pick([50_000, 4_294_967_295, 999_983, 7, 4_000_000]),
            pick([24 * HOUR, MINUTE, HOUR, YEAR, SECOND]),
        ),
        _ => credits(pick([1, 2, 3, 4, 5]), pick([3_000_001, 3, 4_000_037, 7, 11]), 7 * SECOND),
    }
}

/// Everything else: sliding windows in each tick, logs, slots, classes of each method, calendars.
fn other(counter: u64, variant: u64) -> Arc<Limit> {
    let pick = |numbers: [u64; 5]| numbers[usize::try_from(variant).unwrap()];
    let class = usize::try_from(variant).unwrap() % 3;
    match counter {
        16 => sliding_window(pick([5, 3, 20, 0, 1_000_000]), 2 * SECOND),
        17 => sliding_window(pick([50, 3, 20, 0, 104_000]), 24 * HOUR - SECOND),
        18 => sliding_window(pick([50, 30, 200, 1, 1_000]), 7 * 24 * HOUR),
        19 => sliding_log(pick([5, 3, 20, 0, 1]), 2 * SECOND),
        20 => sliding_log(pick([300, 280, 400, 1, 350]), HOUR),
        21 => sliding_log(pick([5, 3, 20, 0, 7]), MINUTE),
        // Shared classes: one bucket, seen with each class's floor.
        22 => floored(&bucket(10, 70_000), pick([0, 3, 7, 10, 1])),
        23 => calendar(pick([5, 3, 20, 0, 4_000_000]), Unit::Day, "Europe/Berlin"),
        SLOTS => slots(pick([4, 3, 6, 0, 1]), MINUTE),
        25 => calendar(pick([50, 30, 200, 0, 4_000_000]), Unit::Month, "America/New_York"),
        26 => hybrid(100, 10, SECOND, &[30, 20, 10], class),
        _ => hybrid(50, 600, HOUR, &[50, 30, 20], class),
    }
}

/// Limits whose hits can be held.
fn holds(counter: u64, variant: u64) -> Arc<Limit> {
    let pick = |numbers: [u64; 5]| numbers[usize::try_from(variant).unwrap()];
    match counter {
        0 => reserved(&window(pick([5, 3, 20, 0, u64::from(u32::MAX)]), MINUTE), 40),
        1 => reserved(&bucket(pick([10, 3, 20, 6, 1]), 7 * SECOND), 40),
        _ => billed(&reserved(&credits(pick([20, 5, 9, 7, 1]), 7, 40 * SECOND), 3)),
    }
}
