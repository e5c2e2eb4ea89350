//! Bounds on what a limit may admit, computed from the clock.
//!
//! A machine may be slow, and a window may end during a test. So a series of requests records when
//! it began and ended, and the limit states how many must and may pass in that time: mostly one
//! number, the limit itself.

#![allow(clippy::disallowed_methods, reason = "the clock says what a limit may admit")]

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::envoy_process::Envoy;
use super::http_client::{Reply, Request};
use crate::support::wait::PATIENCE;

/// How many refusals a row sees before it stops: one might be a limit that lets every other pass.
const REFUSALS: u64 = 3;

/// A limit as its author states it.
#[derive(Clone, Copy, Debug)]
pub enum StatedLimit {
    /// So many in each window of so many seconds.
    Window { hits: u64, seconds: u64 },
    /// So many at once, and so many come back in each second.
    Bucket { burst: u64, per_second: f64 },
}

/// A row of equal requests, and what became of them.
pub struct RequestSeries {
    pub replies: Vec<Reply>,
    began: Duration,
    ended: Duration,
}

/// Now, by the clock that limits count with.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970")
}

impl StatedLimit {
    fn at_once(self) -> u64 {
        match self {
            StatedLimit::Window { hits, .. } => hits,
            StatedLimit::Bucket { burst, .. } => burst,
        }
    }

    /// How many of a row that is longer than the limit must and may pass, if it finds the counter
    /// unused.
    fn may_admit(self, began: Duration, ended: Duration) -> RangeInclusive<u64> {
        match self {
            StatedLimit::Window { hits, seconds } => {
                let windows = ended.as_secs() / seconds - began.as_secs() / seconds + 1;
                hits..=hits * windows
            }
            StatedLimit::Bucket { burst, per_second } => {
                let refilled = (ended - began).as_secs_f64() * per_second;
                burst..=burst + refilled as u64
            }
        }
    }
}

impl RequestSeries {
    pub fn of(edge: &Envoy, requests: impl IntoIterator<Item = Request>) -> RequestSeries {
        let began = now();
        let replies = requests.into_iter().map(|request| edge.ask(&request)).collect();
        RequestSeries { replies, began, ended: now() }
    }

    pub fn admitted(&self) -> u64 {
        self.replies.iter().filter(|reply| reply.status != 429).count() as u64
    }

    /// The first refusal.
    pub fn refusal(&self) -> &Reply {
        self.replies.iter().find(|reply| reply.status == 429).expect("a refusal")
    }

    /// Panics unless exactly as many passed as the limit allows in the time that the row took.
    pub fn assert_limited_by(&self, limit: StatedLimit) {
        let statuses: Vec<u16> = self.replies.iter().map(|reply| reply.status).collect();
        assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
        let may = limit.may_admit(self.began, self.ended);
        assert!(may.contains(&self.admitted()), "{limit:?} may admit {may:?}: {statuses:?}");
        let first = limit.at_once() as usize;
        assert!(statuses[..first].iter().all(|&status| status == 200), "{limit:?}: {statuses:?}");
    }
}

/// Sends equal requests that were not counted yet until they are refused, and a few more; panics
/// unless exactly the limit passes. Returns the first refusal.
pub fn assert_limited(edge: &Envoy, request: &Request, limit: StatedLimit) -> Reply {
    let began = now();
    let (mut replies, mut refusals) = (Vec::new(), 0);
    while refusals < REFUSALS {
        assert!(now() - began < PATIENCE, "{limit:?} is not reached after {}", replies.len());
        let reply = edge.ask(request);
        refusals += u64::from(reply.status == 429);
        replies.push(reply);
    }
    let row = RequestSeries { replies, began, ended: now() };
    row.assert_limited_by(limit);
    row.refusal().clone()
}
