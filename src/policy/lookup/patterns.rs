//! The patterns of sibling nodes with one key: which of them is the first, in file order, that a
//! value fits.
//!
//! Each pattern is found by one of its literal pieces, so that a lookup costs the same among 10
//! patterns as among 100,000: by its front or its back, walking the value from that end until no
//! piece goes on; or by a piece in the middle, in one pass over the whole value. The piece is the
//! one that the fewest siblings share. A candidate found by it is then verified in full.
//!
//! What hostile values cost: the pass is linear in the value. Each pattern is verified at most once.
//! One that is found in the middle is verified by looking its other pieces up among the positions
//! that the pass has noted, not by reading the value again, so that a value made of thousands of
//! pieces is no worse than its length. One that is found at an end may read the value once more;
//! few siblings share that end.
//!
//! Not here: keys, nodes, what follows from a match.

use std::cell::Cell;
use std::collections::HashMap;

use aho_corasick::Anchored;
use memchr::memmem;

use super::literals::{Numbering, Occurrence, Pieces};

/// Up to so many siblings are tried one after the other: as fast as three automata on ordinary
/// values, and without their memory.
const LINEAR_MAX: usize = 8;

/// A piece in the middle costs a pass over the whole value, so it is chosen only where it spares
/// more candidates than this.
const MIDDLE_HANDICAP: usize = 16;

/// Positions that a thread keeps room for between lookups: 1 MiB, more than values of 60 kB (what
/// Envoy takes in headers) can make of ordinary pieces. What goes beyond it is freed at once.
const POSITIONS_KEPT: usize = (1 << 20) / size_of::<Occurrence>();

thread_local! {
    /// Room for the positions of pieces, so that no lookup allocates but the first of a thread.
    static POSITIONS: Cell<Vec<Occurrence>> = const { Cell::new(Vec::new()) };
}

/// The patterns of sibling nodes with one key.
#[derive(Debug)]
pub(crate) struct Patterns {
    /// In file order, up to the first that every value fits: those after it never match.
    each: Box<[Pattern]>,
    /// The last of `each` fits every value.
    ends_with_any: bool,
    /// `None`: one after the other.
    index: Option<Index>,
}

/// One pattern, split at its stars.
#[derive(Debug)]
struct Pattern {
    front: Box<[u8]>,
    middle: Box<[Box<[u8]>]>,
    back: Box<[u8]>,
    /// The numbers of `middle` among the index's middle pieces, if the pattern is found by one.
    middle_ids: Box<[u32]>,
}

/// Where the pieces are, by which patterns are found.
#[derive(Debug)]
struct Index {
    front: Option<Finder>,
    back: Option<Finder>,
    middle: Option<Finder>,
}

/// Pieces, and for each the patterns that are found by it, ascending.
#[derive(Debug)]
struct Finder {
    pieces: Pieces,
    users: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Front,
    Back,
    Middle,
}

impl Patterns {
    /// Arranges patterns, given in file order; each has a star at least.
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

    /// The position, in file order, of the first pattern that `value` fits.
    pub(crate) fn first(&self, value: &[u8]) -> Option<usize> {
        let Some(index) = &self.index else {
            return self.each.iter().position(|pattern| pattern.fits(value));
        };
        let none = self.each.len();
        let mut best = if self.ends_with_any { none - 1 } else { none } as u32;
        if let Some(Finder { pieces, users }) = &index.front {
            pieces.walk(value.iter(), |piece| {
                best = self.better(&users[piece], best, |pattern| pattern.fits(value));
            });
        }
        if let Some(Finder { pieces, users }) = &index.back {
            pieces.walk(value.iter().rev(), |piece| {
                best = self.better(&users[piece], best, |pattern| pattern.fits(value));
            });
        }
        if let Some(middle) = &index.middle {
            best = self.better_in_the_middle(middle, value, best);
        }
        Some(best as usize).filter(|best| *best < none)
    }

    /// The first of `users` that is before `best` and fits, else `best`.
    fn better(&self, users: &[u32], best: u32, fits: impl Fn(&Pattern) -> bool) -> u32 {
        let mut before = users.iter().copied().take_while(|user| *user < best);
        before.find(|user| fits(&self.each[*user as usize])).unwrap_or(best)
    }

    fn better_in_the_middle(&self, middle: &Finder, value: &[u8], mut best: u32) -> u32 {
        let mut positions = POSITIONS.take();
        positions.clear();
        middle.pieces.scan(value, |occurrence| positions.push(occurrence));
        positions.sort_unstable();
        for of_one_piece in positions.chunk_by(|a, b| a.piece == b.piece) {
            let users = &middle.users[of_one_piece[0].piece as usize];
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
        let boxed = |piece: &str| Box::from(piece.as_bytes());
        let mut pieces = text.split('*');
        let front = boxed(pieces.next().unwrap_or(""));
        let back = boxed(pieces.next_back().unwrap_or(""));
        let middle = pieces.filter(|piece| !piece.is_empty()).map(boxed).collect();
        Pattern { front, middle, back, middle_ids: Box::default() }
    }

    fn fits_any(&self) -> bool {
        self.front.is_empty() && self.middle.is_empty() && self.back.is_empty()
    }

    /// What is between front and back, if the value has them; they must not overlap.
    fn between<'v>(&self, value: &'v [u8]) -> Option<&'v [u8]> {
        let (front, rest) = value.split_at_checked(self.front.len())?;
        let (rest, back) = rest.split_at_checked(rest.len().checked_sub(self.back.len())?)?;
        (same(&self.front, front) && same(&self.back, back)).then_some(rest)
    }

    /// Whether the value fits: the pieces between its ends follow each other, each taken as early
    /// as it occurs.
    fn fits(&self, value: &[u8]) -> bool {
        let Some(mut rest) = self.between(value) else { return false };
        self.middle.iter().all(|piece| match memmem::find(rest, piece) {
            Some(at) => {
                rest = &rest[at + piece.len()..];
                true
            }
            None => false,
        })
    }

    /// The same, by the sorted positions of all middle pieces in the value.
    fn fits_by(&self, positions: &[Occurrence], value: &[u8]) -> bool {
        let Some(rest) = self.between(value) else { return false };
        let mut from = self.front.len();
        let each = self.middle_ids.iter().zip(&self.middle).all(|(id, piece)| {
            let earliest = Occurrence { piece: *id, start: from as u32 };
            match positions.get(positions.partition_point(|held| *held < earliest)) {
                Some(held) if held.piece == *id => {
                    from = held.start as usize + piece.len();
                    true
                }
                Some(_) | None => false,
            }
        });
        each && from <= self.front.len() + rest.len()
    }

    fn pieces(&self) -> impl Iterator<Item = (Place, &[u8])> {
        let ends = [(Place::Front, &*self.front), (Place::Back, &*self.back)];
        let middle = self.middle.iter().map(|piece| (Place::Middle, &**piece));
        ends.into_iter().chain(middle).filter(|(_, piece)| !piece.is_empty())
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
                Some((Place::Front, piece)) => front.push((user, piece.to_vec())),
                // In the order in which a walk from the end meets the bytes.
                Some((Place::Back, piece)) => {
                    back.push((user, piece.iter().rev().copied().collect()));
                }
                Some((Place::Middle, piece)) => middle.push((user, piece.to_vec())),
                None => {}
            }
        }
        let mut numbering = Numbering::default();
        for (user, _) in &middle {
            let pattern = &mut patterns[*user as usize];
            pattern.middle_ids = pattern.middle.iter().map(|piece| numbering.id(piece)).collect();
        }
        Some(Index {
            front: Finder::new(front, Numbering::default(), Anchored::Yes)?,
            back: Finder::new(back, Numbering::default(), Anchored::Yes)?,
            middle: Finder::new(middle, numbering, Anchored::No)?,
        })
    }
}

/// By which piece each pattern is found: the one that the fewest patterns share in that place; of
/// several the longest. `None` for a pattern of stars alone.
fn choose(patterns: &[Pattern]) -> Vec<Option<(Place, &[u8])>> {
    let mut sharers: HashMap<(Place, &[u8]), usize> = HashMap::new();
    for piece in patterns.iter().flat_map(Pattern::pieces) {
        *sharers.entry(piece).or_default() += 1;
    }
    let cost = |piece: &(Place, &[u8])| {
        let handicap = if piece.0 == Place::Middle { MIDDLE_HANDICAP } else { 0 };
        let sharers = sharers.get(piece).copied().unwrap_or_default();
        (sharers + handicap, usize::MAX - piece.1.len())
    };
    patterns.iter().map(|pattern| pattern.pieces().min_by_key(cost)).collect()
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
        for (user, piece) in chosen {
            let id = numbering.id(&piece) as usize;
            users.resize_with(users.len().max(numbering.len()), Vec::new);
            users[id].push(user);
        }
        Some(Some(Finder { pieces: Pieces::new(numbering, anchored)?, users }))
    }
}
