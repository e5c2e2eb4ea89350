//! Memory that is held for callers: requests that have not arrived completely, calls in flight, and
//! answers that have not been sent.
//!
//! Each connection is a caller, and so is the HTTP port as a whole. The first
//! [`CALLER_FLOOR_BYTES`] of a caller count against no budget, so no other caller can take them.
//! What a caller holds beyond them counts against its own maximum and against the budget of the
//! process. Beyond the budget, the caller that holds most loses the call that has waited longest,
//! and never the call that needs the memory.
//!
//! Not here: choosing the size of each budget (`server::ServerLimits`), sending answers
//! (`server::answer_body`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use super::Lock;

/// Bytes of each caller that count against no budget: the memory of twenty small calls.
pub const CALLER_FLOOR_BYTES: usize = 64 * 1024;

/// Number of ticks after which an answer of which nothing was sent is stalled. With ticks of a
/// second, its connection is closed after 5 to 6 s.
const STALLED_TICKS: usize = 6;

/// Number of counters of unsent answers: one for each age that is not stalled, and two for stalled
/// answers, because [`HeldMemory::advance_tick`] may run while an answer is registered.
const UNSENT_AGES: usize = STALLED_TICKS + 2;

/// Memory held for all callers of the process.
#[derive(Debug, Default)]
pub struct HeldMemory {
    bytes_max: usize,
    caller_bytes_max: usize,
    /// Bytes that callers hold beyond their floors.
    shared_bytes: AtomicUsize,
    /// Number of calls of [`advance_tick`](Self::advance_tick).
    tick: AtomicUsize,
    callers: Lock<Callers>,
}

#[derive(Debug, Default)]
struct Callers {
    all: Vec<Weak<CallerMemory>>,
    /// Caller that held most when the callers were last compared, and half of what it held then. It
    /// counts as the largest while it holds as much, so that a flood beyond the budget does not
    /// compare ten thousand callers for each call.
    largest: Weak<CallerMemory>,
    half_of_largest: usize,
}

impl HeldMemory {
    /// Creates a budget of `bytes_max` bytes beyond the floors, and of `caller_bytes_max` bytes for
    /// each caller.
    pub fn new(bytes_max: usize, caller_bytes_max: usize) -> Arc<Self> {
        Arc::new(HeldMemory { bytes_max, caller_bytes_max, ..HeldMemory::default() })
    }

    /// Adds a caller, which holds nothing yet.
    pub fn add_caller(self: &Arc<Self>) -> Arc<CallerMemory> {
        let caller = Arc::new(CallerMemory {
            process: Arc::clone(self),
            held_bytes: AtomicUsize::new(0),
            unsent: Default::default(),
            lost_below: AtomicU64::new(0),
            is_stalled: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            open_calls: AtomicUsize::new(0),
            waits: Lock::default(),
        });
        self.callers.lock().all.push(Arc::downgrade(&caller));
        caller
    }

    /// Advances the age of unsent answers, and wakes the closers of callers with a stalled answer.
    /// Called every second.
    pub fn advance_tick(&self) {
        self.tick.fetch_add(1, Ordering::Relaxed);
        let mut stalled = Vec::new();
        self.callers.lock().all.retain(|caller| {
            let Some(caller) = caller.upgrade() else { return false };
            if caller.has_stalled_answer() {
                stalled.push(caller);
            }
            true
        });
        for caller in stalled {
            caller.is_stalled.store(true, Ordering::Relaxed);
            let closer = caller.waits.lock().closer.clone();
            closer.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the caller that holds most, or nearly most.
    fn find_largest(&self) -> Option<Arc<CallerMemory>> {
        let mut callers = self.callers.lock();
        if let Some(largest) = callers.largest.upgrade()
            && largest.held_bytes() > callers.half_of_largest
        {
            return Some(largest);
        }
        let all = callers.all.iter().filter_map(Weak::upgrade);
        let largest = all.max_by_key(|caller| caller.held_bytes())?;
        callers.largest = Arc::downgrade(&largest);
        callers.half_of_largest = largest.held_bytes() / 2;
        Some(largest)
    }
}

/// Memory held for one caller.
#[derive(Debug)]
pub struct CallerMemory {
    process: Arc<HeldMemory>,
    held_bytes: AtomicUsize,
    /// Number of answers being sent, by the tick of their last progress, modulo [`UNSENT_AGES`].
    unsent: [AtomicUsize; UNSENT_AGES],
    /// Sequence number below which waiting calls are lost.
    lost_below: AtomicU64,
    /// Whether an answer was stalled at the last tick.
    is_stalled: AtomicBool,
    is_closed: AtomicBool,
    /// Number of calls that have not ended.
    open_calls: AtomicUsize,
    waits: Lock<Waits>,
}

/// Calls of a caller that wait: for the rest of their request, for their decision, or for their
/// answer to be sent.
#[derive(Debug, Default)]
struct Waits {
    next_sequence: u64,
    /// The waiting calls, from the oldest to the newest.
    calls: VecDeque<(u64, Waker)>,
    /// Number of lost calls whose memory has not been released yet.
    ending: usize,
    /// Task that closes the caller's connection.
    closer: Option<Waker>,
}

impl CallerMemory {
    /// Returns the number of bytes that the caller holds.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether a budget has room, or the caller holds no more than its floor.
    pub fn has_room(&self) -> bool {
        let held = self.held_bytes();
        held <= CALLER_FLOOR_BYTES
            || (held <= self.process.caller_bytes_max
                && self.process.shared_bytes.load(Ordering::Relaxed) <= self.process.bytes_max)
    }

    /// Makes the caller that has to make room lose its oldest call. Does nothing if a call of it is
    /// still ending. If all that another caller holds is answers that cannot be taken back, closes
    /// that caller.
    pub fn make_room(&self) {
        if self.held_bytes() > self.process.caller_bytes_max {
            self.lose_oldest_call();
        } else if let Some(largest) = self.process.find_largest()
            && !largest.lose_oldest_call()
            && !std::ptr::eq(&*largest, self)
        {
            largest.close();
        }
    }

    /// Sets the task that closes the caller if it [`must_close`](Self::must_close).
    pub fn set_closer(&self, task: &Waker) {
        self.waits.lock().closer = Some(task.clone());
    }

    /// Returns whether the caller must be closed. Its task asks after it has sent what it can, because
    /// an answer that only waited for a busy thread is not the caller's fault.
    pub fn must_close(&self) -> bool {
        if self.is_stalled.load(Ordering::Relaxed) {
            self.is_stalled.store(false, Ordering::Relaxed);
            self.is_closed.fetch_or(self.has_stalled_answer(), Ordering::Relaxed);
        }
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Returns `false` if the caller has no call. A call that has not waited yet cannot be lost, but
    /// can be as soon as it does.
    fn lose_oldest_call(&self) -> bool {
        let mut waits = self.waits.lock();
        if waits.ending > 0 || self.is_closed.load(Ordering::Relaxed) {
            return true;
        }
        let Some((sequence, waker)) = waits.calls.pop_front() else {
            return self.open_calls.load(Ordering::Relaxed) > 0;
        };
        waits.ending += 1;
        self.lost_below.store(sequence + 1, Ordering::Relaxed);
        drop(waits);
        waker.wake();
        true
    }

    /// Closes the caller if it has a task for that.
    fn close(&self) {
        let closer = self.waits.lock().closer.take();
        if let Some(closer) = closer {
            self.is_closed.store(true, Ordering::Relaxed);
            closer.wake();
        }
    }

    fn has_stalled_answer(&self) -> bool {
        let tick = self.process.tick.load(Ordering::Relaxed);
        (STALLED_TICKS..UNSENT_AGES).any(|age| {
            let counter = &self.unsent[(tick + UNSENT_AGES - age) % UNSENT_AGES];
            counter.load(Ordering::Relaxed) > 0
        })
    }

    fn add(&self, bytes: usize) {
        let before = self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let shared = bytes_beyond_floor(before + bytes) - bytes_beyond_floor(before);
        if shared > 0 {
            self.process.shared_bytes.fetch_add(shared, Ordering::Relaxed);
            if !self.has_room() {
                self.make_room();
            }
        }
    }

    fn release(&self, bytes: usize) {
        let before = self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let shared = bytes_beyond_floor(before) - bytes_beyond_floor(before.saturating_sub(bytes));
        if shared > 0 {
            self.process.shared_bytes.fetch_sub(shared, Ordering::Relaxed);
        }
    }
}

const fn bytes_beyond_floor(held: usize) -> usize {
    held.saturating_sub(CALLER_FLOOR_BYTES)
}

/// Memory held for a part of one call. Dropping it releases the memory.
#[derive(Debug)]
pub struct Hold {
    caller: Arc<CallerMemory>,
    bytes: usize,
    /// Index in [`CallerMemory::unsent`], if the memory is an answer that is being sent.
    unsent_index: Option<usize>,
}

impl Hold {
    /// Holds bytes for a caller.
    pub fn new(caller: &Arc<CallerMemory>, bytes: usize) -> Self {
        caller.add(bytes);
        Hold { caller: Arc::clone(caller), bytes, unsent_index: None }
    }

    /// Returns the caller.
    pub fn caller(&self) -> &Arc<CallerMemory> {
        &self.caller
    }

    /// Changes the number of bytes.
    pub fn resize(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.caller.add(more),
            None => self.caller.release(self.bytes - bytes),
        }
        self.bytes = bytes;
    }

    /// Records that the memory is an answer of which a part, or nothing yet, was sent now.
    pub fn record_sending(&mut self) {
        let now = self.caller.process.tick.load(Ordering::Relaxed) % UNSENT_AGES;
        if self.unsent_index != Some(now) {
            self.end_sending();
            self.caller.unsent[now].fetch_add(1, Ordering::Relaxed);
            self.unsent_index = Some(now);
        }
    }

    fn end_sending(&mut self) {
        if let Some(index) = self.unsent_index.take() {
            self.caller.unsent[index].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end_sending();
        self.caller.release(self.bytes);
    }
}

/// Place of a call among the waiting calls of its caller. The call takes it when it first waits.
#[derive(Debug)]
pub struct CallPlace {
    caller: Arc<CallerMemory>,
    sequence: Option<u64>,
}

impl CallPlace {
    /// Creates the place of a call that does not wait yet.
    pub fn new(caller: &Arc<CallerMemory>) -> Self {
        caller.open_calls.fetch_add(1, Ordering::Relaxed);
        CallPlace { caller: Arc::clone(caller), sequence: None }
    }

    /// Returns whether the call is lost and has to end now.
    pub fn is_lost(&self) -> bool {
        let lost_below = &self.caller.lost_below;
        self.sequence.is_some_and(|sequence| sequence < lost_below.load(Ordering::Relaxed))
    }

    /// Polls a part of the call with `poll`. Returns `Ready(None)` if the call is lost. Must always
    /// be called by the same task, which is woken when the call is lost.
    pub fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Option<T>> {
        if self.is_lost() {
            return Poll::Ready(None);
        }
        let polled = poll(cx).map(Some);
        if polled.is_pending() && self.sequence.is_none() {
            // Locked only for calls that wait, which have a timer or a command on the wire.
            let mut waits = self.caller.waits.lock();
            let sequence = waits.next_sequence;
            waits.next_sequence += 1;
            waits.calls.push_back((sequence, cx.waker().clone()));
            self.sequence = Some(sequence);
            drop(waits);
            // Its memory may have been held when no call waited that could be lost.
            if !self.caller.has_room() {
                self.caller.make_room();
            }
        }
        polled
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.caller.open_calls.fetch_sub(1, Ordering::Relaxed);
        let Some(sequence) = self.sequence else { return };
        let mut waits = self.caller.waits.lock();
        if let Ok(at) = waits.calls.binary_search_by_key(&sequence, |(sequence, _)| *sequence) {
            waits.calls.remove(at);
            return;
        }
        waits.ending -= 1;
        drop(waits);
        // The memory of the lost call has been released, but may not have been enough.
        if !self.caller.has_room() {
            self.caller.make_room();
        }
    }
}

/// Maximum size of a block in a [`HeldBuffer`], in bytes.
const BLOCK_BYTES_MAX: usize = 16 * 1024;

/// Returns the number of bytes to hold for a block: 1.75 times its size, to account for the memory
/// of the allocator and of frames that have been read but not yet copied. In tests with floods of
/// incomplete requests, this overhead was a third of the memory in use, or slightly more on a busy
/// machine.
const fn bytes_to_hold(block_bytes: usize) -> usize {
    block_bytes + block_bytes / 4 * 3
}

/// Buffer for bytes that arrive in pieces. It consists of blocks, because a contiguous buffer that
/// doubles in size would leave as much freed memory in the allocator as the buffer itself uses.
#[derive(Debug)]
pub struct HeldBuffer<'a> {
    blocks: Vec<Vec<u8>>,
    length: usize,
    hold: &'a mut Hold,
}

impl<'a> HeldBuffer<'a> {
    /// Creates an empty buffer. Each block that it allocates is added to `hold`.
    pub fn new(hold: &'a mut Hold) -> Self {
        HeldBuffer { blocks: Vec::new(), length: 0, hold }
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

    /// Appends bytes. `length_max` is the maximum final length of the buffer, in bytes; if it is
    /// small, a smaller block is allocated.
    pub fn push(&mut self, mut bytes: &[u8], length_max: usize) {
        while !bytes.is_empty() {
            let room = self.blocks.last().map_or(0, |block| block.capacity() - block.len());
            if room == 0 {
                let capacity = length_max.saturating_sub(self.length).max(bytes.len());
                let capacity = capacity.min(BLOCK_BYTES_MAX);
                self.hold.resize(self.hold.bytes + bytes_to_hold(capacity));
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
    }

    /// Returns all bytes as one vector. Their memory stays held.
    pub fn into_bytes(self) -> Vec<u8> {
        let HeldBuffer { mut blocks, .. } = self;
        match blocks.pop() {
            Some(only) if blocks.is_empty() => only,
            last => {
                blocks.extend(last);
                blocks.concat()
            }
        }
    }
}

#[cfg(test)]
mod tests;
