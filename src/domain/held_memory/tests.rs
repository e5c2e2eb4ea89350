//! Tests of the memory held for callers.

use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;

const FLOOR: usize = CALLER_FLOOR_BYTES;

/// Waker that counts its calls.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call that holds memory and waits.
struct Waiting {
    hold: Hold,
    place: CallPlace,
}

impl Waiting {
    fn begin(caller: &Arc<CallerMemory>, bytes: usize) -> Waiting {
        let mut place = CallPlace::new(caller);
        let waits = place.poll(&mut Context::from_waker(Waker::noop()), |_| Poll::<()>::Pending);
        assert!(waits.is_pending());
        Waiting { hold: Hold::new(caller, bytes), place }
    }
}

/// Ends the calls that are lost, until no more is. Returns which were.
fn end_lost(calls: &mut [Option<Waiting>]) -> Vec<usize> {
    let mut lost = Vec::new();
    let is_lost = |call: &Option<Waiting>| call.as_ref().is_some_and(|call| call.place.is_lost());
    while let Some(at) = calls.iter().position(is_lost) {
        lost.push(at);
        let Waiting { hold, place } = calls[at].take().unwrap();
        // In the order in which a task drops them.
        drop(hold);
        drop(place);
    }
    lost
}

#[test]
fn the_caller_that_holds_most_loses_its_oldest_call_and_not_the_newcomer() {
    let process = HeldMemory::new(100_000, 1 << 20);
    let [flooding, other] = [(); 2].map(|()| process.add_caller());
    let mut calls: Vec<_> = (0..14).map(|_| Some(Waiting::begin(&flooding, 10_000))).collect();
    assert!(end_lost(&mut calls).is_empty());
    let newcomer = Some(Waiting::begin(&other, FLOOR + 50_000));
    calls.push(newcomer);
    assert_eq!(end_lost(&mut calls), [0, 1, 2], "as many as needed, from the oldest on");
    assert_eq!(flooding.held_bytes(), 110_000);
    calls.push(Some(Waiting::begin(&flooding, 20_000)));
    assert_eq!(end_lost(&mut calls), [3, 4], "its own oldest");
    drop(calls);
    assert_eq!(process.shared_bytes.load(Ordering::Relaxed), 0);
    assert_eq!((flooding.held_bytes(), other.held_bytes()), (0, 0));
}

#[test]
fn calls_that_were_scheduled_beyond_the_budget_are_lost_when_they_wait() {
    let process = HeldMemory::new(0, 1 << 20);
    let caller = process.add_caller();
    // All of them arrive before the first one is polled.
    let scheduled = [(); 5].map(|()| (Hold::new(&caller, FLOOR / 2), CallPlace::new(&caller)));
    let mut calls = scheduled.map(|(hold, mut place)| {
        let polled = place.poll(&mut Context::from_waker(Waker::noop()), |_| Poll::<()>::Pending);
        assert!(polled.is_pending());
        Some(Waiting { hold, place })
    });
    assert_eq!(end_lost(&mut calls), [0, 1, 2]);
    assert!(caller.has_room());
}

#[test]
fn no_caller_can_take_the_floor_of_another() {
    let process = HeldMemory::new(0, 1 << 20);
    let [flooding, honest] = [(); 2].map(|()| process.add_caller());
    let mut kept = vec![Some(Waiting::begin(&honest, FLOOR))];
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(Some(Waiting::begin(&flooding, FLOOR / 2)));
        end_lost(&mut flood);
    }
    assert!(flooding.held_bytes() <= FLOOR);
    assert!(end_lost(&mut kept).is_empty());
    assert!(honest.has_room());
}

#[test]
fn a_caller_beyond_its_own_maximum_loses_its_own_oldest_call() {
    let process = HeldMemory::new(1 << 30, 200_000);
    let [one, other] = [(); 2].map(|()| process.add_caller());
    let mut calls = vec![Some(Waiting::begin(&other, 190_000))];
    calls.extend((0..5).map(|_| Some(Waiting::begin(&one, 50_000))));
    assert_eq!(end_lost(&mut calls), [1]);
    assert!(other.held_bytes() == 190_000 && one.held_bytes() == 200_000);
}

#[test]
fn a_lost_call_is_woken_once_and_ends_before_another_is_lost() {
    let process = HeldMemory::new(0, 1 << 20);
    let caller = process.add_caller();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut places: Vec<_> = (0..3).map(|_| CallPlace::new(&caller)).collect();
    for place in &mut places {
        assert!(place.poll(&mut Context::from_waker(&waker), |_| Poll::<()>::Pending).is_pending());
    }
    let hold = Hold::new(&caller, FLOOR + 1);
    caller.make_room();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(places.iter().filter(|place| place.is_lost()).count(), 1);
    let lost = &mut places[0];
    let polled = lost.poll(&mut Context::from_waker(&waker), |_| Poll::Ready(()));
    assert_eq!(polled, Poll::Ready(None));
    drop(hold);
}

#[test]
fn a_caller_whose_answers_cannot_be_taken_back_is_closed_but_not_for_its_own_call() {
    let process = HeldMemory::new(0, 1 << 20);
    let [slow, other] = [(); 2].map(|()| process.add_caller());
    [&slow, &other].iter().for_each(|caller| caller.set_closer(Waker::noop()));
    let _answer = Hold::new(&slow, FLOOR * 3);
    let scheduled = CallPlace::new(&slow);
    drop(Hold::new(&other, FLOOR * 2));
    assert!(!slow.must_close(), "it will have a call to lose");
    drop(scheduled);
    let _newcomer = Hold::new(&other, FLOOR * 2);
    assert!(slow.must_close() && !other.must_close());
}

#[test]
fn a_caller_is_closed_once_nothing_of_an_answer_was_sent_for_six_ticks() {
    let process = HeldMemory::new(1 << 20, 1 << 20);
    let [blocked, reading, silent] = [(); 3].map(|()| {
        let caller = process.add_caller();
        caller.set_closer(Waker::noop());
        caller
    });
    let _silent = Hold::new(&silent, 100);
    let [mut unsent, mut slow] = [&blocked, &reading].map(|caller| Hold::new(caller, 100));
    unsent.record_sending();
    for tick in 1..=30 {
        slow.record_sending();
        process.advance_tick();
        assert_eq!(blocked.must_close(), tick >= STALLED_TICKS, "{tick}");
    }
    assert!(!reading.must_close() && !silent.must_close());
    drop((unsent, slow));
    for caller in [&blocked, &reading] {
        assert!(caller.unsent.iter().all(|count| count.load(Ordering::Relaxed) == 0));
    }
}

#[test]
fn a_caller_is_not_closed_for_an_answer_that_its_task_could_not_send_earlier() {
    let process = HeldMemory::new(1 << 20, 1 << 20);
    let caller = process.add_caller();
    let woken = Arc::new(Woken::default());
    caller.set_closer(&Waker::from(Arc::clone(&woken)));
    let mut answer = Hold::new(&caller, 100);
    answer.record_sending();
    (0..STALLED_TICKS).for_each(|_| process.advance_tick());
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    // The task is woken, and sends the answer.
    drop(answer);
    assert!(!caller.must_close());
    let mut next = Hold::new(&caller, 100);
    next.record_sending();
    process.advance_tick();
    assert!(!caller.must_close());
    (1..STALLED_TICKS).for_each(|_| process.advance_tick());
    assert!(caller.must_close() && woken.0.load(Ordering::Relaxed) == 2);
}

#[test]
fn a_buffer_keeps_the_pushed_bytes_in_blocks_and_holds_them() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    for size in [1, 7, 16 * 1024, 100_000] {
        let caller = HeldMemory::new(0, 1 << 20).add_caller();
        let mut hold = Hold::new(&caller, 0);
        let mut buffer = HeldBuffer::new(&mut hold);
        bytes.chunks(size).for_each(|chunk| buffer.push(chunk, 100_000));
        assert_eq!((buffer.len(), caller.held_bytes()), (100_000, 175_000), "{size}");
        assert!(buffer.into_bytes() == bytes);
        drop(hold);
        assert_eq!(caller.held_bytes(), 0);
    }
}

#[test]
fn a_short_content_gets_a_short_block() {
    let caller = HeldMemory::new(0, 1 << 20).add_caller();
    let mut hold = Hold::new(&caller, 0);
    let mut buffer = HeldBuffer::new(&mut hold);
    buffer.push(b"abc", 10);
    buffer.push(b"defghij", 10);
    assert_eq!(buffer.bytes().copied().collect::<Vec<_>>(), b"abcdefghij");
    assert_eq!(caller.held_bytes(), 16);
}
