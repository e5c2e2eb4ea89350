//! Calls: descriptors, and the hits that they cost.

use std::time::Duration;

use bytes::Bytes;

use crate::decision::Failure;
use crate::messages::{
    Entry, RateLimitDescriptor, RateLimitRequest, ReserveRequest, Seconds, UInt64Value,
};

/// Maximum length of a value in bytes. A longer value is cut there: values with the same start then
/// share a counter. Dropping it or failing the call would let its sender escape the limit.
pub const VALUE_BYTES_MAX: usize = 4_096;

/// Key of the entry that names the holder of a concurrency slot.
const SLOT_KEY: &[u8] = b"tidegate.slot";

/// One decision: all descriptors are decided together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) hits: u32,
}

impl Call {
    /// A call that costs one hit.
    pub fn new(descriptors: impl IntoIterator<Item = Descriptor>) -> Call {
        Call { descriptors: descriptors.into_iter().collect(), hits: 1 }
    }

    /// Sets the hits of all descriptors that do not name their own; 0 means 1.
    #[must_use]
    pub fn hits(mut self, hits: u32) -> Call {
        self.hits = hits;
        self
    }

    /// The descriptors.
    pub fn descriptors(&self) -> &[Descriptor] {
        &self.descriptors
    }

    /// A descriptor without entries, which servers would let pass without a word.
    pub(crate) fn mistake(&self) -> Option<Failure> {
        let index = self.descriptors.iter().position(|it| it.entries.is_empty())?;
        let message = format!("descriptors[{index}].entries: must not be empty");
        Some(Failure::Status(tonic::Code::InvalidArgument, message))
    }

    /// What a reservation must not have.
    pub(crate) fn reservation_mistake(&self) -> Option<Failure> {
        let wrong = |it: &Descriptor| it.hits.is_some() || it.hold;
        let Some(index) = self.descriptors.iter().position(wrong) else {
            return self.mistake();
        };
        let message = format!("descriptors[{index}]: must not have hits or hold in a reservation");
        Some(Failure::Status(tonic::Code::InvalidArgument, message))
    }

    pub(crate) fn holds_slots(&self) -> bool {
        self.descriptors.iter().any(|descriptor| descriptor.hold)
    }

    /// The message that asks for a decision. `holder` names the caller in descriptors that hold slots.
    pub(crate) fn check_message(&self, domain: &str, holder: &Bytes) -> RateLimitRequest {
        let descriptors = self.descriptors.iter().map(|it| it.message(holder)).collect();
        RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: self.hits }
    }

    /// The message that releases the slots of `holder`.
    pub(crate) fn release_message(&self, domain: &str, holder: &Bytes) -> RateLimitRequest {
        let held = self.descriptors.iter().filter(|descriptor| descriptor.hold);
        let negative = held.map(|it| it.negative(1, holder)).collect();
        RateLimitRequest { domain: domain.to_owned(), descriptors: negative, hits_addend: 0 }
    }

    /// The message that refunds what the call charged. Slots are released, not refunded.
    pub(crate) fn refund_message(&self, domain: &str) -> RateLimitRequest {
        let hits = u64::from(self.hits.max(1));
        let charged = self.descriptors.iter().filter(|it| !it.hold && it.hits != Some(0));
        let refund = |it: &Descriptor| it.negative(it.hits.unwrap_or(hits), &Bytes::new());
        let descriptors = charged.map(refund).collect();
        RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
    }

    /// The message that holds the amount, or settles it. A ttl of zero is that of the limits.
    pub(crate) fn reserve_message(
        &self,
        domain: &str,
        id: &Bytes,
        amount: u64,
        ttl: Duration,
    ) -> ReserveRequest {
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        ReserveRequest {
            domain: domain.to_owned(),
            descriptors: self.descriptors.iter().map(|it| it.message(&Bytes::new())).collect(),
            amount,
            ttl: (seconds > 0).then_some(Seconds { seconds }),
            id: id.clone(),
        }
    }
}

/// Keys and values by which the policy finds a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    pub(crate) entries: Vec<(Bytes, Bytes)>,
    pub(crate) hits: Option<u64>,
    pub(crate) hold: bool,
}

impl Descriptor {
    /// A descriptor with these entries, in the order of the policy's levels. Values may be any bytes.
    pub fn new<K, V>(entries: impl IntoIterator<Item = (K, V)>) -> Descriptor
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let mut descriptor = Descriptor::default();
        for (key, value) in entries {
            let key = Bytes::copy_from_slice(key.as_ref());
            descriptor.push(key, Bytes::copy_from_slice(value.as_ref()));
        }
        descriptor
    }

    /// Sets the hits of this descriptor. 0 only checks the limit; more than 0 is a bill, which a policy
    /// with `charge: billed` counts even beyond the limit.
    #[must_use]
    pub fn hits(mut self, hits: u64) -> Descriptor {
        self.hits = Some(hits);
        self
    }

    /// Takes slots of a concurrency limit: [`crate::Client::hold`] and [`crate::RateLimitLayer`] release
    /// them.
    #[must_use]
    pub fn hold(mut self) -> Descriptor {
        self.hold = true;
        self
    }

    /// Keys and values.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    pub(crate) fn push(&mut self, key: Bytes, mut value: Bytes) {
        value.truncate(VALUE_BYTES_MAX);
        self.entries.push((key, value));
    }

    fn message(&self, holder: &Bytes) -> RateLimitDescriptor {
        let entry =
            |(key, value): &(Bytes, Bytes)| Entry { key: key.clone(), value: value.clone() };
        let mut entries: Vec<Entry> = self.entries.iter().map(entry).collect();
        if self.hold {
            entries.push(Entry { key: Bytes::from_static(SLOT_KEY), value: holder.clone() });
        }
        let hits_addend = self.hits.map(|value| UInt64Value { value });
        RateLimitDescriptor { entries, hits_addend, is_negative_hits: false }
    }

    fn negative(&self, hits: u64, holder: &Bytes) -> RateLimitDescriptor {
        RateLimitDescriptor {
            hits_addend: Some(UInt64Value { value: hits }),
            is_negative_hits: true,
            ..self.message(holder)
        }
    }
}
