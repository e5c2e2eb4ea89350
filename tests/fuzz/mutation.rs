//! Random sizes and bytes, bytes read as decisions, and mutated bytes.

use crate::support::random;

/// The generator of all tests, by sizes.
#[derive(Clone)]
pub struct Random(random::Random);

impl Random {
    pub fn seeded(seed: u64) -> Random {
        Random(random::Random::seeded(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// Below `n`, which is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub fn byte(&mut self) -> u8 {
        (self.next() >> 56) as u8
    }

    /// Up to `most` bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.byte()).collect()
    }

    /// A number of the sort that programs get wrong: small, a power of two and its neighbours, a
    /// maximum, or anything.
    pub fn odd(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(4) as u64,
            1 => self.below(1_000) as u64,
            2 => (1_u64 << self.below(64)).wrapping_add(self.below(3) as u64).wrapping_sub(1),
            3 => u64::MAX - self.below(3) as u64,
            4 => 10_u64.pow(self.below(20) as u32),
            _ => self.next(),
        }
    }
}

/// Lengths of what is inserted or taken away at once.
const PIECE_MAX: usize = 16;
/// What a mutation may grow an input to: beyond, size only costs time.
const INPUT_MAX: usize = 8_192;

/// `input` after one to six changes; `other` is spliced in, `words` are put in.
pub fn mutated(random: &mut Random, input: &[u8], other: &[u8], words: &[&str]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(PIECE_MAX)).min(bytes.len());
        match random.below(9) {
            0 => bytes.insert(at, random.byte()),
            1 => drop(bytes.drain(at..end)),
            2 if at < bytes.len() => bytes[at] = random.byte(),
            3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            4 if !words.is_empty() => {
                let word = *random.pick(words);
                drop(bytes.splice(at..at, word.bytes()));
            }
            5 => {
                let piece = bytes[at..end].to_vec();
                for _ in 0..=random.below(4) {
                    drop(bytes.splice(at..at, piece.iter().copied()));
                }
            }
            6 => {
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                drop(bytes.splice(at..end, other[from..to].iter().copied()));
            }
            7 => {
                let number = random.odd().to_string();
                drop(bytes.splice(at..end, number.bytes()));
            }
            8 => bytes.truncate(at),
            _ => {}
        }
    }
    bytes.truncate(INPUT_MAX);
    bytes
}

/// Bytes read as decisions; at their end every decision is 0.
pub struct Decisions<'b>(&'b [u8]);

impl<'b> Decisions<'b> {
    pub fn of(bytes: &'b [u8]) -> Self {
        Decisions(bytes)
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Below `n`, which is at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub fn number(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A number as [`Random::odd`] draws them.
    pub fn odd(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(4) as u64,
            1 => self.below(256) as u64 * 4,
            2 => {
                let power = 1_u64 << self.below(64);
                power.wrapping_add(self.below(3) as u64).wrapping_sub(1)
            }
            3 => u64::MAX - self.below(3) as u64,
            4 => 10_u64.pow(self.below(20) as u32),
            _ => self.number(),
        }
    }

    /// As many bytes as the next one says.
    pub fn piece(&mut self) -> &'b [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (piece, rest) = self.0.split_at(length);
        self.0 = rest;
        piece
    }
}
