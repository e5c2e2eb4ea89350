//! Bounded open-loop load: call i is due at i / rate, whether or not earlier calls were answered,
//! and its latency counts from then. It records every call.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::grpc_caller::{CallResult, Caller, question};

/// Calls without an answer; above it a call is not sent.
const IN_FLIGHT_MAX: u64 = 50_000;
/// How often due calls are sent: the finest step of the runtime's timer.
const TICK: Duration = Duration::from_millis(1);
/// Connections to each Tidegate; Envoy has one per worker.
const LINES_EACH: usize = 2;

/// One call, in the book.
#[derive(Clone, Copy, Debug)]
pub struct CallRecord {
    /// Which counter it asked for.
    pub key: u32,
    /// Which Tidegate.
    pub target: usize,
    /// Since the bench began.
    pub due: Duration,
    pub done: Duration,
    pub told: CallResult,
}

impl CallRecord {
    pub fn took(&self) -> Duration {
        self.done.saturating_sub(self.due)
    }
}

/// What is asked: call number to the counter's number and the framed message.
pub type CallPlan = Arc<dyn Fn(u64) -> (u32, Bytes) + Send + Sync>;

/// Each of `keys` counters of a rule in turn.
pub fn in_turn(rule: &'static str, keys: u32) -> CallPlan {
    let questions: Vec<Bytes> =
        (0..keys).map(|key| question(&[&[(rule, &format!("v{key}"))]])).collect();
    Arc::new(move |number| {
        let key = (number % u64::from(keys)) as u32;
        (key, questions[key as usize].clone())
    })
}

/// A counter of its own for every call.
pub fn each_its_own(rule: &'static str) -> CallPlan {
    Arc::new(move |number| (number as u32, question(&[&[(rule, &format!("u{number}"))]])))
}

/// A load under way.
pub struct Load {
    began: Instant,
    book: Arc<Mutex<Vec<CallRecord>>>,
    stop: Arc<AtomicBool>,
    /// Per target: whether calls go there.
    open: Arc<Vec<AtomicBool>>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// `rate` calls a second, to the targets in turn.
    pub fn start(began: Instant, targets: &[SocketAddr], rate: u64, asks: &CallPlan) -> Load {
        let book: Arc<Mutex<Vec<CallRecord>>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let open = Arc::new(targets.iter().map(|_| AtomicBool::new(true)).collect::<Vec<_>>());
        let run = Run {
            began,
            rate,
            lines: targets
                .iter()
                .map(|at| (0..LINES_EACH).map(|_| *at).collect::<Vec<_>>())
                .collect(),
            asks: Arc::clone(asks),
            book: Arc::clone(&book),
            stop: Arc::clone(&stop),
            open: Arc::clone(&open),
        };
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, run.go());
        });
        Load { began, book, stop, open, thread: Some(thread) }
    }

    /// Since the bench began.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Answered or given up.
    pub fn booked(&self) -> usize {
        self.book.lock().unwrap().len()
    }

    /// A target gets no further calls, as when a health check has seen it leave.
    pub fn close(&self, target: usize) {
        self.open[target].store(false, Ordering::SeqCst);
    }

    /// Ends it once every call is answered; the book, in the order of the answers.
    pub fn end(mut self) -> Vec<CallRecord> {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load ends in order");
        }
        std::mem::take(&mut *self.book.lock().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

struct Run {
    began: Instant,
    rate: u64,
    lines: Vec<Vec<SocketAddr>>,
    asks: CallPlan,
    book: Arc<Mutex<Vec<CallRecord>>>,
    stop: Arc<AtomicBool>,
    open: Arc<Vec<AtomicBool>>,
}

impl Run {
    async fn go(self) {
        let lines: Vec<Vec<Rc<Caller>>> = self
            .lines
            .iter()
            .map(|each| each.iter().map(|at| Rc::new(Caller::new(*at))).collect())
            .collect();
        let in_flight: Rc<AtomicU64> = Rc::default();
        let starts = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        let (mut number, mut turn) = (0, 0);
        while !self.stop.load(Ordering::SeqCst) {
            ticks.tick().await;
            let due = (starts.elapsed().as_secs_f64() * self.rate as f64) as u64;
            while number < due {
                let at = starts + Duration::from_secs_f64(number as f64 / self.rate as f64);
                let at = at.saturating_duration_since(self.began);
                turn += 1;
                self.send(&lines, turn, number, at, &in_flight);
                number += 1;
            }
        }
        // `Caller` bounds how long each can take.
        while in_flight.load(Ordering::SeqCst) > 0 {
            ticks.tick().await;
        }
    }

    fn send(
        &self,
        lines: &[Vec<Rc<Caller>>],
        turn: usize,
        number: u64,
        due: Duration,
        in_flight: &Rc<AtomicU64>,
    ) {
        let (key, body) = (self.asks)(number);
        let open = |target: &usize| self.open[*target].load(Ordering::SeqCst);
        let target = (0..lines.len()).map(|step| (turn + step) % lines.len()).find(open);
        let mut entry = CallRecord {
            key,
            target: target.unwrap_or(0),
            due,
            done: due,
            told: CallResult::NotSent,
        };
        let (Some(target), true) = (target, in_flight.load(Ordering::SeqCst) < IN_FLIGHT_MAX)
        else {
            self.book.lock().unwrap().push(entry);
            return;
        };
        let line = Rc::clone(&lines[target][turn / lines.len() % LINES_EACH]);
        let (book, in_flight, began) = (Arc::clone(&self.book), Rc::clone(in_flight), self.began);
        in_flight.fetch_add(1, Ordering::SeqCst);
        tokio::task::spawn_local(async move {
            entry.told = line.ask(body).await;
            entry.done = began.elapsed();
            book.lock().unwrap().push(entry);
            in_flight.fetch_sub(1, Ordering::SeqCst);
        });
    }
}
