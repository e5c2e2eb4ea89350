//! The patterns of sibling nodes with one key: which of them is the first, in file order, that a
//! value fits.
//!
//! Each pattern is found by one of its literal pieces, so that a lookup costs the same among 10
//! patterns as among 100,000. Pieces at the front and at the back of patterns are found by walking
//! the value from that end until no piece goes on; pieces in the middle by one pass over the whole
//! value. A candidate is then verified in full.
//!
//! What it costs: a pass is linear in the value; no byte is read twice by it. A pattern can be a
//! candidate without fitting only if a piece of it is there and another is not; each such is looked
//! at once, in time linear in the value. The piece chosen is the one that the fewest siblings share,
//! so hostile values meet few of them. Nothing is allocated.
//!
//! Not here: keys, nodes, what follows from a match.

use std::collections::HashMap;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, PatternID};
use memchr::memmem;

/// Up to so many siblings are tried one after the other: as fast as three automata on ordinary
/// values, and without their memory.
const LINEAR_MAX: usize = 8;

/// A piece in the middle costs a pass over the whole value, so it is chosen only where it spares
/// more candidates than this.
const MIDDLE_HANDICAP: usize = 16;

/// So many different pieces are gathered in one pass over a value. Hostile values with more of
/// them cost another pass for each such batch.
const BATCH: usize = 32;

/// The patterns of sibling nodes with one key.
#[derive(Debug)]
pub(super) struct Patterns {
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
}

#[derive(Debug, Default)]
struct Index {
    front: Option<Pieces>,
    back: Option<Pieces>,
    middle: Option<Pieces>,
}

/// Different literal pieces, and which patterns are found by them.
#[derive(Debug)]
struct Pieces {
    automaton: NFA,
    start: StateID,
    anchored: Anchored,
    /// For each piece its patterns, ascending. Pieces are in the order of their first pattern.
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
    pub(super) fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
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
        let index = if each.len() > LINEAR_MAX { Index::new(&each) } else { None };
        Patterns { each: each.into_boxed_slice(), ends_with_any, index }
    }

    /// The position, in file order, of the first pattern that `value` fits.
    pub(super) fn first(&self, value: &[u8]) -> Option<usize> {
        let Some(index) = &self.index else {
            return self.each.iter().position(|pattern| pattern.fits(value));
        };
        let none = self.each.len();
        let mut best = if self.ends_with_any { none - 1 } else { none } as u32;
        if let Some(front) = &index.front {
            front.walk(value.iter(), |users| best = self.better(users, value, best));
        }
        if let Some(back) = &index.back {
            back.walk(value.iter().rev(), |users| best = self.better(users, value, best));
        }
        if let Some(middle) = &index.middle {
            best = self.best_in_the_middle(middle, value, best);
        }
        Some(best as usize).filter(|best| *best < none)
    }

    /// The first of `users` that is before `best` and fits, else `best`.
    fn better(&self, users: &[u32], value: &[u8], best: u32) -> u32 {
        let mut before = users.iter().copied().take_while(|user| *user < best);
        before.find(|user| self.each[*user as usize].fits(value)).unwrap_or(best)
    }

    /// Gathers the lowest pieces that the value contains, tries their patterns, and goes on with
    /// the next lowest. A piece that occurs a thousand times is tried once.
    fn best_in_the_middle(&self, pieces: &Pieces, value: &[u8], mut best: u32) -> u32 {
        let mut from = 0;
        loop {
            let to = pieces.users.partition_point(|users| users.first().is_some_and(|u| *u < best));
            let found = pieces.lowest_in(value, from..to);
            for piece in found.sorted() {
                best = self.better(&pieces.users[*piece as usize], value, best);
            }
            match found.last_if_full() {
                Some(last) => from = last as usize + 1,
                None => return best,
            }
        }
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let boxed = |piece: &str| Box::from(piece.as_bytes());
        let mut pieces = text.split('*');
        let front = boxed(pieces.next().unwrap_or(""));
        let back = boxed(pieces.next_back().unwrap_or(""));
        let middle = pieces.filter(|piece| !piece.is_empty()).map(boxed).collect();
        Pattern { front, middle, back }
    }

    fn fits_any(&self) -> bool {
        self.front.is_empty() && self.middle.is_empty() && self.back.is_empty()
    }

    /// Front and back must not overlap; the pieces between them follow each other, each taken as
    /// early as it occurs.
    fn fits(&self, value: &[u8]) -> bool {
        let Some(rest) = value.strip_prefix(&*self.front) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.back) else { return false };
        self.middle.iter().all(|piece| match memmem::find(rest, piece) {
            Some(at) => {
                rest = &rest[at + piece.len()..];
                true
            }
            None => false,
        })
    }

    fn pieces(&self) -> impl Iterator<Item = (Place, &[u8])> {
        let ends = [(Place::Front, &*self.front), (Place::Back, &*self.back)];
        let middle = self.middle.iter().map(|piece| (Place::Middle, &**piece));
        ends.into_iter().chain(middle).filter(|(_, piece)| !piece.is_empty())
    }
}

impl Index {
    /// `None` if an automaton cannot be built: more than 2^31 states, which a policy of 64 MiB does
    /// not reach. The patterns are then tried one after the other.
    fn new(patterns: &[Pattern]) -> Option<Index> {
        let mut shared: HashMap<(Place, &[u8]), usize> = HashMap::new();
        for piece in patterns.iter().flat_map(Pattern::pieces) {
            *shared.entry(piece).or_default() += 1;
        }
        let cost = |piece: &(Place, &[u8])| {
            let handicap = if piece.0 == Place::Middle { MIDDLE_HANDICAP } else { 0 };
            let sharers = shared.get(piece).copied().unwrap_or_default();
            (sharers + handicap, usize::MAX - piece.1.len())
        };
        let mut chosen: [Vec<(&[u8], u32)>; 3] = Default::default();
        for (at, pattern) in (0..).zip(patterns) {
            if let Some((place, piece)) = pattern.pieces().min_by_key(cost) {
                chosen[place as usize].push((piece, at));
            }
        }
        let [front, back, middle] = chosen;
        let back: Vec<(Vec<u8>, u32)> =
            back.into_iter().map(|(p, at)| (p.iter().rev().copied().collect(), at)).collect();
        Some(Index {
            front: Pieces::new(&front, Anchored::Yes)?,
            back: Pieces::new(&back, Anchored::Yes)?,
            middle: Pieces::new(&middle, Anchored::No)?,
        })
    }
}

impl Pieces {
    /// `Some(None)` where there are no pieces; `None` where the automaton cannot be built.
    fn new<P: AsRef<[u8]>>(chosen: &[(P, u32)], anchored: Anchored) -> Option<Option<Pieces>> {
        if chosen.is_empty() {
            return Some(None);
        }
        let mut ids: HashMap<&[u8], usize> = HashMap::new();
        let (mut texts, mut users) = (Vec::new(), Vec::<Vec<u32>>::new());
        for (piece, user) in chosen {
            let piece = piece.as_ref();
            let id = *ids.entry(piece).or_insert(users.len());
            if id == users.len() {
                texts.push(piece);
                users.push(Vec::new());
            }
            users[id].push(*user);
        }
        let automaton = NFA::builder().prefilter(false).build(&texts).ok()?;
        let start = automaton.start_state(anchored).ok()?;
        Some(Some(Pieces { automaton, start, anchored, users }))
    }

    /// Tells `on` the users of every piece that the bytes begin with, shortest first. Reads no
    /// further than the longest piece.
    fn walk<'b>(&self, bytes: impl Iterator<Item = &'b u8>, mut on: impl FnMut(&[u32])) {
        let mut state = self.start;
        for (length, byte) in (1..).zip(bytes) {
            state = self.automaton.next_state(self.anchored, state, *byte);
            if self.automaton.is_dead(state) {
                return;
            }
            // A state also reports the pieces that merely end here.
            let whole = |piece: &PatternID| self.automaton.pattern_len(*piece) == length;
            if let Some(piece) = self.ending_at(state).find(whole) {
                on(&self.users[piece]);
            }
        }
    }

    /// The lowest pieces within `range` that occur anywhere in the value.
    fn lowest_in(&self, value: &[u8], range: std::ops::Range<usize>) -> Lowest {
        let mut lowest = Lowest { each: [0; BATCH], len: 0 };
        if range.is_empty() {
            return lowest;
        }
        let mut state = self.start;
        for byte in value {
            state = self.automaton.next_state(self.anchored, state, *byte);
            for piece in self.ending_at(state).filter(|piece| range.contains(&piece.as_usize())) {
                lowest.offer(piece.as_u32());
            }
        }
        lowest
    }

    fn ending_at(&self, state: StateID) -> impl Iterator<Item = PatternID> {
        let special = self.automaton.is_special(state) && self.automaton.is_match(state);
        let count = if special { self.automaton.match_len(state) } else { 0 };
        (0..count).map(move |at| self.automaton.match_pattern(state, at))
    }
}

/// The lowest different numbers among those offered, ascending.
struct Lowest {
    each: [u32; BATCH],
    len: usize,
}

impl Lowest {
    fn offer(&mut self, number: u32) {
        let Err(at) = self.each[..self.len].binary_search(&number) else { return };
        if at == BATCH {
            return;
        }
        self.len = (self.len + 1).min(BATCH);
        self.each[at..self.len].rotate_right(1);
        self.each[at] = number;
    }

    fn sorted(&self) -> &[u32] {
        &self.each[..self.len]
    }

    fn last_if_full(&self) -> Option<u32> {
        self.each.last().copied().filter(|_| self.len == BATCH)
    }
}
