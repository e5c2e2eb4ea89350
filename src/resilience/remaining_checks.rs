//! Selects the checks of a call that the store must still decide after other checks have been
//! answered without the store.
//!
//! Not here: answering checks without the store (`refusal_cache`, `prepaid_hits`,
//! `own_limits`).

use smallvec::SmallVec;

use crate::domain::{Admission, Answer, Answers, Call, Check};

/// Checks of a call that remain to be sent to the store, and the answers to the others.
#[derive(Debug)]
pub(super) struct RemainingChecks<'a> {
    /// One answer per check of the call. A check without an answer has [`Answer::NotAsked`].
    pub(super) known: Vec<Answer>,
    /// Indexes of the remaining checks in the list of all checks of the call.
    pub(super) positions: SmallVec<[usize; 8]>,
    /// Checks to send to the store, each with the role that [`Admission::remaining_role`] returns
    /// for it.
    pub(super) checks: SmallVec<[Check<'a>; 8]>,
}

impl<'a> RemainingChecks<'a> {
    /// Returns the checks whose answer is [`Answer::NotAsked`]. If the known answers already
    /// reject the call, returns only the checks that apply even to a rejected call.
    pub(super) fn new(call: &Call<'a>, known: Vec<Answer>) -> RemainingChecks<'a> {
        let admission = Admission::from_answers(call.checks, &known);
        let is_rejected = admission.is_rejected();
        let positions: SmallVec<[usize; 8]> = (0..call.checks.len())
            .filter(|at| known[*at] == Answer::NotAsked)
            .filter(|at| !is_rejected || call.checks[*at].applies_when_rejected(call.accounting))
            .collect();
        let rest = |at: &usize| {
            let check = call.checks[*at];
            Check { role: admission.remaining_role(check.role), ..check }
        };
        let checks = positions.iter().map(rest).collect();
        RemainingChecks { known, positions, checks }
    }

    /// Adds the store's answers to the remaining checks to the known answers. Returns the answers to
    /// the whole call.
    pub(super) fn complete(mut self, received: Answers) -> Answers {
        for (at, answer) in self.positions.iter().zip(received.each) {
            self.known[*at] = answer;
        }
        Answers { each: self.known, ..received }
    }
}
