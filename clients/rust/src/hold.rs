//! Slots of concurrency limits, released when their guard is dropped.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use bytes::Bytes;

use crate::call::Call;
use crate::client::Client;

/// Slots that a request holds. They are released in the background when this is dropped, wherever that
/// happens. Slots that are never released, for example because the process was killed, become free when
/// the policy's `lease` ends.
#[derive(Debug)]
pub struct Hold {
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    client: Client,
    call: Call,
    holder: Bytes,
}

impl Hold {
    pub(crate) fn new(client: Client, call: Call, holder: Bytes) -> Hold {
        Hold { held: Some(Held { client, call, holder }) }
    }

    /// Releases nothing, because no slot was taken.
    pub(crate) fn forget(mut self) {
        self.held = None;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.client.release_in_background(&held.call, &held.holder);
        }
    }
}

/// Returns a unique name of a holder: 128 random bits.
pub(crate) fn new_holder() -> Bytes {
    Bytes::from(format!("{:016x}{:016x}", random(), random()))
}

/// Random bits without a crate for them: each `RandomState` has another key for its hash.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn holders_differ() {
        let holders: HashSet<Bytes> = (0..10_000).map(|_| new_holder()).collect();
        assert_eq!(holders.len(), 10_000);
        assert!(holders.iter().all(|holder| holder.len() == 32));
    }
}
