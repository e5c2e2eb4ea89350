//! Patterns of sibling nodes with one key: finds the first one, in file order, that matches a value.
//!
//! Each pattern is indexed by one of its literals, so that a lookup costs the same among 10 patterns
//! as among 100,000. A prefix or suffix is found by walking the value from that end; a literal in the
//! middle by one pass over the whole value. The index uses the literal that the fewest siblings share.
//! Candidates are then verified in full.
//!
//! Cost of hostile values: the pass is linear in the value, and each pattern is verified at most once.
//! A candidate found in the middle is verified against the recorded positions of its other literals,
//! without reading the value again; one found at an end may read the value once more, and few siblings
//! share an end.
//!
//! Not here: keys, nodes, and what follows from a match (`matcher`).

use std::cell::Cell;
use std::collections::HashMap;

use aho_corasick::Anchored;
use memchr::memmem;

use super::literals::{LiteralSet, Numbering, Occurrence};

/// Up to this many siblings are tried in turn: as fast as the index on ordinary values, without its
/// memory.
const LINEAR_MAX: usize = 8;

/// A literal in the middle costs a pass over the whole value, so it is chosen only if it saves more
/// candidates than this.
const MIDDLE_HANDICAP: usize = 16;

/// Capacity that a thread keeps between lookups: 1 MiB, more than ordinary literals occur in values of
/// 60 kB (Envoy's limit for headers). Larger buffers are freed at once.
const POSITIONS_KEPT: usize = (1 << 20) / size_of::<Occurrence>();

thread_local! {
    /// Buffer for occurrences, so that only the first lookup of a thread allocates.
    static POSITIONS: Cell<Vec<Occurrence>> = const { Cell::new(Vec::new()) };
}

/// The patterns of sibling nodes with one key.
#[derive(Debug)]
pub(crate) struct Patterns {
    /// Patterns in file order, up to the first that matches every value; later ones never match.
    each: Box<[Pattern]>,
    /// Whether the last of `each` matches every value.
    ends_with_any: bool,
    /// `None`: patterns are tried in turn.
    index: Option<Index>,
}

/// One pattern, split at its stars.
#[derive(Debug)]
struct Pattern {
    front: Box<[u8]>,
    middle: Box<[Box<[u8]>]>,
    back: Box<[u8]>,
    /// Numbers of the `middle` literals in the index, if the pattern is indexed by one of them.
    middle_ids: Box<[u32]>,
}

/// The literals by which patterns are found, by their place in the pattern.
#[derive(Debug)]
struct Index {
    front: Option<Finder>,
    back: Option<Finder>,
    middle: Option<Finder>,
}

/// Literals, and for each the patterns that it finds, ascending.
#[derive(Debug)]
struct Finder {
    literals: LiteralSet,
    users: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Front,
    Back,
    Middle,
}

impl Patterns {
    /// Builds the index of patterns in file order; each has at least one star.
    pub(crate) fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut each = Vec::new();
        let mut ends_with_any = false;
        for text in texts {
            let pattern = Pattern::new(text);
            ends_with_any = pattern.fits_any();
            each.push(pattern);
            if ends_with_any {
                break;
            }
        }
        let index = if each.len() > LINEAR_MAX { Index::new(&mut each) } else { None };
        Patterns { each: each.into_boxed_slice(), ends_with_any, index }
    }

    /// Returns the index, in file order, of the first pattern that matches `value`.
    pub(crate) fn first(&self, value: &[u8]) -> Option<usize> {
        let Some(index) = &self.index else {
            return self.each.iter().position(|pattern| pattern.fits(value));
        };
        let none = self.each.len();
        let mut best = if self.ends_with_any { none - 1 } else { none } as u32;
        if let Some(Finder { literals, users }) = &index.front {
            literals.walk(value.iter(), |literal| {
                best = self.better(&users[literal], best, |pattern| pattern.fits(value));
            });
        }
        if let Some(Finder { literals, users }) = &index.back {
            literals.walk(value.iter().rev(), |literal| {
                best = self.better(&users[literal], best, |pattern| pattern.fits(value));
            });
        }
        if let Some(middle) = &index.middle {
            best = self.better_in_the_middle(middle, value, best);
        }
        Some(best as usize).filter(|best| *best < none)
    }

    /// Returns the first of `users` before `best` that matches, else `best`.
    fn better(&self, users: &[u32], best: u32, fits: impl Fn(&Pattern) -> bool) -> u32 {
        let mut before = users.iter().copied().take_while(|user| *user < best);
        before.find(|user| fits(&self.each[*user as usize])).unwrap_or(best)
    }

    fn better_in_the_middle(&self, middle: &Finder, value: &[u8], mut best: u32) -> u32 {
        let mut positions = POSITIONS.take();
        positions.clear();
        middle.literals.scan(value, |occurrence| positions.push(occurrence));
        positions.sort_unstable();
        for of_one_piece in positions.chunk_by(|a, b| a.literal == b.literal) {
            let users = &middle.users[of_one_piece[0].literal as usize];
            best = self.better(users, best, |pattern| pattern.fits_by(&positions, value));
        }
        if positions.capacity() <= POSITIONS_KEPT {
            POSITIONS.set(positions);
        }
        best
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let boxed = |literal: &str| Box::from(literal.as_bytes());
        let mut literals = text.split('*');
        let front = boxed(literals.next().unwrap_or(""));
        let back = boxed(literals.next_back().unwrap_or(""));
        let middle = literals.filter(|literal| !literal.is_empty()).map(boxed).collect();
        Pattern { front, middle, back, middle_ids: Box::default() }
    }

    fn fits_any(&self) -> bool {
        self.front.is_empty() && self.middle.is_empty() && self.back.is_empty()
    }

    /// Returns the part between prefix and suffix if the value has both without overlap.
    fn between<'v>(&self, value: &'v [u8]) -> Option<&'v [u8]> {
        let (front, rest) = value.split_at_checked(self.front.len())?;
        let (rest, back) = rest.split_at_checked(rest.len().checked_sub(self.back.len())?)?;
        (same(&self.front, front) && same(&self.back, back)).then_some(rest)
    }

    /// Whether the value fits: the literals between its ends follow each other, each taken as early
    /// as it occurs.
    fn fits(&self, value: &[u8]) -> bool {
        let Some(mut rest) = self.between(value) else { return false };
        self.middle.iter().all(|literal| match memmem::find(rest, literal) {
            Some(at) => {
                rest = &rest[at + literal.len()..];
                true
            }
            None => false,
        })
    }

    /// The same, by the sorted positions of all middle literals in the value.
    fn fits_by(&self, positions: &[Occurrence], value: &[u8]) -> bool {
        let Some(rest) = self.between(value) else { return false };
        let mut from = self.front.len();
        let each = self.middle_ids.iter().zip(&self.middle).all(|(id, literal)| {
            let earliest = Occurrence { literal: *id, start: from as u32 };
            match positions.get(positions.partition_point(|held| *held < earliest)) {
                Some(held) if held.literal == *id => {
                    from = held.start as usize + literal.len();
                    true
                }
                Some(_) | None => false,
            }
        });
        each && from <= self.front.len() + rest.len()
    }

    fn literals(&self) -> impl Iterator<Item = (Place, &[u8])> {
        let ends = [(Place::Front, &*self.front), (Place::Back, &*self.back)];
        let middle = self.middle.iter().map(|literal| (Place::Middle, &**literal));
        ends.into_iter().chain(middle).filter(|(_, literal)| !literal.is_empty())
    }
}

/// Whether two slices of one length are equal. An empty one is not compared: its address is no
/// address, and comparing nothing there costs 100 ns where the C library's comparison uses masked
/// loads, more than all the rest of a lookup.
fn same(own: &[u8], sent: &[u8]) -> bool {
    own.is_empty() || own == sent
}

impl Index {
    /// `None` if an automaton cannot be built; the patterns are then tried one after the other.
    fn new(patterns: &mut [Pattern]) -> Option<Index> {
        let (mut front, mut back, mut middle) = (Vec::new(), Vec::new(), Vec::new());
        for (user, choice) in (0..).zip(choose(patterns)) {
            match choice {
                Some((Place::Front, literal)) => front.push((user, literal.to_vec())),
                // In the order in which a walk from the end meets the bytes.
                Some((Place::Back, literal)) => {
                    back.push((user, literal.iter().rev().copied().collect()));
                }
                Some((Place::Middle, literal)) => middle.push((user, literal.to_vec())),
                None => {}
            }
        }
        let mut numbering = Numbering::default();
        for (user, _) in &middle {
            let pattern = &mut patterns[*user as usize];
            pattern.middle_ids =
                pattern.middle.iter().map(|literal| numbering.id(literal)).collect();
        }
        Some(Index {
            front: Finder::new(front, Numbering::default(), Anchored::Yes)?,
            back: Finder::new(back, Numbering::default(), Anchored::Yes)?,
            middle: Finder::new(middle, numbering, Anchored::No)?,
        })
    }
}

/// By which literal each pattern is found: the one that the fewest patterns share in that place; of
/// several the longest. `None` for a pattern of stars alone.
fn choose(patterns: &[Pattern]) -> Vec<Option<(Place, &[u8])>> {
    let mut sharers: HashMap<(Place, &[u8]), usize> = HashMap::new();
    for literal in patterns.iter().flat_map(Pattern::literals) {
        *sharers.entry(literal).or_default() += 1;
    }
    let cost = |literal: &(Place, &[u8])| {
        let handicap = if literal.0 == Place::Middle { MIDDLE_HANDICAP } else { 0 };
        let sharers = sharers.get(literal).copied().unwrap_or_default();
        (sharers + handicap, usize::MAX - literal.1.len())
    };
    patterns.iter().map(|pattern| pattern.literals().min_by_key(cost)).collect()
}

impl Finder {
    /// `Some(None)` where no pattern is found this way; `None` where the automaton cannot be built.
    fn new(
        chosen: Vec<(u32, Vec<u8>)>,
        mut numbering: Numbering,
        anchored: Anchored,
    ) -> Option<Option<Finder>> {
        if chosen.is_empty() {
            return Some(None);
        }
        let mut users: Vec<Vec<u32>> = Vec::new();
        for (user, literal) in chosen {
            let id = numbering.id(&literal) as usize;
            users.resize_with(users.len().max(numbering.len()), Vec::new);
            users[id].push(user);
        }
        Some(Some(Finder { literals: LiteralSet::new(numbering, anchored)?, users }))
    }
}
