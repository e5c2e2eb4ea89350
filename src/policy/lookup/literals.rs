//! Search for the literal parts of patterns in a value: at one end of the value, or anywhere in it.
//!
//! Not here: patterns and whether a value matches one (`patterns`).

use std::collections::HashMap;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, PatternID};

/// A set of distinct, non-empty literals, numbered from 0.
#[derive(Debug)]
pub(crate) struct LiteralSet {
    automaton: NFA,
    start: StateID,
    anchored: Anchored,
}

/// An occurrence of a literal in a value. Ordered by literal, then by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Occurrence {
    pub literal: u32,
    /// Position of the literal's first byte; 32 bits suffice for the largest message.
    pub start: u32,
}

impl LiteralSet {
    /// Builds the automaton; `None` beyond 2^31 states, which a policy of 64 MiB does not reach.
    pub(crate) fn new(numbering: Numbering, anchored: Anchored) -> Option<LiteralSet> {
        let mut literals: Vec<(Vec<u8>, u32)> = numbering.ids.into_iter().collect();
        literals.sort_unstable_by_key(|(_, id)| *id);
        let texts = literals.iter().map(|(text, _)| text);
        let automaton = NFA::builder().prefilter(false).build(texts).ok()?;
        let start = automaton.start_state(anchored).ok()?;
        Some(LiteralSet { automaton, start, anchored })
    }

    /// Calls `on` for every literal that is a prefix of the bytes, shortest first. Reads no further
    /// than the longest literal.
    pub(crate) fn walk<'b>(&self, bytes: impl Iterator<Item = &'b u8>, mut on: impl FnMut(usize)) {
        let mut state = self.start;
        for (length, byte) in (1..).zip(bytes) {
            state = self.automaton.next_state(self.anchored, state, *byte);
            if self.automaton.is_dead(state) {
                return;
            }
            // A state also reports literals that end here without being a prefix.
            let whole = |literal: &PatternID| self.automaton.pattern_len(*literal) == length;
            if let Some(literal) = self.ending_at(state).find(whole) {
                on(literal.as_usize());
            }
        }
    }

    /// Calls `on` for every occurrence of every literal in the value, ordered by its end. One pass.
    pub(crate) fn scan(&self, value: &[u8], mut on: impl FnMut(Occurrence)) {
        let mut state = self.start;
        for (end, byte) in (1..).zip(value) {
            state = self.automaton.next_state(self.anchored, state, *byte);
            for literal in self.ending_at(state) {
                let start = (end - self.automaton.pattern_len(literal)) as u32;
                on(Occurrence { literal: literal.as_u32(), start });
            }
        }
    }

    fn ending_at(&self, state: StateID) -> impl Iterator<Item = PatternID> {
        let some = self.automaton.is_special(state) && self.automaton.is_match(state);
        let count = if some { self.automaton.match_len(state) } else { 0 };
        (0..count).map(move |at| self.automaton.match_pattern(state, at))
    }
}

/// Assigns numbers to distinct literals in order of first use.
#[derive(Debug, Default)]
pub(crate) struct Numbering {
    ids: HashMap<Vec<u8>, u32>,
}

impl Numbering {
    /// Returns the number of a literal, assigning one if it is new.
    pub(crate) fn id(&mut self, literal: &[u8]) -> u32 {
        let next = self.ids.len() as u32;
        match self.ids.get(literal) {
            Some(id) => *id,
            None => *self.ids.entry(literal.to_vec()).or_insert(next),
        }
    }

    /// Returns the number of distinct literals.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}
