//! Calls at a fixed rate, and how long they wait: from the moment at which a call was due, so that
//! a server that falls behind is not spared.
//!
//! A thread of its own sleeps until each call is due. The runtime's timer would not do: its grain is
//! a millisecond, so that calls would come in bunches and wait for each other, not for the server.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::drive;

const CONNECTIONS: usize = 4;
const STREAMS: usize = 16;

/// Waits in microseconds, sorted.
pub struct Waits(Vec<u64>);

impl Waits {
    pub fn at(&self, share: f64) -> u64 {
        let at = (self.0.len() as f64 * share) as usize;
        self.0.get(at).or(self.0.last()).copied().unwrap_or(0)
    }
}

/// `rate` calls a second for a while, each taken by whichever caller is free.
pub fn run(port: u16, bodies: &[Bytes], rate: f64, lasts: Duration) -> Waits {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (give, take) = mpsc::unbounded_channel::<(usize, Instant)>();
        let take = std::sync::Arc::new(tokio::sync::Mutex::new(take));
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let sender = drive::connect(port).await;
            for _ in 0..STREAMS {
                let (mut sender, bodies, take) = (sender.clone(), bodies.to_vec(), take.clone());
                tasks.push(tokio::spawn(async move {
                    let mut waits = Vec::new();
                    loop {
                        let next = take.lock().await.recv().await;
                        let Some((call, due)) = next else { break };
                        // What the sleep was too long by is not the server's.
                        let from = if due.elapsed() < GRAIN { Instant::now() } else { due };
                        sender = sender.ready().await.expect("a stream");
                        let body = bodies[call % bodies.len()].clone();
                        drive::one(&mut sender, body).await.expect("every call is answered");
                        waits.push(from.elapsed().as_micros() as u64);
                    }
                    waits
                }));
            }
        }
        let pacer = pace(rate, lasts, give);
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        pacer.join().expect("the pacer ends");
        all.sort_unstable();
        Waits(all)
    })
}

/// Says which call is due when, for a while, on a thread of its own.
fn pace(
    rate: f64,
    lasts: Duration,
    give: mpsc::UnboundedSender<(usize, Instant)>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let began = Instant::now();
        for call in 0.. {
            let after = Duration::from_secs_f64(call as f64 / rate);
            if after > lasts {
                break;
            }
            let due = began + after;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if give.send((call, due)).is_err() {
                break;
            }
        }
    })
}

/// What a sleep may be too long by.
const GRAIN: Duration = Duration::from_micros(500);
