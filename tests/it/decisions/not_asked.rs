//! Decisions in which the store was not asked about some limits, or did not answer.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate::decide::{Decider, GlobalModes};
use tidegate::domain::{
    Answer, Answers, Call, Code, ExecutionStatus, Hits, Micros, Receipt, Request, Source,
    WaitPrecision,
};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::server::RlsService;
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;
use tidegate::wire::ResponseConfig;

use super::test_decider::{
    NOON, RecordedEvents, TestDecision, TestDescriptor, answered, compiled, d,
};
use crate::grpc::test_server::encoded;

const POLICY: &str = "
domain: t
descriptors:
  - key: wide
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: five
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: narrow
    rate_limit: {algorithm: sliding_log, unit: minute, requests_per_unit: 1}
  - key: day
    rate_limit: {algorithm: sliding_log, unit: day, requests_per_unit: 1}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1, on_store_failure: error}
  - key: error
    rate_limit: {unit: hour, requests_per_unit: 1, on_store_failure: error}
";

/// A store that never answers.
struct Absent;

impl Store for Absent {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let unanswered = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
        Answers::new(vec![unanswered; call.checks.len()], Source::Redis)
    }

    async fn refund(&self, _: &[Receipt]) {}
}

struct Bench<S> {
    decider: Decider<S, RecordedEvents>,
    events: RecordedEvents,
}

impl<S: Store> Bench<S> {
    fn new(store: S, modes: GlobalModes) -> Bench<S> {
        let events = RecordedEvents::default();
        let policy = Arc::new(compiled(POLICY));
        Bench { decider: Decider::new(policy, store, Arc::new(events.clone()), modes), events }
    }

    /// The decision on a call a given time after noon; `None` if the store did not answer.
    async fn ask(&self, after: Micros, descriptors: &[TestDescriptor]) -> Option<TestDecision> {
        let policy = self.decider.policy();
        let entries: Vec<_> = descriptors.iter().map(TestDescriptor::entries).collect();
        let each = descriptors.iter().zip(&entries);
        let each: Vec<_> = each.map(|(descriptor, entries)| descriptor.of(entries)).collect();
        let request = Request { domain: "t", descriptors: &each };
        let now = NOON.saturating_add(after);
        self.decider.decide(&policy, &request, now).await.ok().map(|decision| answered(&decision))
    }
}

fn cached() -> Bench<Arc<Stack<MemoryStore, MemoryStore>>> {
    let [remote, local] = [1_000; 2].map(MemoryStore::new);
    let stack = Stack::new(remote, local, StackConfig::default(), Clock::System);
    Bench::new(stack, GlobalModes::default())
}

#[tokio::test]
async fn a_limit_that_was_not_asked_shows_what_was_last_known() {
    let bench = cached();
    let both = [d("wide=a"), d("narrow=a")];
    for _ in 0..2 {
        bench.ask(Micros::ZERO, &both).await;
    }
    let answer = bench.ask(Micros::ZERO, &both).await.unwrap();
    assert_eq!((answer.code, answer.source), (Code::OverLimit, Source::Cached));
    let wide = &answer.rows[0];
    assert_eq!((wide.code, wide.limit, wide.remaining), (Code::Ok, Some(100), 99));
    assert!(wide.reset_s.is_some_and(|reset| (1..=3_600).contains(&reset)), "{wide:?}");
    // Nothing is known about another counter beside the same refusal.
    let answer = bench.ask(Micros::ZERO, &[d("wide=b"), d("narrow=a")]).await.unwrap();
    let wide = &answer.rows[0];
    assert_eq!((wide.limit, wide.remaining, wide.reset_s), (Some(100), 100, None));
}

#[tokio::test]
async fn the_wait_is_at_least_the_known_one_if_a_limit_was_not_asked() {
    let bench = cached();
    bench.ask(Micros::ZERO, &[d("day=a")]).await;
    for _ in 0..2 {
        bench.ask(Micros::SECOND, &[d("narrow=a")]).await;
    }
    let both = [d("day=a"), d("narrow=a")];
    let answer = bench.ask(Micros::SECOND, &both).await.unwrap();
    assert_eq!(answer.source, Source::Cached);
    assert_eq!(answer.retry_after, Some(Micros::from_secs(60)));
    assert_eq!(answer.precision, Some(WaitPrecision::AtLeast));
    // After a second the cache asks the store about all limits.
    let answer = bench.ask(Micros::from_secs(2), &both).await.unwrap();
    assert_eq!(answer.retry_after, Some(Micros::from_secs(86_400 - 2)));
    assert_eq!(answer.precision, Some(WaitPrecision::Exact));
    let alone = bench.ask(Micros::from_secs(2), &[d("narrow=a")]).await.unwrap();
    assert_eq!((alone.source, alone.precision), (Source::Cached, Some(WaitPrecision::Exact)));
}

#[tokio::test]
async fn hits_of_a_rejected_call_are_counted_whether_the_store_was_asked_or_not() {
    let bench = cached();
    let both = [d("wide=a").hits(3), d("narrow=a")];
    bench.ask(Micros::ZERO, &both).await;
    for source in [Source::Memory, Source::Cached] {
        bench.events.0.lock().unwrap().clear();
        assert_eq!(bench.ask(Micros::ZERO, &both).await.unwrap().source, source);
        let events = std::mem::take(&mut *bench.events.0.lock().unwrap());
        assert_eq!(events.len(), 2, "{source:?}");
        let wide = &events[0];
        assert_eq!((wide.hits, wide.outcome.charged, wide.admitted), (Hits(3), Hits(0), false));
        assert_eq!(wide.decided, source == Source::Memory);
    }
}

#[tokio::test]
async fn shadow_mode_lets_every_call_pass_without_the_store_too() {
    let bench = Bench::new(Absent, GlobalModes::default());
    assert!(bench.ask(Micros::ZERO, &[d("shadow=a")]).await.unwrap().passes());
    assert!(bench.events.0.lock().unwrap().is_empty(), "nobody decided the check");
    assert!(bench.ask(Micros::ZERO, &[d("error=a")]).await.is_none());
    let bench = Bench::new(Absent, GlobalModes { shadow: true, quota: false });
    for descriptors in [&[d("error=a")][..], &[d("shadow=a"), d("error=a")]] {
        let answer = bench.ask(Micros::ZERO, descriptors).await.unwrap();
        assert!(answer.passes() && answer.shadowed);
    }
}

#[tokio::test]
async fn what_was_last_known_of_a_limit_is_shown_until_its_reset() {
    let bench = cached();
    let both = [d("wide=a"), d("narrow=a")];
    for _ in 0..2 {
        bench.ask(Micros::ZERO, &both).await;
    }
    let wide = bench.ask(Micros::ZERO, &both[..1]).await.unwrap().rows.remove(0);
    let reset = Micros::from_secs(wide.reset_s.unwrap());
    // Calls of the narrow limit alone keep its refusal cached, and the wide one is not asked again.
    for (after, remaining) in [(Micros(reset.0 - 1_000_000), 98), (reset, 100)] {
        for _ in 0..2 {
            bench.ask(after, &both[1..]).await;
        }
        let answer = bench.ask(after, &both).await.unwrap();
        assert_eq!(answer.source, Source::Cached, "{after:?}");
        assert_eq!(answer.rows[0].remaining, remaining, "{after:?}");
        assert_eq!(answer.rows[0].reset_s.is_some(), remaining == 98, "{after:?}");
    }
}

#[tokio::test]
async fn a_limit_that_was_not_asked_shows_what_a_call_of_that_limit_alone_left() {
    let bench = cached();
    for left in (0..5).rev() {
        assert_eq!(bench.ask(Micros::ZERO, &[d("five=a")]).await.unwrap().rows[0].remaining, left);
    }
    for _ in 0..2 {
        bench.ask(Micros::ZERO, &[d("narrow=a")]).await;
    }
    let both = [d("five=a"), d("narrow=a")];
    let answer = bench.ask(Micros::ZERO, &both).await.unwrap();
    assert_eq!((answer.code, answer.source), (Code::OverLimit, Source::Cached));
    assert_eq!((answer.rows[0].code, answer.rows[0].remaining), (Code::Ok, 0));
    // A refund by a call of its own, too.
    bench.ask(Micros::ZERO, &[d("five=a").refund(2)]).await;
    assert_eq!(bench.ask(Micros::ZERO, &both).await.unwrap().rows[0].remaining, 2);
}

#[tokio::test]
async fn hits_on_a_counter_of_which_nothing_is_known_are_counted_too() {
    let bench = cached();
    for _ in 0..2 {
        bench.ask(Micros::ZERO, &[d("narrow=a")]).await;
    }
    bench.events.0.lock().unwrap().clear();
    let answer = bench.ask(Micros::ZERO, &[d("wide=b").hits(3), d("narrow=a")]).await.unwrap();
    assert_eq!((answer.code, answer.source), (Code::OverLimit, Source::Cached));
    let events = bench.events.0.lock().unwrap();
    let hits: Vec<_> = events.iter().map(|event| (event.hits, event.decided)).collect();
    assert_eq!(hits, [(Hits(3), false), (Hits(1), true)]);
}

/// Remembers the deadline of the latest call.
struct DeadlineRecorder {
    store: MemoryStore,
    latest: Arc<Mutex<Option<Instant>>>,
}

impl Store for DeadlineRecorder {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        *self.latest.lock().unwrap() = call.deadline;
        self.store.apply(call).await
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.store.refund(receipts).await;
    }
}

/// Without it, the fallback of a slow store would decide only after the caller has left.
#[tokio::test]
async fn the_store_is_told_the_deadline_of_the_caller() {
    let policy =
        "{domain: t, descriptors: [{key: ip, rate_limit: {unit: hour, requests_per_unit: 1}}]}";
    let latest = Arc::<Mutex<Option<Instant>>>::default();
    let store = DeadlineRecorder { store: MemoryStore::new(1_000), latest: Arc::clone(&latest) };
    let decider =
        Decider::new(Arc::new(compiled(policy)), store, Arc::new(()), GlobalModes::default());
    let service = RlsService::new(Arc::new(decider), Clock::System, ResponseConfig::default());
    let hour = Duration::from_secs(3_600);
    let before = Clock::System.monotonic_now();
    service.answer_encoded(&encoded("t"), Some(hour)).await.unwrap();
    let after = Clock::System.monotonic_now();
    let deadline = latest.lock().unwrap().expect("a deadline");
    assert!((before + hour..=after + hour).contains(&deadline));
    service.answer_encoded(&encoded("t"), None).await.unwrap();
    assert_eq!(*latest.lock().unwrap(), None);
}
