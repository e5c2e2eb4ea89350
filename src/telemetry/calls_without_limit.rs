//! Calls to which no limit applies: counters by domain and reason, a summary of the most frequent
//! ones in the log, and a sample for debugging.
//!
//! Callers choose domains and keys, so the number and the length of what is kept are bounded: 256
//! calls of 640 bytes and 2,112 names of 64 bytes, which take less than 1 MiB.
//!
//! Not here: why no limit applies, and what the policy has that is nearest (`policy`).

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use super::top_keys::FrequentKeys;
use crate::domain::{Entry, Lock, NoLimitReason, Request, escaped, escaped_prefix, truncate_utf8};

/// Maximum number of lines per summary, which is written at most once a minute.
const SUMMARY_LINES_MAX: usize = 10;
/// Minimum time between two summaries, 1 min.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);
/// Time from the first call to the first summary, 5 s, so that the line has a rate of calls and
/// still appears while somebody tries a new configuration.
const FIRST_SUMMARY_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of tracked calls. A call with more than 1/256 of a minute's calls is in the
/// summary.
const TRACKED_CALLS_MAX: usize = 256;
/// Maximum length of a domain or a key, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Maximum length of all keys of a tracked call, in bytes. Eight long keys fit.
const KEYS_BYTES_MAX: usize = 512;
/// Maximum number of domain names by reason: of the policy, 1,024; sent by callers, 64.
const DOMAINS_MAX: [usize; NoLimitReason::ALL.len()] = [64, 1_024, 1_024];
/// Name under which calls beyond [`DOMAINS_MAX`] are counted.
const OTHER_DOMAINS: &str = "(other)";

/// Domain and keys of calls to which no limit applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLimitCalls {
    /// Reason why no limit applies.
    pub reason: NoLimitReason,
    /// Domain, with control characters escaped; at most 64 bytes.
    pub domain: String,
    /// Keys of the descriptors: a line for each descriptor, with a tab between its keys. If the
    /// domain is unknown, those of one of the calls.
    keys: String,
}

impl NoLimitCalls {
    fn new(request: &Request<'_>, reason: NoLimitReason) -> NoLimitCalls {
        let mut keys = String::new();
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            for (position, Entry { key, .. }) in descriptor.entries.iter().enumerate() {
                // Escaped keys contain neither.
                keys.push_str(if position > 0 {
                    "\t"
                } else if at > 0 {
                    "\n"
                } else {
                    ""
                });
                keys.push_str(&escaped_prefix(key, NAME_BYTES_MAX));
            }
            if keys.len() > KEYS_BYTES_MAX {
                keys.truncate(truncate_utf8(keys.as_bytes(), KEYS_BYTES_MAX).len());
                keys.push('…');
                break;
            }
        }
        let domain = escaped_prefix(request.domain.as_bytes(), NAME_BYTES_MAX);
        NoLimitCalls { reason, domain, keys }
    }

    /// Returns the keys of each descriptor.
    pub fn descriptors(&self) -> impl Iterator<Item = Vec<&str>> {
        self.keys.lines().map(|keys| keys.split('\t').collect())
    }

    /// Returns the keys as text for operators.
    fn display_keys(&self) -> String {
        self.keys.replace('\t', ", ").replace('\n', " | ")
    }
}

/// Function that returns advice for operators on calls without a limit.
pub type Advise<'a> = &'a dyn Fn(&NoLimitCalls) -> String;

/// Number of calls without a limit, by domain and reason, since the process started.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NoLimitCount {
    /// Domain, at most 64 bytes, or `(other)`.
    pub domain: String,
    /// Reason why no limit applied, as in the metric label `reason`.
    pub reason: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Advice from the last summary in the log; empty if there was none in the last minute, or if it
    /// did not name the domain.
    pub advice: String,
}

type Domains = BTreeMap<Arc<str>, Arc<AtomicU64>>;

/// Counters and statistics of calls to which no limit applies.
#[derive(Debug, Default)]
pub(super) struct CallsWithoutLimit {
    domains: [ArcSwap<Domains>; NoLimitReason::ALL.len()],
    /// Hashes keys, so that callers cannot choose calls that are counted together.
    hasher: RandomState,
    /// Whether the next call should be sampled for a line at `debug`.
    wants_sample: AtomicBool,
    summary: Lock<Summary>,
}

#[derive(Debug)]
struct Summary {
    calls: FrequentKeys<NoLimitCalls>,
    /// Earliest time of the next summary.
    due: Option<Instant>,
    /// Domain of a sampled call, and how it matched.
    sample: Option<(String, String)>,
    /// Advice of the last summary; empty a minute later if all calls meet a limit.
    advice: Vec<(NoLimitCalls, String)>,
}

impl Default for Summary {
    fn default() -> Self {
        let calls = FrequentKeys::new(TRACKED_CALLS_MAX);
        Summary { calls, due: None, sample: None, advice: Vec::new() }
    }
}

impl CallsWithoutLimit {
    /// Counts a call. Calls with a value that the policy does not list, which may be most calls,
    /// only increment a counter. The others take a lock for less than a microsecond.
    pub(super) fn record(
        &self,
        request: &Request<'_>,
        reason: NoLimitReason,
        explain: &dyn Fn() -> String,
    ) {
        self.count(request.domain, reason);
        if self.wants_sample.load(Ordering::Relaxed)
            && self.wants_sample.swap(false, Ordering::Relaxed)
        {
            let domain = escaped_prefix(request.domain.as_bytes(), NAME_BYTES_MAX);
            let sample = (domain, explain());
            self.summary.lock().sample = Some(sample);
        }
        if reason != NoLimitReason::UnlistedValue {
            let id = self.hash(request, reason);
            self.summary.lock().calls.add(id, 1, || NoLimitCalls::new(request, reason));
        }
    }

    fn hash(&self, request: &Request<'_>, reason: NoLimitReason) -> u128 {
        let mut hasher = self.hasher.build_hasher();
        request.domain.hash(&mut hasher);
        // Wrong keys in a wrong domain are one mistake.
        if reason == NoLimitReason::UnknownKeys {
            for descriptor in request.descriptors {
                descriptor.entries.len().hash(&mut hasher);
                descriptor.entries.iter().for_each(|entry| entry.key.hash(&mut hasher));
            }
        }
        hasher.finish().into()
    }

    /// Adds a call to the counter of its domain. Allocates only for the first call of a domain.
    fn count(&self, domain: &str, reason: NoLimitReason) {
        let name = &domain[..truncate_utf8(domain.as_bytes(), NAME_BYTES_MAX).len()];
        let (domains, domains_max) = (&self.domains[reason as usize], DOMAINS_MAX[reason as usize]);
        let known = domains.load();
        if let Some(count) = known.get(name) {
            count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let name = if known.len() < domains_max { name } else { OTHER_DOMAINS };
        if !known.contains_key(name) {
            domains.rcu(|known| {
                let mut domains = Domains::clone(known);
                domains.entry(name.into()).or_default();
                domains
            });
        }
        if let Some(count) = domains.load().get(name) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of calls by reason and domain.
    pub(super) fn counts(&self) -> Vec<NoLimitCount> {
        let summary = self.summary.lock();
        let of_reason = |reason: NoLimitReason| {
            let domains = self.domains[reason as usize].load_full();
            let count = |(name, calls): (&Arc<str>, &Arc<AtomicU64>)| {
                let domain = escaped(name).into_owned();
                let mut named = summary.advice.iter();
                let named = named.find(|(at, _)| (&at.domain, at.reason) == (&domain, reason));
                let advice = named.map_or_else(String::new, |(_, advice)| advice.clone());
                let (calls, reason) = (calls.load(Ordering::Relaxed), reason.as_str());
                NoLimitCount { domain, reason, calls, advice }
            };
            domains.iter().map(count).collect::<Vec<_>>()
        };
        NoLimitReason::ALL.into_iter().flat_map(of_reason).collect()
    }

    /// Logs the sampled call, and the summary if one is due. Call this about once a second.
    pub(super) fn write(&self, now: Instant, advise: Advise<'_>) {
        self.wants_sample.store(tracing::enabled!(tracing::Level::DEBUG), Ordering::Relaxed);
        let (sample, calls) = {
            let mut summary = self.summary.lock();
            let calls = summary.take_due(now);
            (summary.sample.take(), calls)
        };
        if let Some((domain, descriptors)) = sample {
            tracing::debug!(domain, descriptors, "no limit applies to a call");
        }
        let Some(calls) = calls else { return };
        let total = calls.total();
        let top = calls.into_top(SUMMARY_LINES_MAX);
        let listed: u64 = top.iter().map(|(_, count)| count).sum();
        let lines = top.len();
        let mut advised = Vec::with_capacity(lines);
        for (at, (without, calls)) in top.into_iter().enumerate() {
            let advice = advise(&without);
            let (domain, keys) = (&without.domain, without.display_keys());
            // The last line also counts the calls that no line names.
            let others = (at + 1 == lines && total > listed).then(|| total - listed);
            let reason = without.reason.as_str();
            tracing::warn!(
                domain,
                reason,
                keys,
                calls,
                advice,
                others,
                "calls admitted because no limit applies"
            );
            advised.push((without, advice));
        }
        self.summary.lock().advice = advised;
    }
}

impl Summary {
    /// Returns the calls to sum up, and begins to collect new ones; `None` if no summary is due.
    fn take_due(&mut self, now: Instant) -> Option<FrequentKeys<NoLimitCalls>> {
        if self.calls.total() == 0 {
            self.due = self.due.filter(|due| now < *due);
            if self.due.is_none() {
                self.advice.clear();
            }
            return None;
        }
        if now < *self.due.get_or_insert(now + FIRST_SUMMARY_DELAY) {
            return None;
        }
        self.due = Some(now + SUMMARY_INTERVAL);
        Some(mem::replace(&mut self.calls, FrequentKeys::new(TRACKED_CALLS_MAX)))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the clock's origin is a real instant")]
mod tests {
    use super::*;
    use crate::domain::{Descriptor, Hits};

    /// Records a call with one descriptor, which has these keys.
    fn record(calls: &CallsWithoutLimit, reason: NoLimitReason, domain: &str, keys: &[&str]) {
        let entries: Vec<Entry<'_>> =
            keys.iter().map(|key| Entry { key: key.as_bytes(), value: b"secret" }).collect();
        let descriptors = [Descriptor {
            entries: &entries,
            hits: Hits(1),
            has_hits_addend: false,
            refund: false,
            limit: None,
            holder: None,
            hold: None,
        }];
        let request = Request { domain, descriptors: &descriptors };
        calls.record(&request, reason, &String::new);
    }

    fn seconds(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// Writes the summary that is due, and returns the domains it names.
    fn written(calls: &CallsWithoutLimit, now: Instant) -> Vec<String> {
        let domains = Lock::new(Vec::new());
        calls.write(now, &|unlimited| {
            domains.lock().push(unlimited.domain.clone());
            "advice".to_owned()
        });
        domains.into_inner()
    }

    #[test]
    fn a_hundred_thousand_domains_or_key_sequences_take_at_most_1_mib_and_10_lines_a_minute() {
        for reason in [NoLimitReason::UnknownDomain, NoLimitReason::UnknownKeys] {
            let (calls, start, mut lines) = (CallsWithoutLimit::default(), Instant::now(), 0);
            let measured = allocation_counter::measure(|| {
                written(&calls, start);
                for at in 0..100_000 {
                    let (long, number) = ("x".repeat(300), format!("{at}-{}", "y".repeat(100)));
                    match reason {
                        NoLimitReason::UnknownDomain => record(&calls, reason, &number, &[&long]),
                        _ => record(&calls, reason, "edge", &[&number, &long, &long, &long]),
                    }
                    // A minute passes in which a summary could be due at each of 60 seconds.
                    if at % 1_000 == 0 && at < 60_000 {
                        lines += written(&calls, seconds(start, at / 1_000)).len();
                    }
                }
            });
            assert!(lines <= SUMMARY_LINES_MAX, "{lines}");
            assert!(measured.bytes_max <= 1 << 20, "{measured:?}");
            println!("{reason:?}: {} bytes at most", measured.bytes_max);
        }
    }

    #[test]
    fn the_ten_most_frequent_calls_are_named_also_those_that_come_last() {
        let (calls, start) = (CallsWithoutLimit::default(), Instant::now());
        let reason = NoLimitReason::UnknownDomain;
        (0..20_000).for_each(|at| record(&calls, reason, &format!("rare-{at}"), &["k"]));
        let names: Vec<String> = (0..10).map(|at| format!("often-{at}")).collect();
        for (at, name) in names.iter().enumerate() {
            (at..200).for_each(|_| record(&calls, reason, name, &["k"]));
        }
        assert_eq!(written(&calls, start), [""; 0], "none is due yet");
        assert_eq!(written(&calls, seconds(start, 5)), names);
    }

    #[test]
    fn a_summary_is_written_five_seconds_after_the_first_call_and_then_once_a_minute() {
        let (calls, start) = (CallsWithoutLimit::default(), Instant::now());
        let call = || record(&calls, NoLimitReason::UnknownKeys, "edge", &["k"]);
        let mut at = Vec::new();
        for second in 0..300 {
            if (10..150).contains(&second) || second == 260 {
                call();
            }
            if !written(&calls, seconds(start, second)).is_empty() {
                at.push(second);
            }
            let is_advised = calls.counts().iter().any(|count| !count.advice.is_empty());
            let expected = (15..255).contains(&second) || second >= 265;
            assert_eq!(is_advised, expected, "{second}");
        }
        assert_eq!(at, [15, 75, 135, 195, 265]);
    }

    #[test]
    fn a_call_of_a_known_domain_with_an_unlisted_value_allocates_nothing() {
        let calls = CallsWithoutLimit::default();
        let reason = NoLimitReason::UnlistedValue;
        record(&calls, reason, "edge", &[]);
        let measured = allocation_counter::measure(|| record(&calls, reason, "edge", &[]));
        assert_eq!(measured.count_total, 0);
        assert_eq!(calls.counts()[0].calls, 2);
    }
}
