//! `tidegate test`: makes the calls of test files in simulated time, with counters in memory, and
//! compares the answers.
//!
//! Not here: the format of test files (the package in `load/simulate`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use tidegate_simulate::{Ask, AskedDescriptor, Expected, PolicyTest, Step, TestFile};

use super::ask_command::parse_entries;
use super::flags::{CounterFlags, SettingFlags};
use super::terminal;
use crate::app::{self, Failure, OfflineEngine};
use crate::domain::{Bounds, Micros, RetryAfterFormat};
use crate::policy::Policy;
use crate::settings::{self, Sources, TextMap};
use crate::wire::decode::{self, DecodedRequest};
use crate::wire::encode::ResponseInput;
use crate::wire::messages::rate_limit_descriptor::RateLimitOverride;
use crate::wire::messages::rate_limit_response::{DescriptorStatus, RateLimit};
use crate::wire::messages::{
    HeaderValue, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitUnit,
};
use crate::wire::{ResponseConfig, ResponseSettings};

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Test {
    /// Test files, each with the paths of a policy, calls, and the expected answers
    #[arg(required = true, value_name = "TEST.yaml")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    settings: SettingFlags<CounterFlags>,
}

const AFTER_HELP: &str = "\
A test file:
  policy: [first.yaml]
  tests:
    - name: five at once, then one every 12 s
      steps:
        - {at: 0s, times: 5, ask: {domain: edge, descriptors: ['api_token=demo']}, expect: {code: OK}}
        - {at: 10s, ask: {domain: edge, descriptors: ['api_token=demo']},
           expect: {code: OVER_LIMIT, limit: 5/minute, remaining: 0, retry_after: 2s}}

Example:
  tidegate test config/first.test.yaml

Exit codes: 1 a test failed, 65 a test file or a policy is wrong.";

/// Capacity of the memory store for one test, in counters. Unused capacity uses no memory.
const STORE_COUNTERS_MAX: usize = 1_000_000;

/// Test whose texts were read.
struct LoadedTest {
    /// Path of the file and name of the test.
    title: String,
    policy: Arc<Policy>,
    calls: Vec<Call>,
}

/// Step of a test, with its call as a caller sends it.
struct Call {
    step: Step,
    at: Micros,
    encoded: Vec<u8>,
}

impl Test {
    pub(super) fn run(self, environment: &TextMap) -> Result<(), Failure> {
        let sources = self.settings.read_used_sources(environment)?;
        let (mut tests, mut failed) = (Vec::new(), 0);
        for path in &self.files {
            tests.extend(load(path, sources.clone())?);
        }
        for test in &tests {
            if let Some(report) = run_test(test)? {
                failed += 1;
                terminal::print(&format!("FAILED {}\n{report}", test.title))?;
            }
        }
        match (failed, tests.len()) {
            (0, 1) => terminal::print("1 test passed\n"),
            (0, tests) => terminal::print(&format!("{tests} tests passed\n")),
            (failed, tests) => Err(Failure::TestsFailed { failed, tests }),
        }
    }
}

/// Reads a test file and its policy.
fn load(path: &Path, sources: Sources) -> Result<Vec<LoadedTest>, Failure> {
    let wrong = |reason: String| Failure::InvalidPolicy(reason);
    let text = app::read_text_file(path)?;
    let file = TestFile::parse(&path.display().to_string(), &text);
    let file = file.map_err(|error| wrong(error.to_string()))?;
    let start: jiff::Timestamp = file.start.parse().map_err(|_| {
        wrong(format!(
            "{}: `start` must be a time such as 2024-01-01T00:00:00Z, not {:?}",
            path.display(),
            file.start
        ))
    })?;
    let start = Micros(u64::try_from(start.as_microsecond()).unwrap_or_default());
    let title = |test: &PolicyTest| format!("{}: {}", path.display(), test.name);
    let load_calls = |test: &PolicyTest| {
        load_calls(test, start).map_err(|reason| wrong(format!("{}: {reason}", title(test))))
    };
    let calls = file.tests.iter().map(load_calls).collect::<Result<Vec<_>, Failure>>()?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = file.policy.iter().map(|path| directory.join(path)).collect();
    let policy = Arc::new(app::load_paths(&paths, sources)?.0.policy);
    let loaded =
        |(test, calls)| LoadedTest { title: title(test), policy: Arc::clone(&policy), calls };
    Ok(file.tests.iter().zip(calls).map(loaded).collect())
}

/// Reads the texts of a test's steps. Returns what is wrong with the first wrong one.
fn load_calls(test: &PolicyTest, start: Micros) -> Result<Vec<Call>, String> {
    let mut calls: Vec<Call> = Vec::new();
    for (step, nth) in test.steps.iter().zip(1..) {
        let in_step = |reason: String| format!("step {nth}: {reason}");
        let elapsed = settings::parse_elapsed(&step.at);
        let elapsed = elapsed.map_err(|error| in_step(format!("`at` {error}")))?;
        let elapsed = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let at = start.saturating_add(Micros(elapsed));
        if calls.last().is_some_and(|before| before.at > at) {
            return Err(in_step(
                "`at` is before the step above; sort the steps by time".to_owned(),
            ));
        }
        if let Some(wait) = step.expect.retry_after.as_ref().filter(|wait| *wait != NONE) {
            let seconds = settings::parse_elapsed(wait).ok().filter(|it| it.subsec_nanos() == 0);
            seconds.ok_or_else(|| {
                in_step("`retry_after` must be whole seconds, such as 2s, or none".to_owned())
            })?;
        }
        let encoded = decode::encode_message(&build_request(&step.ask).map_err(in_step)?);
        DecodedRequest::decode(&encoded, &Bounds::DEFAULT)
            .map_err(|error| in_step(format!("`ask`: {error}")))?;
        calls.push(Call { step: step.clone(), at, encoded });
    }
    Ok(calls)
}

/// Word for the absence of a limit or of Retry-After.
const NONE: &str = "none";

/// Returns the message that a caller would send.
fn build_request(ask: &Ask) -> Result<RateLimitRequest, String> {
    let descriptor = |descriptor: &AskedDescriptor| {
        Ok(RateLimitDescriptor {
            entries: parse_entries(&descriptor.entries).map_err(|error| error.to_string())?,
            // As in `tidegate ask`.
            hits_addend: descriptor.hits.or((ask.hits == 0).then_some(0)),
            is_negative_hits: descriptor.refund,
            limit: descriptor.limit.as_deref().map(parse_limit).transpose()?,
        })
    };
    Ok(RateLimitRequest {
        domain: ask.domain.clone().into(),
        descriptors: ask.descriptors.iter().map(descriptor).collect::<Result<_, String>>()?,
        hits_addend: ask.hits,
    })
}

/// Reads a limit such as `4/minute` or `30/10 second`.
fn parse_limit(text: &str) -> Result<RateLimitOverride, String> {
    let read = || {
        let (requests, unit) = text.split_once('/')?;
        let (multiplier, unit) = unit.split_once(' ').unwrap_or(("1", unit));
        Some(RateLimitOverride {
            requests_per_unit: requests.parse().ok()?,
            unit: RateLimitUnit::from_str_name(&unit.to_ascii_uppercase())?.into(),
            unit_multiplier: Some(multiplier.parse().ok()?),
        })
    };
    read()
        .ok_or_else(|| format!("`limit` must be written as 4/minute or 30/10 second, not {text:?}"))
}

/// Formats the limit of a status as [`parse_limit`] reads it. Slots have no unit.
fn format_limit(limit: Option<&RateLimit>) -> String {
    let Some(limit) = limit else { return NONE.to_owned() };
    let requests = limit.requests_per_unit;
    let word = limit.unit().as_str_name().to_ascii_lowercase();
    match limit.unit_multiplier {
        _ if word == "unknown" => requests.to_string(),
        None | Some(1) => format!("{requests}/{word}"),
        Some(several) => format!("{requests}/{several} {word}"),
    }
}

/// Runs a test up to its first step that fails. Returns a report of that step, or `None` if the test
/// passes.
fn run_test(LoadedTest { policy, calls, .. }: &LoadedTest) -> Result<Option<String>, Failure> {
    let engine = OfflineEngine::new(Arc::clone(policy), STORE_COUNTERS_MAX);
    let retry_after = Some(RetryAfterFormat::Seconds);
    let response_config =
        ResponseConfig::new(ResponseSettings { retry_after, ..ResponseSettings::default() })?;
    for (call, nth) in calls.iter().zip(1..) {
        let decoded = DecodedRequest::decode(&call.encoded, &Bounds::DEFAULT)
            .map_err(|_| Failure::Bug("a call was valid and no longer is"))?;
        let descriptors = decoded.descriptors();
        for time in 1..=call.step.times {
            let decision = engine.decide(&decoded.request(&descriptors), call.at)?;
            let input = ResponseInput {
                request: &decoded,
                descriptors: &descriptors,
                decision: &decision,
                rules: policy,
                response_config: &response_config,
                now: call.at,
                random: 0,
            };
            let response = input.to_message();
            let differences = compare(&call.step.expect, &response);
            if differences.is_empty() {
                continue;
            }
            let Step { at, times, .. } = &call.step;
            let mut report = format!("  step {nth}, at {at}, call {time} of {times}\n");
            for (what, expected, came) in differences {
                // Writing into a string cannot fail.
                let _ = writeln!(report, "    {what}: expected {expected}, got {came}");
            }
            for descriptor in &descriptors {
                let explanation = policy.explain(decoded.domain, descriptor.entries).to_string();
                for line in explanation.lines() {
                    let _ = writeln!(report, "    {line}");
                }
            }
            return Ok(Some(report));
        }
    }
    Ok(None)
}

/// Returns the names of the values that differ, with the expected value and the one that came.
fn compare(
    expected: &Expected,
    response: &RateLimitResponse,
) -> Vec<(&'static str, String, String)> {
    let Expected { code, retry_after, marks, limit, remaining } = expected;
    let header = |header: &HeaderValue| (header.key.clone(), header.value.clone());
    let response_headers: BTreeMap<String, String> =
        response.response_headers_to_add.iter().map(header).collect();
    let wait = response_headers.get("Retry-After").map_or(NONE.to_owned(), |it| format!("{it}s"));
    let marks_came: BTreeMap<String, String> =
        response.request_headers_to_add.iter().map(header).collect();
    let of_each = |value: &dyn Fn(&DescriptorStatus) -> String| -> String {
        response.statuses.iter().map(value).collect::<Vec<_>>().join(", ")
    };
    let in_seconds = |text: &String| match settings::parse_elapsed(text) {
        Ok(wait) => format!("{}s", wait.as_secs()),
        Err(_) => text.clone(),
    };
    let pairs = [
        (
            "code",
            code.map(|code| code.as_str().to_owned()),
            response.overall_code().as_str_name().to_owned(),
        ),
        (
            "limit",
            limit.as_ref().map(|limit| limit.values().join(", ")),
            of_each(&|status| format_limit(status.current_limit.as_ref())),
        ),
        (
            "remaining",
            remaining.as_ref().map(|it| {
                it.values().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }),
            of_each(&|status| status.limit_remaining.to_string()),
        ),
        ("retry_after", retry_after.as_ref().map(in_seconds), wait),
        ("marks", marks.as_ref().map(|marks| format!("{marks:?}")), format!("{marks_came:?}")),
    ];
    let differs = |(what, expected, came): (&'static str, Option<String>, String)| {
        Some((what, expected.filter(|expected| *expected != came)?, came))
    };
    pairs.into_iter().filter_map(differs).collect()
}
