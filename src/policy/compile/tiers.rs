//! Reads and validates `tiers`: consumer classes that divide one bucket.
//!
//! The methods `shared` and `separate` are from Seleznev, "Development of API rate limiting
//! methods based on consumer classes" (2025, DOI 10.26102/2310-6018/2025.48.1.013). The method
//! `hybrid` combines them; the paper names hybrids as future work.
//!
//! Not here: the limit of each class (`class_limits`), the arithmetic (`algorithm`), selecting the
//! class of a request (`spec::LimitSpec::select_class`).

use std::sync::Arc;

use super::class_limits::{DividedBucket, HUNDRED_PERCENT, RawClass, compile_class_limits};
use super::limit_context::{LimitContext, report_bounds_error};
use super::limit_parameters::RawLimit;
use crate::domain::{Algorithm, Bucket, Hits, Limit};
use crate::policy::compiled_policy::{CLASSES_MAX, ClassSpec, TierMethod, TiersSpec};
use crate::policy::diagnostic::{DiagnosticKind, Target, quoted};
use crate::policy::syntax::keywords::{self, Key, Level};
use crate::policy::syntax::reader::{ErrorReported, ReadResult, Reader};
use crate::policy::words::AlgorithmName;

/// Value of the key `default` that leaves unlisted values unlimited.
const NO_CLASS: &str = "none";

/// Reads `tiers`. `whole` is the limit without classes. `identity` contains the parts that are
/// hashed to form the `limit_id` of that limit.
pub(crate) fn read(
    reader: &mut Reader<'_>,
    context: LimitContext<'_>,
    raw: &RawLimit,
    whole: &Limit,
    identity: &mut Vec<Vec<u8>>,
) -> ReadResult<TiersSpec> {
    if !reader.is_set(&keywords::TIERS) {
        return Ok(None);
    }
    let bucket = check_placement(reader, context, raw, whole)?;
    let whole = DividedBucket { raw_limit: raw, bucket };
    let read = reader.read_map(&keywords::TIERS, |reader| {
        let method = read_method(reader);
        let classes = read_classes(reader);
        let (method, classes) = (method?, classes?);
        check_classes(reader, method, &classes, &whole)?;
        let default = read_default_class(reader, &classes, bucket.burst.0)?;
        Ok((method, classes, default))
    })?;
    let Some((method, classes, default)) = read else { return Ok(None) };
    let limits = compile_class_limits(method, &classes, &whole, identity);
    let limits = limits.map_err(|error| report_bounds_error(reader, error))?;
    let classes = classes
        .into_iter()
        .zip(limits)
        .map(|(class, limit)| ClassSpec {
            name: class.name.into(),
            bill_limit: limit.bill_limit().map(Arc::new),
            limit: Arc::new(limit),
        })
        .collect();
    Ok(Some(TiersSpec { method, classes, default }))
}

/// Checks that a limit can have `tiers`, and returns the bucket to divide among the classes. The
/// limit must be a token bucket with nonzero capacity, its descriptor must have no `value`, and the
/// descriptor's key must not be in `per`; otherwise, reports an error.
fn check_placement<'l>(
    reader: &mut Reader<'_>,
    context: LimitContext<'_>,
    raw: &RawLimit,
    whole: &'l Limit,
) -> Result<&'l Bucket, ErrorReported> {
    let mut conflict =
        |key: &Key, message: &str| Err(reader.report_key(key, DiagnosticKind::Conflict, message));
    let (key, value) = context.key_and_value();
    if !value.is_empty() {
        let message = "`tiers` cannot be used on a descriptor with `value`, because the value \
                       selects the class; remove `value`";
        return conflict(&keywords::TIERS, message);
    }
    let bucket = match &whole.algorithm {
        Algorithm::Bucket(bucket) if raw.algorithm == AlgorithmName::TokenBucket => bucket,
        _ => {
            let message = "`tiers` can only be used with `algorithm: token_bucket`; write that, or \
                           remove `tiers`";
            return conflict(&keywords::TIERS, message);
        }
    };
    if bucket.burst == Hits::ZERO {
        let message = "`requests_per_unit: 0` leaves classes nothing to divide; remove `tiers`";
        return conflict(&keywords::TIERS, message);
    }
    if reader.read_names(&keywords::PER)?.is_some_and(|per| per.iter().any(|name| name == key)) {
        let message = format!(
            "`per` must not name {}, whose value selects the class: classes share or divide a \
             counter; remove it from `per`",
            quoted(key)
        );
        return Err(reader.report_key(&keywords::PER, DiagnosticKind::Conflict, message));
    }
    Ok(bucket)
}

fn read_method(reader: &mut Reader<'_>) -> Result<TierMethod, ErrorReported> {
    let method = reader.read_word(&keywords::METHOD)?;
    let message = "`tiers` must have `method`, one of: shared, separate, hybrid";
    reader.require(method, Target::Key, message)
}

fn read_classes(reader: &mut Reader<'_>) -> Result<Vec<RawClass>, ErrorReported> {
    let classes = reader.for_each_entry(&keywords::CLASSES, |reader, name, value| {
        reader.in_map(Level::Class, value, |reader| read_class(reader, name))
    })?;
    let message = "`tiers` must have `classes`, with at least one name and its floor or share";
    let classes = classes.filter(|classes| !classes.is_empty());
    let classes = reader.require(classes, Target::Key, message)?;
    if classes.len() > CLASSES_MAX {
        let message = format!("a limit can have at most {CLASSES_MAX} classes; merge some");
        return Err(reader.report_key(&keywords::CLASSES, DiagnosticKind::TooLarge, message));
    }
    Ok(classes)
}

fn read_class(reader: &mut Reader<'_>, name: &str) -> Result<RawClass, ErrorReported> {
    let floor = reader.read_percent(&keywords::FLOOR);
    let share = reader.read_percent(&keywords::SHARE);
    let burst = reader.read_number(&keywords::CLASS_BURST);
    let requests = reader.read_number(&keywords::CLASS_REQUESTS);
    if name == NO_CLASS {
        let message = "a class cannot have the name `none`, which means no class; rename it";
        return Err(reader.report(Target::Key, DiagnosticKind::Conflict, message));
    }
    let (floor, share, burst, requests) = (floor?, share?, burst?, requests?);
    Ok(RawClass { name: name.to_owned(), floor, share, burst, requests })
}

/// Checks the keys of each class, the floors, the totals of all classes, and the charge mode.
/// Reports the first error.
fn check_classes(
    reader: &mut Reader<'_>,
    method: TierMethod,
    classes: &[RawClass],
    whole: &DividedBucket<'_>,
) -> Result<(), ErrorReported> {
    let error = classes
        .iter()
        .find_map(|class| check_class_keys(method, class))
        .or_else(|| check_floors(method, classes))
        .or_else(|| check_totals(classes, whole))
        .or_else(|| {
            let charge = whole.raw_limit.charge;
            let is_debt = whole.raw_limit.has_own_charge && charge.keeps_debt();
            (is_debt && method == TierMethod::Hybrid).then(|| {
                let message = format!(
                    "`charge: {}` cannot be used with `method: hybrid`, which keeps no debt; remove \
                     one of the two",
                    charge.as_str()
                );
                (DiagnosticKind::Conflict, message)
            })
        });
    match error {
        None => Ok(()),
        Some((kind, message)) => Err(reader.report_key(&keywords::CLASSES, kind, message)),
    }
}

/// Kind and message of the diagnostic for a constraint that the classes violate.
type Violation = (DiagnosticKind, String);

/// Returns a violation if a class lacks a key that `method` requires or has a key that `method`
/// does not allow.
fn check_class_keys(method: TierMethod, class: &RawClass) -> Option<Violation> {
    let name = quoted(&class.name);
    let has_size = class.burst.is_some() || class.requests.is_some();
    let has_complete_size = class.burst.is_some() && class.requests.is_some();
    let (kind, message) = match method {
        TierMethod::Shared if class.floor.is_none() => {
            (DiagnosticKind::Missing, format!("class {name} must have `floor`, such as `24%`"))
        }
        TierMethod::Shared if class.share.is_some() || has_size => {
            let says = "with `method: shared`, a class can only have `floor`";
            (DiagnosticKind::Conflict, format!("class {name}: {says}; remove the rest"))
        }
        TierMethod::Separate if class.floor.is_some() => {
            let says = "with `method: separate`, a class cannot have `floor`; remove it";
            (DiagnosticKind::Conflict, format!("class {name}: {says}"))
        }
        TierMethod::Separate if class.share.is_some() == has_size => {
            let says = "must have either `share`, or `burst` and `requests_per_unit`";
            (DiagnosticKind::Missing, format!("class {name} {says}"))
        }
        TierMethod::Separate if has_size && !has_complete_size => {
            let says = "must have both `burst` and `requests_per_unit`";
            (DiagnosticKind::Missing, format!("class {name} {says}"))
        }
        TierMethod::Hybrid if class.share.is_none() => {
            (DiagnosticKind::Missing, format!("class {name} must have `share`, such as `25%`"))
        }
        TierMethod::Hybrid if has_size => {
            let says = "with `method: hybrid`, a class can only have `share` and `floor`; remove \
                        the rest";
            (DiagnosticKind::Conflict, format!("class {name}: {says}"))
        }
        TierMethod::Shared | TierMethod::Separate | TierMethod::Hybrid => return None,
    };
    Some((kind, message))
}

/// Returns a violation if a floor is 100 % or more, or is lower than the floor of the preceding
/// class. In a shared bucket, equal floors are also a violation.
fn check_floors(method: TierMethod, classes: &[RawClass]) -> Option<Violation> {
    let floor = |class: &RawClass| class.floor.unwrap_or(0);
    if let Some(class) = classes.iter().find(|class| u64::from(floor(class)) >= HUNDRED_PERCENT) {
        let message = format!(
            "class {}: `floor` must be at most 99%, not {}%",
            quoted(&class.name),
            floor(class)
        );
        return Some((DiagnosticKind::OutOfRange, message));
    }
    let strictly = method == TierMethod::Shared;
    let out_of_order = classes.windows(2).find(|pair| {
        let (above, below) = (floor(&pair[0]), floor(&pair[1]));
        below < above || (strictly && below == above)
    })?;
    let message = format!(
        "floors must rise from one class to the next, highest priority first: {} has {}%, and \
         {} after it has {}%",
        quoted(&out_of_order[0].name),
        floor(&out_of_order[0]),
        quoted(&out_of_order[1].name),
        floor(&out_of_order[1])
    );
    Some((DiagnosticKind::OutOfRange, message))
}

/// Returns a violation if the classes together exceed the bucket or its rate, or if the share of a
/// class without a floor is less than one hit.
fn check_totals(classes: &[RawClass], whole: &DividedBucket<'_>) -> Option<Violation> {
    let shares: u64 = classes.iter().filter_map(|class| class.share).map(u64::from).sum();
    if shares > HUNDRED_PERCENT {
        let message = format!("the shares must add up to at most 100%, not {shares}%");
        return Some((DiagnosticKind::OutOfRange, message));
    }
    // In hundredths of a hit, so that shares and absolute sizes add up exactly.
    let sum = |of: fn(&RawClass) -> Option<u64>, all: u64| {
        let part = |class: &RawClass| match class.share {
            Some(share) => u128::from(all) * u128::from(share),
            None => u128::from(of(class).unwrap_or(0)) * u128::from(HUNDRED_PERCENT),
        };
        classes.iter().map(part).sum::<u128>()
    };
    let burst = whole.bucket.burst.0;
    let requests = u64::from(whole.raw_limit.rate.requests_per_unit);
    for (name, sum, all) in [
        ("burst", sum(|class| class.burst, burst), burst),
        ("requests_per_unit", sum(|class| class.requests, requests), requests),
    ] {
        if sum > u128::from(all) * u128::from(HUNDRED_PERCENT) {
            let sum = sum.div_ceil(u128::from(HUNDRED_PERCENT));
            let message = format!(
                "the classes' `{name}` must add up to at most {all}, that of the limit, not {sum}"
            );
            return Some((DiagnosticKind::OutOfRange, message));
        }
    }
    let empty = |class: &&RawClass| {
        class.burst.is_none()
            && class.floor.is_none()
            && class.share.is_some_and(|share| burst * u64::from(share) < HUNDRED_PERCENT)
    };
    let class = classes.iter().find(empty)?;
    let least = HUNDRED_PERCENT.div_ceil(burst);
    let message = format!(
        "class {} would get less than one of the {burst} hits; its share must be at least {least}%",
        quoted(&class.name)
    );
    Some((DiagnosticKind::OutOfRange, message))
}

/// Reads `default`. Returns the position of the class for unlisted values, or `None` if the value
/// is `none`. If the key is absent, returns the class with the highest floor; ties go to the
/// smallest share, then to the last class.
fn read_default_class(
    reader: &mut Reader<'_>,
    classes: &[RawClass],
    burst: u64,
) -> ReadResult<usize> {
    let Some(name) = reader.read_string(&keywords::DEFAULT_CLASS)? else {
        let size = |class: &RawClass| match class.share {
            Some(share) => u128::from(burst) * u128::from(share),
            None => u128::from(class.burst.unwrap_or(0)) * u128::from(HUNDRED_PERCENT),
        };
        let lowest = classes.iter().enumerate().max_by_key(|(at, class)| {
            (class.floor.unwrap_or(0), std::cmp::Reverse(size(class)), *at)
        });
        return Ok(lowest.map(|(at, _)| at));
    };
    if name == NO_CLASS {
        return Ok(None);
    }
    match classes.iter().position(|class| class.name == name) {
        Some(at) => Ok(Some(at)),
        None => {
            let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
            let message = format!(
                "`default` must be a class or `none`, not {}; the classes are: {}",
                quoted(&name),
                names.join(", ")
            );
            Err(reader.report_key(&keywords::DEFAULT_CLASS, DiagnosticKind::BadValue, message))
        }
    }
}
