//! Budget of bytes that concurrent requests share.
//!
//! Not here: choosing the size of each budget (`server::ServerLimits`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Limit on the number of bytes that are reserved at the same time. A budget may have a parent
/// budget; in that case, every reservation counts against both.
#[derive(Debug)]
pub struct ByteBudget {
    bytes_max: usize,
    reserved: AtomicUsize,
    parent: Option<Arc<ByteBudget>>,
}

impl ByteBudget {
    /// Creates a budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        ByteBudget { bytes_max, reserved: AtomicUsize::new(0), parent: None }
    }

    /// Creates a budget of `bytes_max` bytes whose reservations also count against the budget
    /// `parent`.
    pub fn within(parent: &Arc<ByteBudget>, bytes_max: usize) -> Self {
        ByteBudget { parent: Some(Arc::clone(parent)), ..ByteBudget::new(bytes_max) }
    }

    /// Reserves bytes until the returned reservation is dropped. Returns `None` if the bytes would
    /// exceed the budget.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        self.add_reserved(bytes).then(|| Reservation { budget: Arc::clone(self), bytes })
    }

    /// Returns the number of bytes currently reserved.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    fn add_reserved(&self, bytes: usize) -> bool {
        let add = |reserved: usize| {
            reserved.checked_add(bytes).filter(|reserved| *reserved <= self.bytes_max)
        };
        if self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            return false;
        }
        let taken = self.parent.as_ref().is_none_or(|parent| parent.add_reserved(bytes));
        if !taken {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    fn release(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.release(bytes);
        }
    }
}

/// Reserved bytes of a [`ByteBudget`]. Dropping the reservation releases them.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl Reservation {
    /// Reserves more bytes. If they would exceed the budget, returns `false` and changes nothing.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let taken = self.budget.add_reserved(bytes);
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

/// Maximum size of a block in a [`BudgetedBuffer`], in bytes.
const BLOCK_BYTES_MAX: usize = 16 * 1024;

/// Returns the number of bytes to reserve for a block: 1.75 times its size, to account for the
/// memory of the allocator and of frames that have been read but not yet copied. In tests with
/// floods of incomplete requests, this overhead was a third of the memory in use, or slightly more
/// on a busy machine.
const fn bytes_to_reserve(block_bytes: usize) -> usize {
    block_bytes + block_bytes / 4 * 3
}

/// Buffer for bytes that arrive in pieces and count against a budget. It consists of blocks,
/// because a contiguous buffer that doubles in size would leave as much freed memory in the
/// allocator as the buffer itself uses.
#[derive(Debug)]
pub struct BudgetedBuffer {
    blocks: Vec<Vec<u8>>,
    length: usize,
    reservation: Reservation,
}

impl BudgetedBuffer {
    /// Creates an empty buffer. Each block that it allocates is added to `reservation`.
    pub fn new(reservation: Reservation) -> Self {
        BudgetedBuffer { blocks: Vec::new(), length: 0, reservation }
    }

    /// Returns the number of bytes in the buffer.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the buffer contains no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns an iterator over the bytes, in order.
    pub fn bytes(&self) -> impl Iterator<Item = &u8> {
        self.blocks.iter().flatten()
    }

    /// Appends bytes. Returns `false` if a new block would exceed the budget. `length_max` is the
    /// maximum final length of the buffer, in bytes; if it is small, a smaller block is allocated.
    #[must_use]
    pub fn push(&mut self, mut bytes: &[u8], length_max: usize) -> bool {
        while !bytes.is_empty() {
            let room = self.blocks.last().map_or(0, |block| block.capacity() - block.len());
            if room == 0 {
                let capacity = length_max.saturating_sub(self.length).max(bytes.len());
                let capacity = capacity.min(BLOCK_BYTES_MAX);
                if !self.reservation.grow(bytes_to_reserve(capacity)) {
                    return false;
                }
                self.blocks.push(Vec::with_capacity(capacity));
                continue;
            }
            let (fitting, rest) = bytes.split_at(room.min(bytes.len()));
            if let Some(block) = self.blocks.last_mut() {
                block.extend_from_slice(fitting);
            }
            self.length += fitting.len();
            bytes = rest;
        }
        true
    }

    /// Returns all bytes as one vector, together with the reservation.
    pub fn into_parts(self) -> (Vec<u8>, Reservation) {
        let BudgetedBuffer { mut blocks, reservation, .. } = self;
        match blocks.pop() {
            Some(only) if blocks.is_empty() => (only, reservation),
            last => {
                blocks.extend(last);
                (blocks.concat(), reservation)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_holds_the_pushed_bytes_in_blocks_within_its_budget() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        for size in [1, 7, 16 * 1024, 100_000] {
            let budget = Arc::new(ByteBudget::new(175_000));
            let mut buffer = BudgetedBuffer::new(budget.reserve(0).unwrap());
            assert!(bytes.chunks(size).all(|chunk| buffer.push(chunk, 100_000)), "{size}");
            assert_eq!((buffer.len(), budget.reserved()), (100_000, 175_000));
            let (whole, reservation) = buffer.into_parts();
            assert!(whole == bytes);
            drop(reservation);
            assert_eq!(budget.reserved(), 0);
        }
    }

    #[test]
    fn a_buffer_grows_by_blocks_and_not_beyond_its_budget() {
        let budget = Arc::new(ByteBudget::new(BLOCK_BYTES_MAX));
        let mut buffer = BudgetedBuffer::new(budget.reserve(0).unwrap());
        assert!(buffer.push(b"abc", 10));
        assert_eq!(budget.reserved(), 16, "a short content gets a short block");
        assert!(buffer.push(b"defghij", 10));
        assert_eq!(budget.reserved(), 16);
        assert!(!buffer.push(b"k", 1 << 20), "the next block is longer than the rest");
        assert_eq!(buffer.bytes().copied().collect::<Vec<_>>(), b"abcdefghij");
    }

    #[test]
    fn a_reservation_beyond_the_budget_fails_and_changes_nothing() {
        let budget = Arc::new(ByteBudget::new(10));
        let mut first = budget.reserve(4).unwrap();
        assert!(first.grow(6));
        assert!(!first.grow(1));
        assert!(budget.reserve(1).is_none());
        assert!(!first.grow(usize::MAX));
        assert_eq!(budget.reserved(), 10);
        drop(first);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn a_reservation_also_counts_against_the_parent_budget() {
        let process = Arc::new(ByteBudget::new(10));
        let [one, other] = [6, 6].map(|bytes| Arc::new(ByteBudget::within(&process, bytes)));
        let held = one.reserve(6).unwrap();
        assert!(one.reserve(1).is_none(), "its own budget is used up");
        assert!(other.reserve(5).is_none(), "the shared one is");
        assert_eq!((other.reserved(), process.reserved()), (0, 6));
        let rest = other.reserve(4).unwrap();
        drop(held);
        assert_eq!((one.reserved(), process.reserved()), (0, 4));
        drop(rest);
        assert_eq!(process.reserved(), 0);
    }
}
