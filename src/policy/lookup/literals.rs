//! Finds the literal pieces of patterns in a value: those that an end of the value consists of, and
//! those anywhere in it.
//!
//! Not here: what a pattern is and whether a value fits it (`patterns`).

use std::collections::HashMap;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, PatternID};

/// A set of different literal pieces, none of them empty, numbered from 0.
#[derive(Debug)]
pub(crate) struct Pieces {
    automaton: NFA,
    start: StateID,
    anchored: Anchored,
}

/// Where a piece occurs in a value. Ordered by piece and then by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Occurrence {
    pub piece: u32,
    /// The piece's first byte. 32 bits: no message is so long that they do not do.
    pub start: u32,
}

impl Pieces {
    /// `None` if the automaton cannot be built, that is with more than 2^31 states, which a policy
    /// of 64 MiB does not reach.
    pub(crate) fn new(numbering: Numbering, anchored: Anchored) -> Option<Pieces> {
        let mut pieces: Vec<(Vec<u8>, u32)> = numbering.ids.into_iter().collect();
        pieces.sort_unstable_by_key(|(_, id)| *id);
        let texts = pieces.iter().map(|(text, _)| text);
        let automaton = NFA::builder().prefilter(false).build(texts).ok()?;
        let start = automaton.start_state(anchored).ok()?;
        Some(Pieces { automaton, start, anchored })
    }

    /// Tells `on` every piece that the bytes begin with, shortest first. Reads no further than the
    /// longest piece.
    pub(crate) fn walk<'b>(&self, bytes: impl Iterator<Item = &'b u8>, mut on: impl FnMut(usize)) {
        let mut state = self.start;
        for (length, byte) in (1..).zip(bytes) {
            state = self.automaton.next_state(self.anchored, state, *byte);
            if self.automaton.is_dead(state) {
                return;
            }
            // A state also reports the pieces that merely end here.
            let whole = |piece: &PatternID| self.automaton.pattern_len(*piece) == length;
            if let Some(piece) = self.ending_at(state).find(whole) {
                on(piece.as_usize());
            }
        }
    }

    /// Tells `on` every occurrence of every piece anywhere in the value, in the order of their
    /// ends. One pass.
    pub(crate) fn scan(&self, value: &[u8], mut on: impl FnMut(Occurrence)) {
        let mut state = self.start;
        for (end, byte) in (1..).zip(value) {
            state = self.automaton.next_state(self.anchored, state, *byte);
            for piece in self.ending_at(state) {
                let start = (end - self.automaton.pattern_len(piece)) as u32;
                on(Occurrence { piece: piece.as_u32(), start });
            }
        }
    }

    fn ending_at(&self, state: StateID) -> impl Iterator<Item = PatternID> {
        let some = self.automaton.is_special(state) && self.automaton.is_match(state);
        let count = if some { self.automaton.match_len(state) } else { 0 };
        (0..count).map(move |at| self.automaton.match_pattern(state, at))
    }
}

/// Numbers different pieces in the order in which they come.
#[derive(Debug, Default)]
pub(crate) struct Numbering {
    ids: HashMap<Vec<u8>, u32>,
}

impl Numbering {
    /// The piece's number, a new one if it is new.
    pub(crate) fn id(&mut self, piece: &[u8]) -> u32 {
        let next = self.ids.len() as u32;
        match self.ids.get(piece) {
            Some(id) => *id,
            None => *self.ids.entry(piece.to_vec()).or_insert(next),
        }
    }

    /// How many different pieces there are.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}
