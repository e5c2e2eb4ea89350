//! Descriptors that users of the library pass to a call, and validation of their bounds.
//!
//! Not here: decoding messages (`wire`), matching (`policy`).

use smallvec::SmallVec;

use super::error::CheckError;
use crate::domain;
use crate::domain::{Bounds, Entry, Hits};

/// Descriptors of one call, converted to the type that the decision engine uses. Up to four are
/// stored without a heap allocation, because few calls have more.
pub(super) type Descriptors<'a> = SmallVec<[domain::Descriptor<'a>; 4]>;

/// Descriptor of a call: a list of keys and values that is matched against the rules of the policy,
/// and the number of hits to charge.
///
/// A descriptor must match the full path of a rule: the first entry must match a rule at the top
/// level of `descriptors`, the second entry a child of that rule, and so on. If the descriptor
/// matches no rule, no limit applies.
///
/// Keys and values may contain any bytes, for example those of a request header.
///
/// ```
/// use tidegate::Descriptor;
///
/// let user = String::from("alice");
/// let by_user = Descriptor::new([("user", user.as_str())]);
/// let by_path = Descriptor::new([("user", user.as_str()), ("path", "/reports")]).hits(3);
/// ```
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// Entries of the descriptor. A `SmallVec` would be invariant in `'a`, so a holder would have
    /// to live as long as the entries. Allocating a `Vec` takes 20 ns, and a decision takes
    /// thousands of nanoseconds.
    entries: Vec<Entry<'a>>,
    hits: Option<u64>,
    holder: Option<&'a [u8]>,
}

impl<'a> Descriptor<'a> {
    /// Creates a descriptor that charges one hit. A descriptor may have at most 160 entries, and no
    /// key may be empty.
    pub fn new<K, V>(entries: impl IntoIterator<Item = (&'a K, &'a V)>) -> Descriptor<'a>
    where
        K: AsRef<[u8]> + ?Sized + 'a,
        V: AsRef<[u8]> + ?Sized + 'a,
    {
        let entry =
            |(key, value): (&'a K, &'a V)| Entry { key: key.as_ref(), value: value.as_ref() };
        Descriptor { entries: entries.into_iter().map(entry).collect(), hits: None, holder: None }
    }

    /// Sets the number of hits to charge, which is 1 by default. Rules multiply it by their `cost`.
    ///
    /// - With 0 hits, the call only checks whether one more request would pass. It charges
    ///   nothing.
    /// - With more hits than the whole limit, the call is rejected without a `retry_after`,
    ///   because waiting does not help.
    /// - Under `charge: billed`, a nonzero number of hits that is set here counts as usage that has
    ///   already happened, and is charged even beyond the limit.
    #[must_use]
    pub fn hits(self, hits: u64) -> Descriptor<'a> {
        Descriptor { hits: Some(hits), ..self }
    }

    /// Sets the holder of the concurrency slots that the call acquires or releases, such as the id
    /// of a job. The holder may contain any bytes; an empty holder is the same as none. Limits of
    /// other algorithms ignore the holder.
    ///
    /// Without a holder, [`Decision::holder`](crate::Decision::holder) returns a generated one.
    #[must_use]
    pub fn holder(self, holder: &'a (impl AsRef<[u8]> + ?Sized)) -> Descriptor<'a> {
        let holder = Some(holder.as_ref()).filter(|holder| !holder.is_empty());
        Descriptor { holder, ..self }
    }

    /// Returns the total size of all keys, values, and the holder, in bytes.
    fn total_bytes(&self) -> usize {
        let entries = self.entries.iter().map(|entry| entry.key.len() + entry.value.len());
        entries.sum::<usize>() + self.holder.map_or(0, <[u8]>::len)
    }
}

/// Checks the bounds of a call, and converts its descriptors to the type that the decision engine
/// uses. `refund` is true if the call refunds its hits.
///
/// # Errors
///
/// Returns a [`CheckError`] for the first bound that the call exceeds.
pub(super) fn to_domain<'d>(
    domain: &str,
    descriptors: &'d [Descriptor<'_>],
    refund: bool,
    bounds: &Bounds,
) -> Result<Descriptors<'d>, CheckError> {
    let invalid = |reason: String| Err(CheckError::Invalid(reason));
    if domain.is_empty() {
        return invalid("the domain must not be empty".to_owned());
    }
    if descriptors.is_empty() {
        return invalid("a call needs at least one descriptor".to_owned());
    }
    let Bounds { descriptors_max, entries_max, message_bytes_max, .. } = *bounds;
    if descriptors.len() > descriptors_max {
        return invalid(format!("at most {descriptors_max} descriptors in one call"));
    }
    let mut bytes = domain.len();
    for (at, descriptor) in descriptors.iter().enumerate() {
        if descriptor.entries.len() > entries_max {
            return invalid(format!("descriptors[{at}]: at most {entries_max} entries"));
        }
        if descriptor.entries.iter().any(|entry| entry.key.is_empty()) {
            return invalid(format!("descriptors[{at}]: a key must not be empty"));
        }
        bytes = bytes.saturating_add(descriptor.total_bytes());
    }
    if bytes > message_bytes_max {
        return invalid(format!(
            "the descriptors of a call may have at most {message_bytes_max} bytes together"
        ));
    }
    let convert = |descriptor: &'d Descriptor<'_>| domain::Descriptor {
        has_hits_addend: descriptor.hits.is_some(),
        refund,
        holder: descriptor.holder,
        ..domain::Descriptor::new(&descriptor.entries, Hits(descriptor.hits.unwrap_or(1)))
    };
    Ok(descriptors.iter().map(convert).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ann() -> Descriptor<'static> {
        Descriptor::new([("user", "ann")])
    }

    #[test]
    fn the_domain_keys_values_and_holders_count_towards_the_size_of_a_call() {
        let descriptors = [ann().holder("job"), Descriptor::new([("ip", "1")])];
        let within = |message_bytes_max| {
            let bounds = Bounds { message_bytes_max, ..Bounds::DEFAULT };
            to_domain("api", &descriptors, false, &bounds).map(|descriptors| descriptors.len())
        };
        let size = "api".len() + "user".len() + "ann".len() + "job".len() + "ip".len() + "1".len();
        assert_eq!(within(size), Ok(2));
        let text =
            format!("the descriptors of a call may have at most {} bytes together", size - 1);
        assert_eq!(within(size - 1), Err(CheckError::Invalid(text)));
    }

    #[test]
    fn only_hits_that_are_set_make_a_descriptor_a_bill() {
        let descriptors = [ann(), ann().hits(1), ann().hits(0)];
        let converted = to_domain("api", &descriptors, true, &Bounds::DEFAULT).unwrap();
        let hits: Vec<_> = converted
            .iter()
            .map(|descriptor| (descriptor.hits, descriptor.has_hits_addend, descriptor.refund))
            .collect();
        assert_eq!(hits, [(Hits(1), false, true), (Hits(1), true, true), (Hits(0), true, true)]);
    }
}
