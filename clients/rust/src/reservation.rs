//! Reservations: hits that are held before the work, and settled after it.

use std::time::Duration;

use bytes::Bytes;

use crate::call::Call;
use crate::client::{Client, RESERVE};
use crate::decision::{Decision, Failure};
use crate::messages::ReserveRequest;

/// What happens to a hold that was not settled when its [`Reservation`] is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnsettled {
    /// The estimate is charged, because what was used is unknown.
    #[default]
    ChargeEstimate,
    /// The hold ends, and nothing is charged.
    Release,
    /// The hold ends with its ttl, and nothing is charged.
    Keep,
}

/// Upper estimate of the hits that the work of a reservation will use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    hits: u64,
    ttl: Duration,
    on_unsettled: OnUnsettled,
}

impl Estimate {
    /// Hits to hold. If they are not settled, they are charged.
    pub fn new(hits: u64) -> Estimate {
        Estimate { hits, ttl: Duration::ZERO, on_unsettled: OnUnsettled::default() }
    }

    /// Sets the time after which the hold ends, rounded up to seconds. It can only shorten that of the limits,
    /// which is the default; zero means the default, too.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Estimate {
        self.ttl = ttl;
        self
    }

    /// Sets what happens to a hold that was not settled when its reservation is dropped.
    #[must_use]
    pub fn on_unsettled(mut self, choice: OnUnsettled) -> Estimate {
        self.on_unsettled = choice;
        self
    }
}

impl From<u64> for Estimate {
    fn from(hits: u64) -> Estimate {
        Estimate::new(hits)
    }
}

/// Hits that are held while the work runs.
///
/// When it is dropped without [`Reservation::settle`], it charges the estimate in the background, or what
/// [`OnUnsettled`] says. If the client's runtime has ended, it charges nothing, and the hold ends with its ttl.
#[derive(Debug)]
pub struct Reservation {
    client: Client,
    call: Call,
    estimate: Estimate,
    /// Made by Tidegate; empty while nothing is held.
    id: Bytes,
    /// What is charged if this is dropped now; `None` keeps the hold.
    unsettled: Option<u64>,
    decision: Decision,
}

impl Client {
    /// Holds hits before the work, if they fit. [`Reservation::settle`] charges afterwards what the work used. The
    /// limits need `reserve` in the policy; other servers than Tidegate do not have it.
    ///
    /// The descriptors of the call have neither hits nor a hold of slots, and its own hits do not matter. The call is
    /// not repeated: if there was no answer, or if this future is dropped, Tidegate may hold the hits until their ttl.
    pub async fn reserve(&self, call: &Call, estimate: impl Into<Estimate>) -> Reservation {
        let estimate = estimate.into();
        let mut reservation = Reservation {
            client: self.clone(),
            call: call.clone(),
            estimate,
            id: Bytes::new(),
            unsettled: None,
            decision: Decision::allowed(),
        };
        if !call.descriptors.is_empty() {
            reservation.decision = reservation.ask(estimate.hits).await;
        }
        reservation
    }
}

impl Reservation {
    /// Whether the work may begin. Nothing is held if it was rejected, if there was no decision, or if no limit of the
    /// call has `reserve`; `settle`, `release`, and `renew` then do nothing.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Charges what was used, even beyond the limit, and ends the hold. Only the first call of `settle` or `release`
    /// does something.
    ///
    /// # Errors
    ///
    /// Returns why Tidegate may not have charged it within the timeout. It is then sent once more, in the background,
    /// because a settle that arrives twice charges once.
    pub async fn settle(&mut self, used: u64) -> Result<(), Failure> {
        if self.id.is_empty() {
            return Ok(());
        }
        // If this future is dropped, dropping the reservation sends it again.
        self.unsettled = Some(used);
        let sent = self.client.settle(self.message(used, Duration::ZERO)).await;
        if sent.is_err() {
            self.settle_in_background();
        }
        self.id.clear();
        sent
    }

    /// Ends the hold without a charge. Otherwise like [`Reservation::settle`].
    ///
    /// # Errors
    ///
    /// Returns why Tidegate may not have ended it.
    pub async fn release(&mut self) -> Result<(), Failure> {
        self.settle(0).await
    }

    /// Replaces the estimate, and begins the hold's time anew. If the hits do not fit, the decision does not pass, and the
    /// hold stays as it was.
    pub async fn renew(&mut self, hits: u64) -> Decision {
        if self.id.is_empty() {
            return self.decision.clone();
        }
        self.ask(hits).await
    }

    async fn ask(&mut self, hits: u64) -> Decision {
        let decision = match self.call.reservation_mistake() {
            Some(mistake) => self.client.decide(Err(mistake), RESERVE),
            None => {
                let message = self.message(hits, self.estimate.ttl);
                self.client.reserve_as(message, &mut self.id).await
            }
        };
        if decision.passes() {
            self.unsettled = match self.estimate.on_unsettled {
                OnUnsettled::ChargeEstimate => Some(hits),
                OnUnsettled::Release => Some(0),
                OnUnsettled::Keep => None,
            };
        }
        decision
    }

    fn message(&self, amount: u64, ttl: Duration) -> ReserveRequest {
        self.call.reserve_message(self.client.domain(), &self.id, amount, ttl)
    }

    fn settle_in_background(&self) {
        if let (false, Some(used)) = (self.id.is_empty(), self.unsettled) {
            self.client.settle_in_background(self.message(used, Duration::ZERO));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.settle_in_background();
    }
}
