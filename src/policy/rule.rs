//! `rate_limit`: what its keys mean together.
//!
//! Not here: the descriptor that it stands on (`descriptor`), the arithmetic's bounds (`limit`).

use std::sync::Arc;

use super::fault::{At, FaultKind};
use super::language as words;
use super::language::Key;
use super::limit::{Algorithm, Misfit, Terms, stable_hash};
use super::reader::{Fields, Got, Reader, Reported};
use super::spec::LimitSpec;
use crate::domain::{Charge, OnStoreFailure, Rate, Unit};

/// What a rule takes from where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'a> {
    /// The domain's name.
    pub(super) domain: &'a str,
    /// The domain's answer when the store cannot be asked.
    pub(super) on_store_failure: OnStoreFailure,
}

/// What a `rate_limit` says.
#[derive(Debug)]
pub(super) struct RateLimit {
    pub(super) unlimited: bool,
    pub(super) name: Option<Box<str>>,
    pub(super) replaces: Box<[Box<str>]>,
    pub(super) limit: Option<LimitSpec>,
}

/// Keys that say how something is counted, and so have no meaning beside `unlimited`.
const COUNTING_KEYS: [Key; 6] = [
    words::UNIT_MULTIPLIER,
    words::ALGORITHM,
    words::BURST,
    words::COST,
    words::CHARGE,
    words::RULE_FAILURE,
];

/// Reads a `rate_limit`. `trail` is the identity of its path: key and value of each level.
pub(super) fn read<'d>(
    reader: &mut Reader<'d>,
    fields: &Fields<'d>,
    ground: Ground<'_>,
    trail: &[String],
) -> Result<RateLimit, Reported> {
    let name = reader.text(fields, &words::NAME);
    let own_name = name.as_ref().ok().and_then(Option::as_deref).unwrap_or_default().to_owned();
    let replaces = replaces(reader, fields, &own_name);
    let unlimited = reader.truth(fields, &words::UNLIMITED);
    let limit = match unlimited {
        Ok(true) => unlimited_alone(reader, fields).map(|()| None),
        Ok(false) => limit(reader, fields, ground, trail, &own_name).map(Some),
        Err(reported) => Err(reported),
    };
    name?;
    Ok(RateLimit {
        unlimited: unlimited?,
        name: (!own_name.is_empty()).then(|| own_name.into()),
        replaces: replaces?,
        limit: limit?,
    })
}

fn replaces<'d>(
    reader: &mut Reader<'d>,
    fields: &Fields<'d>,
    own_name: &str,
) -> Result<Box<[Box<str>]>, Reported> {
    let (mut names, mut reported) = (Vec::new(), None);
    reader.each(fields, &words::REPLACES, |reader, _, entry| {
        let fault = match reader.text(entry, &words::REPLACED_NAME) {
            Err(fault) => fault,
            Ok(Some(name)) if !name.is_empty() && name == own_name => {
                let message = "a limit cannot replace itself; name another one".to_owned();
                reader.note_at(&words::REPLACED_NAME, FaultKind::Conflict, message)
            }
            Ok(Some(name)) if !name.is_empty() => return names.push(name.into_boxed_str()),
            Ok(_) => {
                let message = "an entry of `replaces` needs `name: LIMIT`".to_owned();
                reader.note(At::Value, FaultKind::Missing, message)
            }
        };
        reported = Some(fault);
    })?;
    reported.map_or(Ok(names.into()), Err)
}

/// Beside `unlimited` nothing may say how to count. A unit that is no unit is let pass, as
/// envoyproxy/ratelimit does, with a warning.
fn unlimited_alone<'d>(reader: &mut Reader<'d>, fields: &Fields<'d>) -> Result<(), Reported> {
    let mut reported = Ok(());
    if let Some(written) = reader.text(fields, &words::UNIT)? {
        if unit_of(&written).is_some() {
            let message = "`unlimited` and `unit` exclude each other; remove one of the two";
            reported = Err(reader.note_at(&words::UNIT, FaultKind::Conflict, message.to_owned()));
        } else if !written.is_empty() {
            let message = "beside `unlimited` the unit has no effect; remove it".to_owned();
            reader.note_at(&words::UNIT, FaultKind::NeverMatches, message);
        }
    }
    for key in COUNTING_KEYS.iter().filter(|key| fields.has(key)) {
        let message = format!("`{}` has no meaning beside `unlimited`; remove it", key.name);
        reported = Err(reader.note_at(key, FaultKind::Conflict, message));
    }
    reported
}

fn limit<'d>(
    reader: &mut Reader<'d>,
    fields: &Fields<'d>,
    ground: Ground<'_>,
    trail: &[String],
    name: &str,
) -> Result<LimitSpec, Reported> {
    let unit = match reader.word(fields, &words::UNIT) {
        Ok(Some(word)) => Ok(unit_of(word)),
        Ok(None) => {
            let message = "a limit needs `unit`, one of: second, minute, hour, day, week, month, \
                           year; or `unlimited: true`";
            Err(reader.note(At::Key, FaultKind::Missing, message.to_owned()))
        }
        Err(reported) => Err(reported),
    };
    let multiplier = reader.number(fields, &words::UNIT_MULTIPLIER);
    let requests = reader.number(fields, &words::REQUESTS_PER_UNIT);
    if requests == Ok(None) {
        let message = "without `requests_per_unit` this limit refuses everything; write \
                       `requests_per_unit: 0` if that is meant";
        reader.note(At::Key, FaultKind::DeniesAll, message.to_owned());
    }
    let algorithm = reader.word(fields, &words::ALGORITHM);
    let burst = reader.number(fields, &words::BURST);
    let cost = reader.number(fields, &words::COST);
    let charge = reader.word(fields, &words::CHARGE);
    let failure = on_store_failure(reader, fields, &words::RULE_FAILURE);
    let wire_number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let terms = Terms {
        rate: Rate {
            unit: unit?,
            requests_per_unit: wire_number(requests?.unwrap_or(0)),
            unit_multiplier: wire_number(multiplier?.unwrap_or(1)),
        },
        algorithm: match algorithm? {
            Some("token_bucket") => Algorithm::TokenBucket,
            _ => Algorithm::default(),
        },
        burst: burst?,
        cost: cost?.unwrap_or(1),
        charge: if charge? == Some("always") { Charge::Always } else { Charge::Admitted },
        on_store_failure: failure?.unwrap_or(ground.on_store_failure),
    };
    let window = terms.rate.window().0.to_be_bytes();
    let mut identity = vec![ground.domain.as_bytes(), name.as_bytes(), window.as_slice()];
    identity.extend(trail.iter().map(String::as_bytes));
    match terms.limit(stable_hash(&identity)) {
        Ok(limit) => Ok(LimitSpec {
            name: (!name.is_empty()).then(|| name.into()),
            in_list: false,
            per: None,
            limit: Arc::new(limit),
            cost: terms.cost,
        }),
        Err(misfit) => Err(report(reader, fields, misfit)),
    }
}

/// Notes a misfit at the key that has to change.
fn report<'d>(reader: &mut Reader<'d>, fields: &Fields<'d>, misfit: Misfit) -> Reported {
    let (key, kind) = match misfit {
        Misfit::WindowTooLong { .. } => (words::UNIT_MULTIPLIER, FaultKind::OutOfRange),
        Misfit::BurstOnWindow | Misfit::BurstBesideZero => (words::BURST, FaultKind::Conflict),
        Misfit::BurstTooLarge { .. } => (words::BURST, FaultKind::OutOfRange),
        Misfit::RateTooLargeForBurst { .. } => (words::REQUESTS_PER_UNIT, FaultKind::OutOfRange),
        Misfit::CostAboveCapacity { .. } => (words::COST, FaultKind::OutOfRange),
    };
    if fields.has(&key) {
        reader.note_at(&key, kind, misfit.to_string())
    } else {
        reader.note(At::Key, kind, misfit.to_string())
    }
}

/// Reads `on_store_failure`, a rule's or a domain's.
pub(super) fn on_store_failure<'d>(
    reader: &mut Reader<'d>,
    fields: &Fields<'d>,
    key: &Key,
) -> Got<OnStoreFailure> {
    let word = reader.word(fields, key)?;
    Ok(word.map(|word| match word {
        "allow" => OnStoreFailure::Allow,
        "deny" => OnStoreFailure::Deny,
        "error" => OnStoreFailure::Error,
        _ => OnStoreFailure::Local,
    }))
}

fn unit_of(word: &str) -> Option<Unit> {
    const UNITS: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];
    UNITS.into_iter().find(|unit| unit.word().eq_ignore_ascii_case(word))
}
