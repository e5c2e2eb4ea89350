//! Wildcard patterns of sibling nodes: finds the first pattern, in file order, that matches a
//! value.
//!
//! A pattern consists of a prefix, literals between its stars, and a suffix. The index contains one
//! literal of each pattern, the one that the fewest siblings share, so that a lookup among 100,000
//! patterns costs about as much as one among 10. Prefixes and suffixes are found by reading the
//! value from its start or end. Inner literals are found by one pass over the whole value. Each
//! candidate is then verified in full.
//!
//! Cost of hostile values: the pass is linear in the length of the value, and each pattern is
//! verified at most once. Candidates found by an inner literal are verified against the recorded
//! positions of all inner literals, without reading the value again. Verifying a candidate that was
//! found by its prefix or suffix may read the value once more, but few siblings share a prefix or
//! suffix.
//!
//! Not here: keys, nodes, and rules (`tree`, `matcher`).

use std::cell::Cell;
use std::collections::HashMap;

use aho_corasick::Anchored;
use memchr::memmem;

use super::literals::{LiteralIds, LiteralSet, Occurrence};

/// Maximum number of sibling patterns that are tried one by one. Up to this number, an index would
/// not be faster but would need more memory.
const LINEAR_PATTERNS_MAX: usize = 8;

/// Penalty for indexing a pattern by an inner literal, as a number of patterns. An inner literal is
/// chosen instead of a prefix or suffix only if at least this many fewer patterns share it. The
/// penalty exists because finding an inner literal takes a pass over the whole value.
const INNER_LITERAL_PENALTY: usize = 16;

/// Maximum capacity, in occurrences, of the buffer that a thread keeps between lookups. Such a
/// buffer takes 1 MiB, enough for the typical number of occurrences in a value of 60 KiB (Envoy's
/// limit for headers). Larger buffers are freed after the lookup.
const RETAINED_CAPACITY_MAX: usize = (1 << 20) / size_of::<Occurrence>();

thread_local! {
    /// Buffer for the occurrences found in a value, reused so that only the first lookup of a
    /// thread allocates.
    static OCCURRENCES: Cell<Vec<Occurrence>> = const { Cell::new(Vec::new()) };
}

/// Matcher for the patterns of sibling nodes with the same key.
#[derive(Debug)]
pub(crate) struct Patterns {
    /// Patterns in file order, up to and including the first one that matches every value. Later
    /// patterns are dropped, because they are never the first match.
    patterns: Box<[Pattern]>,
    /// Whether the last pattern matches every value.
    last_matches_all: bool,
    /// Index of the patterns by literal. `None` if the patterns are tried one by one, because they
    /// are few or the index would be too large.
    index: Option<PatternIndex>,
}

/// Name, or a pattern of names in which each `*` matches zero or more characters.
#[derive(Debug, PartialEq)]
pub(crate) struct NamePattern {
    text: String,
    pattern: Pattern,
}

impl NamePattern {
    pub(crate) fn new(text: &str) -> Self {
        NamePattern { text: text.to_owned(), pattern: Pattern::new(text) }
    }

    /// Returns whether `name` is this name or matches this pattern.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        self.text.as_bytes() == name || self.text.contains('*') && self.pattern.matches(name)
    }
}

/// Pattern split at its stars: prefix, inner literals, suffix.
#[derive(Debug, PartialEq)]
struct Pattern {
    prefix: Box<[u8]>,
    inner: Box<[Box<[u8]>]>,
    suffix: Box<[u8]>,
    /// Ids of the inner literals; empty unless the pattern is indexed by an inner literal.
    inner_literal_ids: Box<[u32]>,
}

/// Index of patterns by one literal of each pattern. Prefixes, suffixes, and inner literals have
/// separate indexes, each `None` if it would be empty.
#[derive(Debug)]
struct PatternIndex {
    by_prefix: Option<LiteralIndex>,
    by_suffix: Option<LiteralIndex>,
    by_inner_literal: Option<LiteralIndex>,
}

/// Index from literals to the patterns that are indexed by them. All literals are prefixes, all are
/// suffixes, or all are inner literals.
#[derive(Debug)]
struct LiteralIndex {
    literals: LiteralSet,
    /// For each literal id, the positions of its patterns in file order, ascending.
    patterns: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LiteralPosition {
    Prefix,
    Suffix,
    Inner,
}

impl Patterns {
    /// Builds a matcher for patterns given in file order. Each must contain at least one `*`.
    pub(crate) fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut list = Vec::new();
        let mut last_matches_all = false;
        for text in texts {
            let pattern = Pattern::new(text);
            last_matches_all = pattern.matches_everything();
            list.push(pattern);
            if last_matches_all {
                break;
            }
        }
        let index =
            if list.len() > LINEAR_PATTERNS_MAX { PatternIndex::new(&mut list) } else { None };
        Patterns { patterns: list.into_boxed_slice(), last_matches_all, index }
    }

    /// Returns the position, in file order, of the first pattern that matches `value`; `None` if
    /// there is none.
    pub(crate) fn first_match(&self, value: &[u8]) -> Option<usize> {
        let Some(index) = &self.index else {
            return self.patterns.iter().position(|pattern| pattern.matches(value));
        };
        let none = self.patterns.len();
        let mut best = if self.last_matches_all { none - 1 } else { none } as u32;
        if let Some(LiteralIndex { literals, patterns }) = &index.by_prefix {
            literals.for_each_prefix(value.iter(), |literal| {
                best = self
                    .first_match_before(&patterns[literal], best, |pattern| pattern.matches(value));
            });
        }
        if let Some(LiteralIndex { literals, patterns }) = &index.by_suffix {
            literals.for_each_prefix(value.iter().rev(), |literal| {
                best = self
                    .first_match_before(&patterns[literal], best, |pattern| pattern.matches(value));
            });
        }
        if let Some(inner) = &index.by_inner_literal {
            best = self.first_match_by_inner_literals(inner, value, best);
        }
        Some(best as usize).filter(|best| *best < none)
    }

    /// Returns the first candidate that is below `best` and whose pattern matches, or `best` if
    /// there is none. Candidates are ascending positions of patterns in file order.
    fn first_match_before(
        &self,
        candidates: &[u32],
        best: u32,
        matches: impl Fn(&Pattern) -> bool,
    ) -> u32 {
        let mut before = candidates.iter().copied().take_while(|candidate| *candidate < best);
        before.find(|candidate| matches(&self.patterns[*candidate as usize])).unwrap_or(best)
    }

    fn first_match_by_inner_literals(
        &self,
        inner: &LiteralIndex,
        value: &[u8],
        mut best: u32,
    ) -> u32 {
        let mut positions = OCCURRENCES.take();
        positions.clear();
        inner.literals.for_each_occurrence(value, |occurrence| positions.push(occurrence));
        positions.sort_unstable();
        for same_literal in positions.chunk_by(|a, b| a.literal == b.literal) {
            let candidates = &inner.patterns[same_literal[0].literal as usize];
            best = self.first_match_before(candidates, best, |pattern| {
                pattern.matches_at(&positions, value)
            });
        }
        if positions.capacity() <= RETAINED_CAPACITY_MAX {
            OCCURRENCES.set(positions);
        }
        best
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let boxed = |literal: &str| Box::from(literal.as_bytes());
        let mut literals = text.split('*');
        let prefix = boxed(literals.next().unwrap_or(""));
        let suffix = boxed(literals.next_back().unwrap_or(""));
        let inner = literals.filter(|literal| !literal.is_empty()).map(boxed).collect();
        Pattern { prefix, inner, suffix, inner_literal_ids: Box::default() }
    }

    fn matches_everything(&self) -> bool {
        self.prefix.is_empty() && self.inner.is_empty() && self.suffix.is_empty()
    }

    /// Returns the value without the pattern's prefix and suffix. Returns `None` if the value
    /// lacks either of them or if they overlap.
    fn strip_ends<'v>(&self, value: &'v [u8]) -> Option<&'v [u8]> {
        let (prefix, rest) = value.split_at_checked(self.prefix.len())?;
        let (rest, suffix) = rest.split_at_checked(rest.len().checked_sub(self.suffix.len())?)?;
        (bytes_equal(&self.prefix, prefix) && bytes_equal(&self.suffix, suffix)).then_some(rest)
    }

    /// Returns whether the value matches. For each inner literal, only the earliest occurrence
    /// after the previous literal is tried, because later occurrences leave less of the value for
    /// the literals that follow.
    fn matches(&self, value: &[u8]) -> bool {
        let Some(mut rest) = self.strip_ends(value) else { return false };
        self.inner.iter().all(|literal| match memmem::find(rest, literal) {
            Some(at) => {
                rest = &rest[at + literal.len()..];
                true
            }
            None => false,
        })
    }

    /// Returns whether the value matches, given the sorted positions of all inner literals in the
    /// value.
    fn matches_at(&self, positions: &[Occurrence], value: &[u8]) -> bool {
        let Some(rest) = self.strip_ends(value) else { return false };
        let mut from = self.prefix.len();
        let has_all = self.inner_literal_ids.iter().zip(&self.inner).all(|(id, literal)| {
            let earliest = Occurrence { literal: *id, start: from as u32 };
            match positions.get(positions.partition_point(|other| *other < earliest)) {
                Some(occurrence) if occurrence.literal == *id => {
                    from = occurrence.start as usize + literal.len();
                    true
                }
                Some(_) | None => false,
            }
        });
        has_all && from <= self.prefix.len() + rest.len()
    }

    fn literals(&self) -> impl Iterator<Item = (LiteralPosition, &[u8])> {
        let ends =
            [(LiteralPosition::Prefix, &*self.prefix), (LiteralPosition::Suffix, &*self.suffix)];
        let inner = self.inner.iter().map(|literal| (LiteralPosition::Inner, &**literal));
        ends.into_iter().chain(inner).filter(|(_, literal)| !literal.is_empty())
    }
}

/// Returns whether two slices of the same length are equal. Does not compare empty slices, because
/// their pointers are dangling. A memcmp with masked loads takes 100 ns on such an address, more
/// than the rest of a lookup.
fn bytes_equal(literal: &[u8], value: &[u8]) -> bool {
    literal.is_empty() || literal == value
}

impl PatternIndex {
    /// Builds the index. Returns `None` if an automaton would be too large; the patterns are then
    /// tried one by one.
    fn new(patterns: &mut [Pattern]) -> Option<PatternIndex> {
        let (mut prefix, mut suffix, mut inner) = (Vec::new(), Vec::new(), Vec::new());
        for (at, choice) in (0..).zip(choose_literals(patterns)) {
            match choice {
                Some((LiteralPosition::Prefix, literal)) => prefix.push((at, literal.to_vec())),
                // Reversed, because the value is read from its end.
                Some((LiteralPosition::Suffix, literal)) => {
                    suffix.push((at, literal.iter().rev().copied().collect()));
                }
                Some((LiteralPosition::Inner, literal)) => inner.push((at, literal.to_vec())),
                None => {}
            }
        }
        let mut numbering = LiteralIds::default();
        for (at, _) in &inner {
            let pattern = &mut patterns[*at as usize];
            pattern.inner_literal_ids =
                pattern.inner.iter().map(|literal| numbering.intern(literal)).collect();
        }
        Some(PatternIndex {
            by_prefix: LiteralIndex::new(prefix, LiteralIds::default(), Anchored::Yes)?,
            by_suffix: LiteralIndex::new(suffix, LiteralIds::default(), Anchored::Yes)?,
            by_inner_literal: LiteralIndex::new(inner, numbering, Anchored::No)?,
        })
    }
}

/// Chooses the literal by which each pattern is indexed: the literal with the lowest cost. The cost
/// is the number of patterns that share the literal at the same position, plus
/// [`INNER_LITERAL_PENALTY`] for an inner literal. Ties go to the longest literal. Returns `None`
/// for patterns that consist only of stars.
fn choose_literals(patterns: &[Pattern]) -> Vec<Option<(LiteralPosition, &[u8])>> {
    let mut sharers: HashMap<(LiteralPosition, &[u8]), usize> = HashMap::new();
    for literal in patterns.iter().flat_map(Pattern::literals) {
        *sharers.entry(literal).or_default() += 1;
    }
    let cost = |literal: &(LiteralPosition, &[u8])| {
        let penalty = if literal.0 == LiteralPosition::Inner { INNER_LITERAL_PENALTY } else { 0 };
        let sharers = sharers.get(literal).copied().unwrap_or_default();
        (sharers + penalty, usize::MAX - literal.1.len())
    };
    patterns.iter().map(|pattern| pattern.literals().min_by_key(cost)).collect()
}

impl LiteralIndex {
    /// Builds the index of the chosen literals, each given with the position of its pattern.
    /// Returns `Some(None)` if `literals` is empty, and `None` if the automaton would be too large.
    fn new(
        literals: Vec<(u32, Vec<u8>)>,
        mut numbering: LiteralIds,
        anchored: Anchored,
    ) -> Option<Option<LiteralIndex>> {
        if literals.is_empty() {
            return Some(None);
        }
        let mut patterns: Vec<Vec<u32>> = Vec::new();
        for (at, literal) in literals {
            let id = numbering.intern(&literal) as usize;
            patterns.resize_with(patterns.len().max(numbering.len()), Vec::new);
            patterns[id].push(at);
        }
        Some(Some(LiteralIndex { literals: LiteralSet::new(numbering, anchored)?, patterns }))
    }
}
