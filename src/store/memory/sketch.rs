//! Sketch of one rule: approximate counters of the keys that have no entry of their own, because
//! the memory store is full.
//!
//! A sketch has four rows of cells. A key has one cell in each row, chosen by its hash, and shares
//! it with other keys of its rule. Every cell holds at least the hits of each of its keys, so the
//! least full of a key's four cells is an upper bound of that key's hits: a key may be refused too
//! early, but is never admitted too often. Charging a key raises its cells to the key's new state
//! and leaves fuller cells alone (a count-min sketch with conservative update), so a cell holds the
//! maximum over its keys rather than their sum.
//!
//! A cell is 16 bytes, whose meaning depends on the algorithm:
//!
//! | algorithm | time | present | previous |
//! |---|---|---|---|
//! | fixed window | start of the window | hits | – |
//! | bucket | theoretical arrival time | fraction of a microsecond | – |
//! | sliding window | start of the current window | its hits | hits of the previous window |
//! | sliding log | start of the current window | its hits | hits of the whole previous window |
//!
//! Concurrency and hybrid counters, and those of limits with `reserve`, do not fit into a cell: a full store
//! refuses their new keys.
//!
//! Refunds do not change a sketch, because the cells are shared.
//!
//! All sketches of a shard have the same width, a power of two: when a shard gets another sketch or
//! loses one, the cells of the others are merged or copied.
//!
//! Not here: when a rule gets a sketch (`eviction`).

use super::entry_key::EntryKey;
use crate::algorithm::{State, bucket, fixed_window, sliding_log, sliding_window};
use crate::domain::{Algorithm, Limit, Micros};

/// Number of rows in a sketch. Each key has one cell in every row.
const ROWS: usize = 4;

/// Minimum width of a sketch, in cells per row. Bounds the number of sketches in a shard, because
/// each takes [`size_of::<Sketch>()`] bytes besides its cells.
pub(super) const SKETCH_WIDTH_MIN: usize = 2;

/// Format of a sketch's cells: the algorithm and, for sliding windows and sliding logs, the window
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellFormat {
    /// No format: the states of hybrid and concurrency counters do not fit into a cell.
    None,
    /// Start of a fixed window, and the number of hits in it.
    FixedWindow,
    /// Theoretical arrival time (TAT) of a token or leaky bucket.
    Bucket,
    /// Hit counts of two adjacent windows.
    SlidingWindow { length: Micros },
    /// Hit counts of two adjacent windows. A cell is too small to store the time of each hit.
    SlidingLog { length: Micros },
}

impl CellFormat {
    pub(super) fn for_limit(limit: &Limit) -> CellFormat {
        match &limit.algorithm {
            _ if limit.reserve.is_some() => CellFormat::None,
            Algorithm::FixedWindow(_) => CellFormat::FixedWindow,
            Algorithm::Bucket(_) => CellFormat::Bucket,
            Algorithm::SlidingWindow(window) => {
                CellFormat::SlidingWindow { length: window.length.max(Micros(1)) }
            }
            Algorithm::SlidingLog(log) => {
                CellFormat::SlidingLog { length: log.length.max(Micros(1)) }
            }
            Algorithm::Hybrid(_) | Algorithm::Concurrency(_) => CellFormat::None,
        }
    }

    /// Encodes the format in 64 bits. The lowest three bits hold the algorithm, and the other bits
    /// the window length in microseconds.
    pub(super) fn encode(self) -> u64 {
        match self {
            CellFormat::None => 0,
            CellFormat::FixedWindow => 1,
            CellFormat::Bucket => 2,
            CellFormat::SlidingWindow { length } => 3 | length.0 << 3,
            CellFormat::SlidingLog { length } => 4 | length.0 << 3,
        }
    }

    /// Decodes a format from the bits that [`encode`](Self::encode) returned.
    pub(super) fn decode(word: u64) -> CellFormat {
        let length = Micros(word >> 3);
        match word & 7 {
            1 => CellFormat::FixedWindow,
            2 => CellFormat::Bucket,
            3 => CellFormat::SlidingWindow { length },
            4 => CellFormat::SlidingLog { length },
            _ => CellFormat::None,
        }
    }

    /// Converts a counter's state to a cell. Returns `None` if the state belongs to a different
    /// algorithm.
    fn to_cell(self, state: &State, now: Micros) -> Option<Cell> {
        match (self, state) {
            (CellFormat::FixedWindow, State::FixedWindow(state)) => {
                Some(Cell { time: state.start, present: state.count, previous: 0 })
            }
            (CellFormat::Bucket, State::Bucket(state)) => {
                Some(Cell { time: state.tat, present: state.rem, previous: 0 })
            }
            (CellFormat::SlidingWindow { .. }, State::SlidingWindow(state)) => {
                Some(Cell { time: state.start, present: state.cur, previous: state.prev })
            }
            (CellFormat::SlidingLog { length }, State::SlidingLog(log)) => {
                let start = start_of_window(log.newest().unwrap_or(now).max(now), length);
                let (previous, present) = log.hits_before_and_since(start, length);
                Some(Cell { time: start, present, previous })
            }
            _ => None,
        }
    }

    /// Converts a cell to the counter state that it represents at `now`. Returns `None` for
    /// [`CellFormat::None`].
    fn to_state(self, cell: Cell, now: Micros) -> Option<State> {
        let Cell { time, present, previous } = cell;
        match self {
            CellFormat::None => None,
            CellFormat::FixedWindow => {
                Some(State::FixedWindow(fixed_window::State { start: time, count: present }))
            }
            CellFormat::Bucket => Some(State::Bucket(bucket::State { tat: time, rem: present })),
            CellFormat::SlidingWindow { .. } => Some(State::SlidingWindow(sliding_window::State {
                start: time,
                prev: previous,
                cur: present,
            })),
            CellFormat::SlidingLog { .. } => {
                // The latest times that these hits can have: any later one is in another window.
                let log = sliding_log::State::from_two_windows(time, previous, present, now);
                Some(State::SlidingLog(Box::new(log)))
            }
        }
    }

    /// Returns the window length if a cell of this format contains two windows, and otherwise
    /// `None`.
    fn window_length(self) -> Option<Micros> {
        match self {
            CellFormat::SlidingWindow { length } | CellFormat::SlidingLog { length } => {
                Some(length)
            }
            CellFormat::None | CellFormat::FixedWindow | CellFormat::Bucket => None,
        }
    }
}

/// Cell of a sketch: a counter shared by several keys of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    time: Micros,
    present: u32,
    previous: u32,
}

const _: () = assert!(size_of::<Cell>() == 16, "the weight of a sketch follows from this size");

impl Cell {
    fn is_empty(self) -> bool {
        self == Cell::default()
    }

    /// Returns the cell advanced to the window that starts at `start`. A cell that is already in
    /// that window or a later one is returned unchanged.
    fn advance_to(self, start: Micros, length: Micros) -> Cell {
        if self.time >= start {
            self
        } else if self.time.saturating_add(length) == start {
            Cell { time: start, present: 0, previous: self.present }
        } else {
            Cell { time: start, present: 0, previous: 0 }
        }
    }

    /// Merges two cells into one that is at least as full as either. Of two fixed windows, the later
    /// one counts as fuller, because the other has ended. Of two buckets, the one with the later
    /// theoretical arrival time is fuller. For sliding algorithms, `window` is the window length:
    /// both cells are first advanced to the later of their windows, and the result has the higher
    /// count of each window.
    fn max(self, other: Cell, window: Option<Micros>) -> Cell {
        let is_fuller = (self.time, self.present) >= (other.time, other.present);
        match window {
            Some(length) => self.combine(other, length, u32::max),
            None if is_fuller => self,
            None => other,
        }
    }

    /// Returns the less full of two cells. For sliding algorithms, `window` is the window length:
    /// both cells are first advanced to the later of their windows, and the result has the lower
    /// count of each window.
    fn min(self, other: Cell, window: Option<Micros>) -> Cell {
        let is_emptier = (self.time, self.present) <= (other.time, other.present);
        match window {
            Some(length) => self.combine(other, length, u32::min),
            None if is_emptier => self,
            None => other,
        }
    }

    /// Advances both cells to the later of their windows, and combines their counts with `pick`,
    /// window by window. `length` is the length of a window.
    fn combine(self, other: Cell, length: Micros, pick: fn(u32, u32) -> u32) -> Cell {
        let start = self.time.max(other.time);
        let (one, other) = (self.advance_to(start, length), other.advance_to(start, length));
        Cell {
            time: start,
            present: pick(one.present, other.present),
            previous: pick(one.previous, other.previous),
        }
    }
}

/// Approximate counters of one rule within one shard. Protected by the shard's lock.
#[derive(Debug)]
pub(super) struct Sketch {
    /// Key of the rule whose counters this sketch contains.
    pub(super) rule: u64,
    format: CellFormat,
    cells: Box<[Cell]>,
    /// Time at which the last cell expires.
    pub(super) expires: Micros,
}

impl Sketch {
    /// Returns the maximum memory that sketches with together `width` cells per row use, in bytes.
    pub(super) const fn bytes_max(width: usize) -> usize {
        width / SKETCH_WIDTH_MIN * size_of::<Sketch>() + ROWS * width * size_of::<Cell>()
    }

    /// Returns the heap memory that this sketch uses, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Sketch>() + size_of_val(&*self.cells)
    }

    /// Creates an empty sketch. `width` is the number of cells per row and must be at least 1.
    pub(super) fn new(rule: u64, format: CellFormat, width: usize) -> Sketch {
        let cells = vec![Cell::default(); ROWS * width.max(1)].into_boxed_slice();
        Sketch { rule, format, cells, expires: Micros::ZERO }
    }

    /// Changes the number of cells per row, which must be a power of two before and after. A cell
    /// becomes the maximum of the cells that it replaces, or each of those that replace it, so that
    /// no key loses a hit.
    pub(super) fn set_width(&mut self, width: usize) {
        let former_width = self.cells.len() / ROWS;
        if width == former_width {
            return;
        }
        let former = std::mem::take(&mut self.cells);
        self.cells = vec![Cell::default(); ROWS * width].into_boxed_slice();
        let (longer, window) = (width.max(former_width), self.format.window_length());
        for at in 0..ROWS * longer {
            let cell = &mut self.cells[at * width / longer];
            *cell = cell.max(former[at * former_width / longer], window);
        }
    }

    /// Postpones the expiry of the sketch to `expires`, unless the sketch already expires later.
    pub(super) fn keep_until(&mut self, expires: Micros) {
        self.expires = self.expires.max(expires);
    }

    /// Returns a state with at least as many hits as were counted for the key. Returns `None` if
    /// one of the key's cells is empty, because the key then has no hits.
    pub(super) fn state(&self, key: EntryKey, now: Micros) -> Option<State> {
        self.format.to_state(self.min_cell(key, now)?, now)
    }

    /// Raises the cells of a key to `state`. The caller must have obtained `state` by charging the
    /// state that [`state`](Self::state) returned. Keeps the sketch at least until `expires`.
    pub(super) fn charge(&mut self, key: EntryKey, state: &State, expires: Micros, now: Micros) {
        let Some(new) = self.format.to_cell(state, now) else { return };
        // A charge moves a state back in time only if it was clamped because it came from the far
        // future. Then the cells that are further in the future come from the same wrong clock.
        let is_clamped = self.min_cell(key, now).is_some_and(|least| new.time < least.time);
        for at in self.cell_indices(key) {
            if is_clamped && self.cells[at].time > new.time {
                self.cells[at] = Cell::default();
            }
        }
        self.raise_cells(key, new, expires);
    }

    /// Raises the cells of a key to the state of its entry, which is about to be removed. Keeps the
    /// sketch at least until `expires`.
    pub(super) fn fold(&mut self, key: EntryKey, state: &State, expires: Micros, now: Micros) {
        if let Some(new) = self.format.to_cell(state, now) {
            self.raise_cells(key, new, expires);
        }
    }

    fn raise_cells(&mut self, key: EntryKey, new: Cell, expires: Micros) {
        let window = self.format.window_length();
        for at in self.cell_indices(key) {
            self.cells[at] = self.cells[at].max(new, window);
        }
        self.keep_until(expires);
    }

    fn min_cell(&self, key: EntryKey, now: Micros) -> Option<Cell> {
        let window = self.format.window_length();
        let mut cells = self.cell_indices(key).map(|at| self.cells[at]).into_iter();
        let first = cells.next().filter(|cell| !cell.is_empty())?;
        let first =
            window.map_or(first, |length| first.advance_to(start_of_window(now, length), length));
        cells.try_fold(first, |least, cell| (!cell.is_empty()).then(|| least.min(cell, window)))
    }

    fn cell_indices(&self, key: EntryKey) -> [usize; ROWS] {
        let width = self.cells.len() / ROWS;
        let hash = key.sketch_bits();
        // 16 bits per row, scaled to the width, which is at most 4,096.
        std::array::from_fn(|row| {
            let bits = (hash >> (16 * row)) as usize & 0xffff;
            row * width + ((bits * width) >> 16)
        })
    }
}

fn start_of_window(at: Micros, length: Micros) -> Micros {
    Micros(at.0 - at.0 % length.0.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::CounterOp;
    use crate::domain::{Charge, Hits, SlidingLog};

    const WINDOW_START: Micros = Micros(1_763_596_800_000_000);
    const WINDOW_LENGTH: Micros = Micros::from_secs(60);

    fn key(n: u128) -> EntryKey {
        EntryKey::for_counter(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    fn window(start: Micros, prev: u32, cur: u32) -> State {
        State::SlidingWindow(sliding_window::State { start, prev, cur })
    }

    #[test]
    fn an_encoded_format_decodes_to_the_same_format() {
        for format in [
            CellFormat::None,
            CellFormat::FixedWindow,
            CellFormat::Bucket,
            CellFormat::SlidingWindow { length: WINDOW_LENGTH },
            CellFormat::SlidingLog { length: Micros::from_secs(1) },
        ] {
            assert_eq!(CellFormat::decode(format.encode()), format);
        }
    }

    #[test]
    fn a_key_has_at_least_the_hits_that_were_counted_for_it() {
        let mut sketch = Sketch::new(1, CellFormat::FixedWindow, 4);
        let state = |count| State::FixedWindow(fixed_window::State { start: WINDOW_START, count });
        for n in 0..100 {
            sketch.charge(key(n), &state(u32::try_from(n).unwrap()), WINDOW_START, WINDOW_START);
        }
        for n in 0..100 {
            let Some(State::FixedWindow(read)) = sketch.state(key(n), WINDOW_START) else {
                panic!()
            };
            assert!(u128::from(read.count) >= n, "{n}: {read:?}");
        }
    }

    #[test]
    fn no_key_loses_a_hit_when_the_width_changes() {
        let mut sketch = Sketch::new(1, CellFormat::FixedWindow, 16);
        let state = |count| State::FixedWindow(fixed_window::State { start: WINDOW_START, count });
        for width in [4, 2, 32, 32, 1, 64] {
            for n in 0..50 {
                let key = key(u128::from(n) | width << 32);
                sketch.charge(key, &state(n), WINDOW_START, WINDOW_START);
            }
            sketch.set_width(width as usize);
            assert_eq!(sketch.cells.len(), ROWS * width as usize);
            for n in 0..50 {
                let key = key(u128::from(n) | width << 32);
                let Some(State::FixedWindow(read)) = sketch.state(key, WINDOW_START) else {
                    panic!()
                };
                assert!(read.count >= n, "{n}: {read:?}");
            }
        }
    }

    #[test]
    fn cells_of_adjacent_windows_are_compared_in_the_later_one() {
        let mut sketch = Sketch::new(1, CellFormat::SlidingWindow { length: WINDOW_LENGTH }, 1);
        let next = WINDOW_START.saturating_add(WINDOW_LENGTH);
        sketch.charge(key(1), &window(WINDOW_START, 1, 5), next, WINDOW_START);
        sketch.charge(key(2), &window(next, 2, 3), next, next);
        assert_eq!(sketch.state(key(1), next), Some(window(next, 5, 3)));
        let third = next.saturating_add(WINDOW_LENGTH);
        assert_eq!(sketch.state(key(1), third), Some(window(third, 3, 0)));
    }

    #[test]
    fn a_hit_at_the_start_of_a_window_counts_in_that_window_only() {
        let limit = SlidingLog { hits: Hits(10), length: WINDOW_LENGTH };
        let mut log = sliding_log::State::default();
        for (at, cost) in [(WINDOW_START.0 - 1, 2), (WINDOW_START.0, 3)] {
            let op = CounterOp::Take(cost);
            let step = sliding_log::apply(Some(&log), &limit, Charge::Admitted, op, Micros(at));
            log = step.write.unwrap();
        }
        let format = CellFormat::SlidingLog { length: WINDOW_LENGTH };
        let cell = format.to_cell(&State::SlidingLog(Box::new(log)), WINDOW_START);
        assert_eq!(cell, Some(Cell { time: WINDOW_START, present: 3, previous: 2 }));
    }

    #[test]
    fn folding_an_old_entry_lowers_no_cell() {
        let mut sketch = Sketch::new(1, CellFormat::SlidingWindow { length: WINDOW_LENGTH }, 1);
        let next = WINDOW_START.saturating_add(WINDOW_LENGTH);
        sketch.charge(key(1), &window(next, 1, 3), next, next);
        sketch.fold(key(2), &window(WINDOW_START, 9, 2), next, next);
        assert_eq!(sketch.state(key(1), next), Some(window(next, 2, 3)));
    }

    #[test]
    fn a_clamped_charge_resets_cells_from_the_far_future() {
        let mut sketch = Sketch::new(1, CellFormat::FixedWindow, 1);
        let state = |start| State::FixedWindow(fixed_window::State { start, count: 5 });
        let far = WINDOW_START.saturating_add(Micros::from_secs(86_400));
        sketch.charge(key(1), &state(far), far, far);
        sketch.charge(key(1), &state(WINDOW_START), WINDOW_START, WINDOW_START);
        assert_eq!(sketch.state(key(2), WINDOW_START), Some(state(WINDOW_START)));
    }
}
