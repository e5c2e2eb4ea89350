//! Reads a `rate_limit` or an entry of `rate_limits`, and checks that its keys do not conflict.
//!
//! Not here: the enclosing descriptor (`descriptor`), consumer classes (`tiers`), bounds of the
//! arithmetic (`limit_parameters`).

use std::num::NonZeroU32;
use std::sync::Arc;

use super::limit_context::{LimitContext, limit_id, report_bounds_error};
use super::limit_parameters::{DEFAULT_LEASE_SECS, RawLimit};
use super::{soft_limit, tiers};
use crate::domain::{Anchor, Calendar, Charge, Micros, NamedEnum as _, Rate, Reserve, Unit};
use crate::policy::compiled_policy::{LimitSpec, TierMethod};
use crate::policy::diagnostic::{DiagnosticKind, PathStep, Target, quoted, to_u32};
use crate::policy::syntax::keywords::{self, Key, Level};
use crate::policy::syntax::reader::{ErrorReported, ReadResult, Reader};
use crate::policy::time_zone;
use crate::policy::words::{AlgorithmName, Align, Prepay};

/// Compiled `rate_limit` or entry of `rate_limits`. `limit` is `None` if the key `unlimited` is
/// true.
#[derive(Debug)]
pub(crate) struct RateLimit {
    pub(crate) name: Option<Box<str>>,
    pub(crate) replaces: Box<[Box<str>]>,
    pub(crate) limit: Option<LimitSpec>,
}

/// Keys that an unlimited `rate_limit` can have. The others configure counting.
const UNLIMITED_KEYS: [Key; 5] = [
    keywords::UNIT,
    keywords::REQUESTS_PER_UNIT,
    keywords::UNLIMITED,
    keywords::NAME,
    keywords::REPLACES,
];

/// Reads a `rate_limit` or an entry of `rate_limits`. Reports keys that conflict.
pub(crate) fn read(
    reader: &mut Reader<'_>,
    context: LimitContext<'_>,
) -> Result<RateLimit, ErrorReported> {
    let name = read_name(reader);
    let limit_name = name.as_ref().ok().and_then(Option::as_deref).unwrap_or_default().to_owned();
    let replaces = read_replaces(reader, &limit_name);
    let unlimited = reader.read_boolean(&keywords::UNLIMITED);
    let limit = match unlimited {
        Ok(true) if context.in_list => {
            let message = "`unlimited` cannot be used in `rate_limits`; write `rate_limit: \
                           {unlimited: true}` instead of the list";
            Err(reader.report_key(&keywords::UNLIMITED, DiagnosticKind::Conflict, message))
        }
        Ok(true) => check_unlimited_conflicts(reader).map(|()| None),
        Ok(false) => read_limit(reader, context, &limit_name).map(Some),
        Err(reported) => Err(reported),
    };
    name?;
    Ok(RateLimit {
        name: (!limit_name.is_empty()).then(|| limit_name.into()),
        replaces: replaces?,
        limit: limit?,
    })
}

/// Reads the name of a limit. The header `x-ratelimit-limit` has it in quotes.
fn read_name(reader: &mut Reader<'_>) -> ReadResult<String> {
    match reader.read_string(&keywords::NAME)? {
        Some(name) if name.contains(['"', '\\']) => {
            let message = "the `name` of a limit cannot have a quote or a backslash, because response \
                           headers carry it in quotes; remove it";
            Err(reader.report_key(&keywords::NAME, DiagnosticKind::BadValue, message))
        }
        name => Ok(name),
    }
}

fn read_replaces(
    reader: &mut Reader<'_>,
    limit_name: &str,
) -> Result<Box<[Box<str>]>, ErrorReported> {
    let names = reader.for_each(&keywords::REPLACES, |reader, _| {
        let name = reader.read_string(&keywords::REPLACED_NAME)?;
        let name = name.filter(|name| !name.is_empty());
        let message = "an entry of `replaces` needs `name: LIMIT`";
        let name = reader.require(name, Target::Value, message)?;
        if name == limit_name {
            let message = "a limit cannot replace itself; name another one";
            let (key, kind) = (&keywords::REPLACED_NAME, DiagnosticKind::Conflict);
            return Err(reader.report_key(key, kind, message));
        }
        Ok(name.into_boxed_str())
    })?;
    Ok(names.unwrap_or_default().into())
}

/// Reports keys that conflict with `unlimited`. An unknown `unit` has no effect, because
/// envoyproxy/ratelimit accepts it in combination with `unlimited`.
fn check_unlimited_conflicts(reader: &mut Reader<'_>) -> Result<(), ErrorReported> {
    let mut reported = Ok(());
    let unit = reader.read_string(&keywords::UNIT)?;
    if unit.is_some_and(|unit| Unit::from_name(&unit, true).is_some()) {
        let message = match reader.is_set(&keywords::REQUESTS_PER_UNIT) {
            true => {
                "`unit` and `requests_per_unit` have no effect with `unlimited`; remove `unlimited` \
                 to have this limit, or remove these two to have no limit"
            }
            false => {
                "`unit` has no effect with `unlimited`; remove `unlimited` to have a limit, or \
                 remove `unit` to have no limit"
            }
        };
        reported = Err(reader.descend((&keywords::UNIT).into(), |reader| {
            reader.report(Target::Key, DiagnosticKind::Conflict, message)
        }));
    }
    let counting = Level::RateLimit.keys().filter(|key| !UNLIMITED_KEYS.contains(key));
    for key in counting {
        if reader.is_set(key) {
            let message =
                format!("`{}` has no effect with `unlimited`; remove one of the two", key.name);
            reported = Err(reader.report_key(key, DiagnosticKind::Conflict, message));
        }
    }
    reported
}

fn read_limit(
    reader: &mut Reader<'_>,
    context: LimitContext<'_>,
    name: &str,
) -> Result<LimitSpec, ErrorReported> {
    let per = read_per(reader, context);
    let raw = read_raw_limit(reader, context);
    let prepay = read_prepay(reader, raw.as_ref().ok());
    let soft = soft_limit::read(reader, context.defaults.near_at);
    let block = read_block(reader, raw.as_ref().ok(), prepay == Ok(true));
    let (raw, per, soft) = (raw?, per?, soft?);
    check_reserve(reader, &raw, prepay == Ok(true))?;
    let window = raw.rate.window().0.to_be_bytes();
    let mut identity: Vec<Vec<u8>> = vec![
        context.defaults.domain.into(),
        name.into(),
        window.into(),
        raw.algorithm.as_str().into(),
        raw.calendar.iter().flat_map(|c| c.time_zone().bytes()).collect(),
        per.iter().flatten().flat_map(|at| at.to_be_bytes()).collect(),
    ];
    // Only if there is one, so that limits without it keep their ids.
    let anchor = raw.calendar.as_ref().and_then(Calendar::anchor);
    identity.extend(anchor.map(String::into_bytes));
    identity.extend(context.path.iter().map(|part| part.clone().into_bytes()));
    let mut limit = match raw.compile(limit_id(&identity)) {
        Ok(limit) => limit,
        Err(error) => return Err(report_bounds_error(reader, error)),
    };
    let tiers = tiers::read(reader, context, &raw, &limit, &mut identity)?;
    (limit.prepay, limit.block_seconds) = (prepay?, block?);
    if tiers.as_ref().is_some_and(|tiers| tiers.method == TierMethod::Hybrid) {
        limit.charge = Charge::Admitted;
    }
    Ok(LimitSpec {
        name: (!name.is_empty()).then(|| name.into()),
        in_list: context.in_list,
        per,
        bill_limit: limit.bill_limit().map(Arc::new),
        limit: Arc::new(limit),
        tiers: tiers.map(Arc::new),
        soft: soft.map(Arc::new),
        cost: raw.cost,
    })
}

/// Reads the keys that configure counting, except `per`, `prepay`, `block`, and `tiers`.
fn read_raw_limit(
    reader: &mut Reader<'_>,
    context: LimitContext<'_>,
) -> Result<RawLimit, ErrorReported> {
    let algorithm = reader.read_word(&keywords::ALGORITHM).map(Option::unwrap_or_default);
    let is_concurrency = algorithm == Ok(AlgorithmName::Concurrency);
    let unit = match reader.read_word(&keywords::UNIT) {
        Ok(Some(_)) if is_concurrency => Err(report_unused_by_concurrency(reader, &keywords::UNIT)),
        Ok(None) if !is_concurrency => {
            let message = "a limit needs `unit`, one of: second, minute, hour, day, week, month, \
                           year; or `unlimited: true`";
            Err(reader.report(Target::Key, DiagnosticKind::Missing, message))
        }
        unit => unit,
    };
    let multiplier = match reader.read_number(&keywords::UNIT_MULTIPLIER) {
        Ok(Some(_)) if is_concurrency => {
            Err(report_unused_by_concurrency(reader, &keywords::UNIT_MULTIPLIER))
        }
        multiplier => multiplier,
    };
    let requests = reader.read_number(&keywords::REQUESTS_PER_UNIT);
    if requests == Ok(None) {
        let message = "without `requests_per_unit`, this limit rejects every call; write \
                       `requests_per_unit: 0` if that is meant";
        reader.report(Target::Key, DiagnosticKind::DeniesAll, message);
    }
    let lease = match reader.read_number(&keywords::LEASE) {
        Ok(Some(_)) if algorithm.is_ok() && !is_concurrency => {
            let message = "`lease` is how long a slot is held; write `algorithm: concurrency` or \
                           remove it";
            Err(reader.report_key(&keywords::LEASE, DiagnosticKind::Conflict, message))
        }
        lease => lease,
    };
    let burst = reader.read_number(&keywords::BURST);
    let cost = reader.read_number(&keywords::COST);
    let charge = reader.read_word(&keywords::CHARGE);
    let failure = reader.read_word(&keywords::RULE_FAILURE);
    let calendar = read_calendar(reader, algorithm, unit, multiplier);
    let reserve = read_reserve(reader);
    Ok(RawLimit {
        rate: Rate {
            unit: unit?,
            requests_per_unit: to_u32(requests?.unwrap_or(0)),
            unit_multiplier: to_u32(multiplier?.unwrap_or(1)),
        },
        algorithm: algorithm?,
        burst: burst?,
        cost: cost?.unwrap_or(1),
        has_own_charge: reader.is_set(&keywords::CHARGE),
        charge: match charge? {
            Some(charge) => charge,
            // The default of a domain must not be an error for a limit that keeps no debt.
            None if is_concurrency => Charge::Admitted,
            None => context.defaults.charge,
        },
        calendar: calendar?,
        lease: Micros::from_secs(lease?.unwrap_or(DEFAULT_LEASE_SECS)),
        on_store_failure: failure?.unwrap_or(context.defaults.on_store_failure),
        reserve: reserve?,
    })
}

fn read_reserve(reader: &mut Reader<'_>) -> ReadResult<Reserve> {
    let ttl = reader.read_map(&keywords::RESERVE, |reader| {
        let ttl = reader.read_number(&keywords::RESERVE_TTL)?;
        let message = "`reserve` needs `ttl`, the seconds after which a hold ends; write `reserve: \
                       {ttl: 60}`";
        reader.require(ttl, Target::Value, message).map(|ttl| Reserve::from_secs(to_u32(ttl)))
    })?;
    Ok(ttl.flatten())
}

/// Reports `reserve` if it conflicts with the algorithm, or with another key.
fn check_reserve(
    reader: &mut Reader<'_>,
    raw: &RawLimit,
    prepay: bool,
) -> Result<(), ErrorReported> {
    if raw.reserve.is_none() {
        return Ok(());
    }
    let message = match raw.algorithm {
        AlgorithmName::SlidingWindow
        | AlgorithmName::SlidingLog
        | AlgorithmName::LeakyBucket
        | AlgorithmName::Concurrency => format!(
            "`reserve` cannot be used with `{}`; remove it, or use fixed_window or token_bucket",
            raw.algorithm.as_str()
        ),
        AlgorithmName::FixedWindow | AlgorithmName::TokenBucket => {
            let conflicts = [
                (reader.is_set(&keywords::TIERS), "`tiers`, whose classes share a bucket"),
                (prepay, "`prepay`, because Redis must see every hold"),
                (raw.cost != 1, "`cost`, because a settle charges what was used"),
            ];
            match conflicts.iter().find(|(is_set, _)| *is_set) {
                Some((_, key)) => {
                    format!("`reserve` cannot be combined with {key}; remove one of the two")
                }
                None => return Ok(()),
            }
        }
    };
    Err(reader.report_key(&keywords::RESERVE, DiagnosticKind::Conflict, message))
}

/// Reads `prepay`. Returns true for `auto`, and reports `auto` if it conflicts with the algorithm,
/// with `tiers`, or with the charge mode. `raw` contains the other keys of the limit, or is `None`
/// if they contain errors.
fn read_prepay(reader: &mut Reader<'_>, raw: Option<&RawLimit>) -> Result<bool, ErrorReported> {
    let is_auto = reader.read_word(&keywords::PREPAY)? == Some(Prepay::Auto);
    let Some(raw) = raw.filter(|_| is_auto) else { return Ok(is_auto) };
    let message = match raw.algorithm {
        AlgorithmName::SlidingLog | AlgorithmName::LeakyBucket | AlgorithmName::Concurrency => {
            format!(
                "`prepay` cannot be used with `algorithm: {}`; remove it, or use fixed_window, \
                 sliding_window, or token_bucket",
                raw.algorithm.as_str()
            )
        }
        AlgorithmName::FixedWindow | AlgorithmName::SlidingWindow | AlgorithmName::TokenBucket => {
            if reader.is_set(&keywords::TIERS) {
                "`prepay: auto` cannot be used with `tiers`; remove one of the two".to_owned()
            } else if raw.charge.keeps_debt() {
                format!(
                    "`prepay: auto` cannot be used with `charge: {}`; remove `prepay`, or write \
                     `charge: admitted`",
                    raw.charge.as_str()
                )
            } else {
                return Ok(true);
            }
        }
    };
    Err(reader.report_key(&keywords::PREPAY, DiagnosticKind::Conflict, message))
}

/// Reads `block`, and reports it if it conflicts with another key. `raw` contains the other keys of
/// the limit, or is `None` if they contain errors.
fn read_block(
    reader: &mut Reader<'_>,
    raw: Option<&RawLimit>,
    prepay: bool,
) -> ReadResult<NonZeroU32> {
    let seconds = reader.read_number(&keywords::BLOCK)?;
    let (Some(raw), Some(seconds)) = (raw, seconds) else { return Ok(None) };
    let message = if raw.algorithm == AlgorithmName::Concurrency {
        "`block` cannot be used with `algorithm: concurrency`, because a slot becomes free when its \
         request ends; remove `block`"
    } else if reader.is_set(&keywords::TIERS) {
        "`block` cannot be used with `tiers`, because it would block all classes of a key; remove \
         one of the two"
    } else if prepay {
        "`block` cannot be used with `prepay: auto`, because Redis does not see the calls that \
         prepaid hits answer; remove one of the two"
    } else if raw.rate.requests_per_unit == 0 {
        "`block` has no effect with `requests_per_unit: 0`, which rejects every call; remove one of \
         the two"
    } else {
        return Ok(NonZeroU32::new(to_u32(seconds)));
    };
    Err(reader.report_key(&keywords::BLOCK, DiagnosticKind::Conflict, message))
}

/// Reports a key that has no meaning for concurrency limits.
fn report_unused_by_concurrency(reader: &mut Reader<'_>, key: &Key) -> ErrorReported {
    let message = format!(
        "`{}` cannot be used with `algorithm: concurrency`, whose slots are either in use or free; \
         remove it",
        key.name
    );
    reader.report_key(key, DiagnosticKind::Conflict, message)
}

/// Reads `align`, `time_zone`, and `anchor`. Returns `None` unless windows are aligned to the calendar.
fn read_calendar(
    reader: &mut Reader<'_>,
    algorithm: Result<AlgorithmName, ErrorReported>,
    unit: Result<Option<Unit>, ErrorReported>,
    multiplier: ReadResult<u64>,
) -> ReadResult<Calendar> {
    let align = reader.read_word(&keywords::ALIGN);
    let zone = reader.read_string(&keywords::TIME_ZONE);
    let anchor = reader.read_string(&keywords::ANCHOR);
    if align? != Some(Align::Calendar) {
        let mut reported = Ok(None);
        for key in [keywords::TIME_ZONE, keywords::ANCHOR] {
            if reader.is_set(&key) {
                let message = format!(
                    "`{}` only applies to calendar windows; write `align: calendar`, or remove it",
                    key.name
                );
                reported = Err(reader.report_key(&key, DiagnosticKind::Conflict, message));
            }
        }
        return reported;
    }
    let mut conflict =
        |message: &str| Err(reader.report_key(&keywords::ALIGN, DiagnosticKind::Conflict, message));
    if algorithm? != AlgorithmName::FixedWindow {
        return conflict("`align` can only be used with `algorithm: fixed_window`; remove it");
    }
    let unit = match unit? {
        Some(unit @ (Unit::Day | Unit::Week | Unit::Month | Unit::Year)) => unit,
        _ => {
            return conflict(
                "`align: calendar` needs a unit of day, week, month, or year; remove it, since \
                 shorter windows are the same without it",
            );
        }
    };
    if multiplier?.unwrap_or(1) != 1 {
        return conflict(
            "`unit_multiplier` cannot be used with `align: calendar`, whose windows are \
                         one unit long; remove it",
        );
    }
    let anchor = match anchor? {
        None => Some(Anchor::FIRST_DAY),
        Some(text) => time_zone::parse_anchor(unit, &text),
    };
    let Some(anchor) = anchor else {
        let message = match unit {
            Unit::Month => "`anchor` of a month must be a day, 1 to 31",
            Unit::Year => "`anchor` of a year must be a date, such as 04-01",
            _ => "`anchor` is only allowed with `unit: month` or `unit: year`; remove it",
        };
        return Err(reader.report_key(&keywords::ANCHOR, DiagnosticKind::BadValue, message));
    };
    let zone = zone?.unwrap_or_else(|| "UTC".to_owned());
    match time_zone::anchored_calendar(unit, &zone, anchor) {
        Some(calendar) => Ok(Some(calendar)),
        None => {
            let message =
                format!("unknown time zone {}; write a name such as Europe/Berlin", quoted(&zone));
            Err(reader.report_key(&keywords::TIME_ZONE, DiagnosticKind::BadValue, message))
        }
    }
}

/// Reads `per`, a list of entry keys. Returns the sorted positions of these keys on the limit's
/// path, or `None` if `per` is absent.
fn read_per(reader: &mut Reader<'_>, context: LimitContext<'_>) -> ReadResult<Box<[usize]>> {
    let Some(names) = reader.read_names(&keywords::PER)? else { return Ok(None) };
    if !context.in_list {
        let message = "`per` can only be used in an entry of `rate_limits`; a `rate_limit` always \
                       counts by its whole path";
        return Err(reader.report_key(&keywords::PER, DiagnosticKind::Conflict, message));
    }
    let (mut positions, mut reported) = (Vec::new(), None);
    for (at, name) in names.iter().enumerate() {
        let before = positions.len();
        positions
            .extend(context.keys().enumerate().filter(|(_, key)| key == name).map(|(at, _)| at));
        if positions.len() == before {
            let keys: Vec<&str> = context.keys().collect();
            let message =
                format!("the path has no entry {}; it has: {}", quoted(name), keys.join(", "));
            reported = Some(reader.descend((&keywords::PER).into(), |reader| {
                reader.descend(PathStep::Index(at), |reader| {
                    reader.report(Target::Value, DiagnosticKind::BadValue, message)
                })
            }));
        }
    }
    positions.sort_unstable();
    positions.dedup();
    reported.map_or(Ok(Some(positions.into())), Err)
}
