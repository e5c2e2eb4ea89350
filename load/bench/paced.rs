//! Callers at a fixed rate, and how long they wait: from the moment at which a call was due, so that
//! a server that falls behind is not spared.

use std::time::{Duration, Instant};

use bytes::Bytes;

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

/// `rate` calls a second for a while, dealt to the callers in turn.
pub fn run(port: u16, bodies: &[Bytes], rate: f64, lasts: Duration) -> Waits {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let callers = CONNECTIONS * STREAMS;
        let every = Duration::from_secs_f64(callers as f64 / rate);
        let began = Instant::now();
        let mut tasks = Vec::new();
        for connection in 0..CONNECTIONS {
            let sender = drive::connect(port).await;
            for stream in 0..STREAMS {
                let nth = connection * STREAMS + stream;
                let (mut sender, bodies) = (sender.clone(), bodies.to_vec());
                tasks.push(tokio::spawn(async move {
                    let mut waits = Vec::new();
                    let mut due = began + every.mul_f64(nth as f64 / callers as f64);
                    for call in 0.. {
                        if due > began + lasts {
                            break;
                        }
                        tokio::time::sleep_until(due.into()).await;
                        // The timer's tick is a millisecond: a call that it wakes late is due then.
                        let late = due.elapsed();
                        let from = if late < TICK { Instant::now() } else { due };
                        sender = sender.ready().await.expect("a stream");
                        let body = bodies[(nth + call) % bodies.len()].clone();
                        drive::one(&mut sender, body).await.expect("every call is answered");
                        waits.push(from.elapsed().as_micros() as u64);
                        due += every;
                    }
                    waits
                }));
            }
        }
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all.sort_unstable();
        Waits(all)
    })
}

/// What the timer's grain may add to a wait.
const TICK: Duration = Duration::from_millis(2);
