//! Aho-Corasick search for the literals of patterns: at the start of a value, or anywhere in it.
//!
//! Not here: splitting patterns into literals and matching whole patterns (`patterns`).

use std::collections::HashMap;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, PatternID};

/// Automaton that finds a set of distinct, non-empty literals. Their ids are consecutive, from 0.
#[derive(Debug)]
pub(crate) struct LiteralSet {
    automaton: NFA,
    start_state: StateID,
    anchored: Anchored,
}

/// Occurrence of a literal in a value. Occurrences are ordered by literal, then by offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Occurrence {
    pub literal: u32,
    /// Byte offset of the literal in the value. 32 bits suffice: messages are at most a few MiB.
    pub start: u32,
}

impl LiteralSet {
    /// Builds the automaton. Returns `None` if it would need more than 2^31 states. Even a policy
    /// of 64 MiB needs fewer states.
    pub(crate) fn new(numbering: LiteralIds, anchored: Anchored) -> Option<LiteralSet> {
        let mut literals: Vec<(Vec<u8>, u32)> = numbering.ids.into_iter().collect();
        literals.sort_unstable_by_key(|(_, id)| *id);
        let texts = literals.iter().map(|(text, _)| text);
        let automaton = NFA::builder().prefilter(false).build(texts).ok()?;
        let start_state = automaton.start_state(anchored).ok()?;
        Some(LiteralSet { automaton, start_state, anchored })
    }

    /// Calls `on` with the id of every literal that is a prefix of the bytes, shortest first.
    /// Reads at most one byte more than the length of the longest literal.
    pub(crate) fn for_each_prefix<'b>(
        &self,
        bytes: impl Iterator<Item = &'b u8>,
        mut on: impl FnMut(usize),
    ) {
        let mut state = self.start_state;
        for (length, byte) in (1..).zip(bytes) {
            state = self.automaton.next_state(self.anchored, state, *byte);
            if self.automaton.is_dead(state) {
                return;
            }
            // A state also reports literals that end here but start after the first byte.
            let is_prefix = |literal: &PatternID| self.automaton.pattern_len(*literal) == length;
            if let Some(literal) = self.literals_ending_at(state).find(is_prefix) {
                on(literal.as_usize());
            }
        }
    }

    /// Calls `on` with every occurrence of every literal in the value, in one pass, ordered by the
    /// end of the occurrence.
    pub(crate) fn for_each_occurrence(&self, value: &[u8], mut on: impl FnMut(Occurrence)) {
        let mut state = self.start_state;
        for (end, byte) in (1..).zip(value) {
            state = self.automaton.next_state(self.anchored, state, *byte);
            for literal in self.literals_ending_at(state) {
                let start = (end - self.automaton.pattern_len(literal)) as u32;
                on(Occurrence { literal: literal.as_u32(), start });
            }
        }
    }

    fn literals_ending_at(&self, state: StateID) -> impl Iterator<Item = PatternID> {
        let is_match = self.automaton.is_special(state) && self.automaton.is_match(state);
        let count = if is_match { self.automaton.match_len(state) } else { 0 };
        (0..count).map(move |at| self.automaton.match_pattern(state, at))
    }
}

/// Map from distinct literals to their ids, which are consecutive from 0 in order of first use.
#[derive(Debug, Default)]
pub(crate) struct LiteralIds {
    ids: HashMap<Vec<u8>, u32>,
}

impl LiteralIds {
    /// Returns the id of a literal. A new literal gets the next id.
    pub(crate) fn intern(&mut self, literal: &[u8]) -> u32 {
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
