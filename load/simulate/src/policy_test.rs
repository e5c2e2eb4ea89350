//! Test files of `tidegate test`: policies, and steps with a call and the answer that it should get.
//!
//! Not here: running the steps, and the texts of times, descriptors, and limits
//! (`src/cli/test_command.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize as DeriveDeserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use crate::UsageError;
use crate::scenario::{ScenarioError, format_error};

/// Parsed test file. Unknown keys in the file are errors.
#[derive(Debug, Clone, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct TestFile {
    /// Policy files or directories, relative to the directory of the test file.
    pub policy: Vec<PathBuf>,
    /// Time at which every test starts, in RFC 3339.
    #[serde(default = "default_start")]
    pub start: String,
    /// Tests. Each begins without counters.
    pub tests: Vec<PolicyTest>,
}

/// Test of a policy.
#[derive(Debug, Clone, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyTest {
    /// Name of the test in reports.
    pub name: String,
    /// Calls, in the order of their times.
    pub steps: Vec<Step>,
}

/// Call that is made once or several times, and the answer that it should get each time.
#[derive(Debug, Clone, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Time since the start of the test, such as `10s`.
    pub at: String,
    /// Number of calls.
    #[serde(default = "default_times")]
    pub times: u32,
    /// Call to make.
    pub ask: Ask,
    /// Expected answer. What is absent is not compared.
    #[serde(default)]
    pub expect: Expected,
}

/// Call of a step.
#[derive(Debug, Clone, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Domain of the call.
    pub domain: String,
    /// Descriptors, at least one.
    pub descriptors: Vec<AskedDescriptor>,
    /// Hits of each descriptor that has none of its own.
    #[serde(default = "default_times")]
    pub hits: u32,
}

/// Descriptor of a call. In the file, it may also be only the text of its entries.
#[derive(Debug, Clone, DeriveDeserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct AskedDescriptor {
    /// Entries, as in `tidegate ask`: `key=value,key=value`.
    pub entries: String,
    /// Hits of this descriptor; `None` if those of the call apply.
    pub hits: Option<u64>,
    /// Limit that travels with the request, such as `4/minute`.
    pub limit: Option<String>,
    /// Whether the hits are refunded.
    #[serde(default)]
    pub refund: bool,
}

impl<'de> Deserialize<'de> for AskedDescriptor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrMap;
        impl<'de> Visitor<'de> for TextOrMap {
            type Value = AskedDescriptor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text such as \"user=ann\", or a mapping with `entries`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let entries = text.to_owned();
                Ok(AskedDescriptor { entries, hits: None, limit: None, refund: false })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                // The derived function, because of `remote`.
                AskedDescriptor::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(TextOrMap)
    }
}

/// Expected answer.
#[derive(Debug, Clone, Default, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Code of the call.
    pub code: Option<ExpectedCode>,
    /// `Retry-After` of the call, such as `2s`, or `none`.
    pub retry_after: Option<String>,
    /// Headers for the upstream, all of them.
    pub marks: Option<BTreeMap<String, String>>,
    /// Limit of each descriptor, such as `5/minute`.
    pub limit: Option<OneOrList<String>>,
    /// Hits left of each descriptor.
    pub remaining: Option<OneOrList<u32>>,
}

/// Code of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, DeriveDeserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ExpectedCode {
    /// The call is admitted.
    Ok,
    /// The call is rejected.
    OverLimit,
}

impl ExpectedCode {
    /// Returns the code as the file spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            ExpectedCode::Ok => "OK",
            ExpectedCode::OverLimit => "OVER_LIMIT",
        }
    }
}

/// Value for the only descriptor of a call, or a list with one for each.
#[derive(Debug, Clone, DeriveDeserialize)]
#[serde(
    untagged,
    expecting = "`limit` must be a text and `remaining` a number, or a list with one for each descriptor"
)]
pub enum OneOrList<T> {
    /// Value for the only descriptor.
    One(T),
    /// Values of all descriptors, in their order.
    List(Vec<T>),
}

impl<T> OneOrList<T> {
    /// Returns the values of all descriptors.
    pub fn values(&self) -> &[T] {
        match self {
            OneOrList::One(value) => std::slice::from_ref(value),
            OneOrList::List(values) => values,
        }
    }
}

/// Returns a Monday, on which every window of a day, week, month, and year starts.
fn default_start() -> String {
    "2024-01-01T00:00:00Z".to_owned()
}

fn default_times() -> u32 {
    1
}

impl TestFile {
    /// Parses a test file. `file` is its name in errors.
    ///
    /// # Errors
    ///
    /// Returns an error if the YAML is invalid, a key is unknown or missing, or a list has another
    /// length than the descriptors of its step.
    pub fn parse(file: &str, text: &str) -> Result<TestFile, UsageError> {
        if text.lines().any(|line| line.starts_with("descriptors:")) {
            let reason = "this is a policy, but `tidegate test` needs a test file that names the policy \
                          under `policy` and has `tests`; `tidegate test --help` shows one";
            return Err(UsageError(format!("{file}: {reason}")));
        }
        let parsed: Result<TestFile, _> = serde_yaml::from_str(text);
        let parsed = parsed.map_err(|error| {
            match format_error(&error, "`tidegate test --help` shows a test file") {
                ScenarioError::Format { position: Some((line, column)), reason } => {
                    UsageError(format!("{file}:{line}:{column}: {reason}"))
                }
                error => UsageError(format!("{file}: {error}")),
            }
        })?;
        for test in &parsed.tests {
            for (step, nth) in test.steps.iter().zip(1..) {
                if let Some(reason) = step.find_fault() {
                    return Err(UsageError(format!("{file}: {}: step {nth}: {reason}", test.name)));
                }
            }
        }
        match &parsed {
            TestFile { policy, .. } if policy.is_empty() => {
                Err(UsageError(format!("{file}: `policy` is empty; name the file of the policy")))
            }
            TestFile { tests, .. } if tests.is_empty() => {
                Err(UsageError(format!("{file}: `tests` is empty; write a test")))
            }
            _ => Ok(parsed),
        }
    }
}

impl Step {
    /// Returns what is wrong with the step, and what to do.
    fn find_fault(&self) -> Option<String> {
        if self.times == 0 {
            return Some("`times` must be at least 1; remove the step, or correct it".to_owned());
        }
        let limit = self.expect.limit.as_ref().map(|limit| limit.values().len());
        let remaining = self.expect.remaining.as_ref().map(|remaining| remaining.values().len());
        let descriptors = self.ask.descriptors.len();
        let lengths = [("limit", limit), ("remaining", remaining)];
        let (name, values) = lengths
            .into_iter()
            .find_map(|(name, values)| Some((name, values.filter(|it| *it != descriptors)?)))?;
        Some(format!(
            "`{name}` is for {values} descriptors, but `ask` has {descriptors}; write a list with one \
             value for each descriptor"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        TestFile::parse("t.yaml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_descriptor_is_a_text_or_a_mapping() {
        let text = "
policy: [p.yaml]
tests:
  - name: two forms
    steps:
      - at: 0s
        ask: {domain: d, descriptors: ['a=b', {entries: 'a=c', hits: 3, limit: 4/minute, refund: true}]}
        expect: {remaining: [1, 2], code: OVER_LIMIT, marks: {}}
";
        let file = TestFile::parse("t.yaml", text).unwrap();
        let step = &file.tests[0].steps[0];
        let entries: Vec<_> = step.ask.descriptors.iter().map(|it| &*it.entries).collect();
        assert_eq!(entries, ["a=b", "a=c"]);
        let second = &step.ask.descriptors[1];
        assert_eq!((second.hits, second.refund), (Some(3), true));
        assert_eq!((step.times, step.ask.hits), (1, 1));
        assert_eq!(step.expect.code, Some(ExpectedCode::OverLimit));
        assert!(step.expect.marks.as_ref().unwrap().is_empty() && step.expect.limit.is_none());
    }

    #[test]
    fn errors_say_where_and_what_to_do() {
        let with = |step: &str| {
            error(&format!("policy: [p]\ntests:\n  - name: n\n    steps:\n      - {step}\n"))
        };
        let ask = "at: 0s, ask: {domain: d, descriptors: [a=b]}";
        for (step, expected) in [
            (format!("{{{ask}, expcet: {{}}}}"), "unknown key `expcet`; did you mean `expect`?"),
            (
                "{at: 0s, ask: {domain: d, descriptors: [{entires: a=b}]}}".to_owned(),
                "unknown key `entires`; did you mean `entries`?",
            ),
            (
                "{at: 0s, ask: {domain: d, descriptors: [5]}}".to_owned(),
                "a text such as \"user=ann\"",
            ),
            (format!("{{{ask}, expect: {{code: Ok}}}}"), "unknown word `Ok`"),
            (format!("{{{ask}, times: 0}}"), "t.yaml: n: step 1: `times` must be at least 1"),
            (
                format!("{{{ask}, expect: {{remaining: [1, 2]}}}}"),
                "t.yaml: n: step 1: `remaining` is for 2 descriptors, but `ask` has 1; write a list",
            ),
            (
                format!("{{{ask}, expect: {{remaining: many}}}}"),
                "a list with one for each descriptor",
            ),
        ] {
            let error = with(&step);
            assert!(error.contains(expected), "{step}: {error}");
            assert!(error.starts_with("t.yaml:"), "{error}");
        }
        assert!(error("domain: d\ndescriptors: []").contains("this is a policy"));
        assert!(error("policy: []\ntests: []").contains("`policy` is empty"));
        assert!(error("policy: [p]\ntests: []").contains("`tests` is empty"));
    }
}
