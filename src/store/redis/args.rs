//! Turns checks and receipts into script calls.
//!
//! The arguments of each script stand in the header of its file in `lua/`; a test holds both to the
//! same list. Products are formed here, so that the scripts only add and compare.
//!
//! Not here: where counters live (`keys`), what the replies mean (`reply`).

use redis::Cmd;

use super::keys::{self, Prefix};
use super::script::{Script, Scripts};
use super::transport::Item;
use crate::domain::{
    Accounting, Bucket, Charge, Check, Counting, Hits, Micros, Op, Receipt, Refill, Role, Window,
};

/// Every number in Lua is a double: whole numbers are exact below 2^53.
const EXACT: u64 = 1 << 53;

/// The most hits that are counted in a window.
pub(super) const COUNT_MAX: u64 = u32::MAX as u64;

/// What the scripts call their arguments, in order. A test holds the headers in `lua/` and the
/// commands made here to these lists.
pub mod names {
    /// `fixed_window.lua`: ARGV.
    pub const FIXED_WINDOW: [&str; 4] = ["now_us", "cost", "limit", "length_us"];
    /// `bucket.lua`: ARGV; the last two in credit form only.
    pub const BUCKET: [&str; 6] = ["now_us", "need", "room", "full_us", "rate", "full_rest"];
    /// `apply.lua`: ARGV of the call.
    pub const APPLY: [&str; 3] = ["now_us", "accounting", "stride"];
    /// `apply.lua`: of each check of a fixed window.
    pub const APPLY_WINDOW: [&str; 5] = ["word", "cost", "limit", "length_us", "cap"];
    /// `apply.lua`: of each check of a bucket.
    pub const APPLY_BUCKET: [&str; 7] =
        ["word", "need", "room", "full_us", "rate", "full_rest", "cap"];
    /// `give_back.lua`: ARGV of the call.
    pub const GIVE_BACK: [&str; 1] = ["now_us"];
    /// `give_back.lua`: of each receipt of a fixed window.
    pub const GIVE_BACK_WINDOW: [&str; 4] = ["form", "count", "start", "length_us"];
    /// `give_back.lua`: of each receipt of a bucket.
    pub const GIVE_BACK_BUCKET: [&str; 6] = ["form", "need", "at", "full_us", "rate", "full_rest"];
}

/// Bytes that one check adds to a command: a key of 29 to 117, a word, four to six numbers of up to
/// 16 digits. A hint: more only costs a reallocation.
const CHECK_BYTES: usize = 160;

/// Turns checks and receipts into script calls.
#[derive(Clone, Debug)]
pub struct Encoder {
    prefix: Prefix,
    scripts: &'static Scripts,
    slots: bool,
}

/// A bucket's limit in credits, as `lua/bucket.lua` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Hits that fit in.
    pub(super) burst: u64,
    /// Credits per hit.
    pub(super) unit: u64,
    /// Credits that come back each microsecond.
    pub(super) rate: u64,
    /// The largest debt in credits: one capacity, charged always two.
    pub(super) cap: u64,
    /// Credit form: a debt may have a rest.
    pub(super) credits: bool,
}

impl Terms {
    pub(super) fn of(bucket: &Bucket, charge: Charge) -> Terms {
        let (unit, rate, credits) = match bucket.refill {
            Refill::Arrival { emission } => (emission.0, 1, false),
            Refill::Credits { hits, window } => (window.0, hits.0, true),
        };
        // The policy lets nothing through that these would change; they keep Lua exact and Rust
        // free of overflow whatever comes.
        let (unit, rate) = (unit.clamp(1, EXACT), rate.clamp(1, EXACT));
        let burst = bucket.burst.0.min(EXACT / unit);
        let times = if charge == Charge::Always { 2 } else { 1 };
        Terms { burst, unit, rate, cap: burst * unit * times, credits }
    }

    /// Credits of that many hits, as far as the largest debt goes.
    fn need(&self, hits: Hits) -> u64 {
        hits.0.saturating_mul(self.unit).min(self.cap)
    }

    /// The debt beyond which that many hits do not fit; -1 where they never do.
    fn room(&self, hits: Hits) -> i64 {
        let left = self.burst.checked_sub(hits.0).map(|left| left * self.unit);
        left.and_then(|left| i64::try_from(left).ok()).unwrap_or(-1)
    }
}

impl Encoder {
    /// An encoder of calls to these scripts; `slots`: every item names its cluster slot.
    pub fn new(prefix: Prefix, scripts: &'static Scripts, slots: bool) -> Encoder {
        Encoder { prefix, scripts, slots }
    }

    /// The call of a script that decides these checks. On a cluster all of them must be in one
    /// slot. `now`: `None` in production, where the server's clock counts.
    pub fn call(&self, checks: &[Check<'_>], accounting: Accounting, now: Option<Micros>) -> Item {
        if let [check] = checks
            && let Some(item) = self.alone(check, now)
        {
            return item;
        }
        let script = &self.scripts.apply;
        let stride = checks.iter().map(stride).max().unwrap_or(0);
        let count = checks.len();
        let mut command = self.begin(script, count, 3 + count * stride);
        for at in order(checks) {
            self.key(&mut command, &checks[at]);
        }
        time(&mut command, now);
        command.arg(match accounting {
            Accounting::AllOrNothing => "a",
            Accounting::Independent => "i",
        });
        command.arg(stride);
        for at in order(checks) {
            write_check(&mut command, &checks[at], stride);
        }
        self.item(script, command, checks.first().map(|check| keys::slot(&check.key)))
    }

    /// The call of a script that gives back what these receipts say. On a cluster all of their
    /// counters must be in one slot.
    pub fn give_back(&self, receipts: &[Receipt], now: Option<Micros>) -> Item {
        let script = &self.scripts.give_back;
        let mut command = self.begin(script, receipts.len(), 1 + receipts.len() * 6);
        for receipt in receipts {
            command.arg(self.prefix.key(&receipt.key, &receipt.limit.counting).as_slice());
        }
        time(&mut command, now);
        for Receipt { limit, taken, .. } in receipts {
            match &limit.counting {
                Counting::FixedWindow(window) => {
                    let Window::Epoch { length } = window.window;
                    command.arg("w").arg(taken.hits.0.min(COUNT_MAX)).arg(taken.window.0);
                    command.arg(length.0.max(1)).arg(0).arg(0);
                }
                Counting::Bucket(bucket) => {
                    let terms = Terms::of(bucket, limit.charge);
                    command.arg("c").arg(terms.need(taken.hits)).arg(taken.at.0);
                    command.arg(terms.cap / terms.rate).arg(terms.rate).arg(terms.cap % terms.rate);
                }
            }
        }
        self.item(script, command, receipts.first().map(|receipt| keys::slot(&receipt.key)))
    }

    /// The lean script for a call of one check that takes and is charged when admitted. Its role
    /// and the accounting make no difference then.
    fn alone(&self, check: &Check<'_>, now: Option<Micros>) -> Option<Item> {
        let Op::Take { cost: cost @ Hits(1..) } = check.op else { return None };
        if check.limit.charge != Charge::Admitted {
            return None;
        }
        let script = match &check.limit.counting {
            Counting::FixedWindow(_) => &self.scripts.fixed_window,
            Counting::Bucket(_) => &self.scripts.bucket,
        };
        let mut command = self.begin(script, 1, 6);
        self.key(&mut command, check);
        time(&mut command, now);
        match &check.limit.counting {
            Counting::FixedWindow(window) => {
                let Window::Epoch { length } = window.window;
                let hits = window.hits.0.min(COUNT_MAX);
                command.arg(cost.0.min(hits + 1)).arg(hits).arg(length.0.max(1));
            }
            Counting::Bucket(bucket) => {
                let terms = Terms::of(bucket, Charge::Admitted);
                command.arg(terms.need(cost)).arg(terms.room(cost)).arg(terms.cap / terms.rate);
                if terms.credits {
                    command.arg(terms.rate).arg(terms.cap % terms.rate);
                }
            }
        }
        Some(self.item(script, command, Some(keys::slot(&check.key))))
    }

    fn begin(&self, script: &Script, keys: usize, args: usize) -> Cmd {
        let mut command = Cmd::with_capacity(3 + keys + args, 64 + keys * CHECK_BYTES);
        command.arg("EVALSHA").arg(script.sha.as_str()).arg(keys);
        command
    }

    fn key(&self, command: &mut Cmd, check: &Check<'_>) {
        command.arg(self.prefix.key(&check.key, &check.limit.counting).as_slice());
    }

    fn item(&self, script: &'static Script, command: Cmd, slot: Option<u16>) -> Item {
        Item { script, command, slot: slot.filter(|_| self.slots) }
    }
}

/// The order in which `lua/apply.lua` gets and answers the checks: give-backs first.
pub(super) fn order<'a>(checks: &'a [Check<'_>]) -> impl Iterator<Item = usize> + 'a {
    let gives = |at: &usize| matches!(checks[*at].op, Op::GiveBack { .. });
    (0..checks.len()).filter(gives).chain((0..checks.len()).filter(move |at| !gives(at)))
}

/// Whether a check is charged whatever its verdict: a debt.
pub(super) fn is_debt(check: &Check<'_>) -> bool {
    matches!(check.op, Op::Take { cost: Hits(1..) }) && check.limit.charge == Charge::Always
}

fn time(command: &mut Cmd, now: Option<Micros>) {
    match now {
        None => command.arg(""),
        Some(now) => command.arg(now.0),
    };
}

/// How many arguments `apply.lua` needs of a check.
fn stride(check: &Check<'_>) -> usize {
    match &check.limit.counting {
        Counting::FixedWindow(_) => 4 + usize::from(check.limit.charge == Charge::Always),
        Counting::Bucket(_) if is_debt(check) => 7,
        Counting::Bucket(bucket) => match bucket.refill {
            Refill::Arrival { .. } => 4,
            Refill::Credits { .. } => 6,
        },
    }
}

fn write_check(command: &mut Cmd, check: &Check<'_>, stride: usize) {
    let debt = is_debt(check);
    let (op, cost) = match check.op {
        Op::GiveBack { cost } => (b'g', cost),
        Op::Peek | Op::Take { cost: Hits::ZERO } => (b'p', Hits::ONE),
        Op::Take { cost } => (if debt { b'd' } else { b't' }, cost),
    };
    let role = match check.role {
        Role::Required => b'r',
        Role::Quota => b'q',
        Role::Shadow => b's',
    };
    match &check.limit.counting {
        Counting::FixedWindow(window) => {
            let Window::Epoch { length } = window.window;
            let hits = window.hits.0.min(COUNT_MAX);
            command.arg([b'w', op, role].as_slice()).arg(cost.0.min(COUNT_MAX + 1)).arg(hits);
            command.arg(length.0.max(1));
            if check.limit.charge == Charge::Always {
                command.arg(COUNT_MAX);
            }
        }
        Counting::Bucket(bucket) => {
            let terms = Terms::of(bucket, check.limit.charge);
            let credits = terms.credits || debt;
            command.arg([if credits { b'c' } else { b'a' }, op, role].as_slice());
            command.arg(terms.need(cost)).arg(terms.room(cost)).arg(terms.cap / terms.rate);
            if credits {
                command.arg(terms.rate).arg(terms.cap % terms.rate);
            }
            if debt {
                command.arg(terms.cap);
            }
        }
    }
    for _ in self::stride(check)..stride {
        command.arg("");
    }
}
