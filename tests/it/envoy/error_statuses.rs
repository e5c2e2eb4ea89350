//! The documented table of 200, 429 and 503, cell by cell, as a client of Envoy gets them.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;

use tempfile::{NamedTempFile, TempDir};

use super::backend::Backend;
use super::bootstrap::{Bootstrap, repository};
use super::envoy_process::Envoy;
use super::http_client::get;
use super::stack::written;
use super::tidegate_behind_envoy::Tidegate;

const HEADING: &str = "## 200, 429 and 503";

/// What the columns say of Envoy's filter, in their order: whether it denies, and with which status.
const COLUMNS: [(&str, bool, Option<&str>); 3] = [
    ("`failure_mode_deny: false`", false, None),
    ("`true`", true, None),
    ("`true`, `status_on_error: {code: 503}`", true, Some("{code: 503}")),
];

/// For each row the word in `x-case`, and which Tidegate is asked.
const ROWS: [(&str, &str, TidegateState); 10] = [
    ("no limit applies, or all limits pass", "free", TidegateState::Sound),
    ("it is over a limit in `shadow_mode`", "shadowed", TidegateState::Sound),
    ("it is over a limit", "over", TidegateState::Sound),
    (
        "Redis is down, `on_store_failure: local`, within this replica's share",
        "local",
        TidegateState::WithoutRedis,
    ),
    ("the same, beyond the share", "local", TidegateState::WithoutRedis),
    ("Redis is down, `allow`", "allow", TidegateState::WithoutRedis),
    ("Redis is down, `deny`", "deny", TidegateState::WithoutRedis),
    ("Redis is down, `error`", "error", TidegateState::WithoutRedis),
    ("Tidegate answers after the filter's `timeout`", "free", TidegateState::Frozen),
    ("Tidegate is down", "free", TidegateState::Gone),
];

/// In this order: each is the end of the ones before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TidegateState {
    /// It counts in memory.
    Sound,
    WithoutRedis,
    Frozen,
    Gone,
}

/// So short that nobody waits for it. Only who is frozen is asked with it.
const SHORT_TIMEOUT: &str = "0.02s";

const BY_CASE: &str =
    "[{actions: [{request_headers: {header_name: x-case, descriptor_key: case}}]}]";

/// One hit a year is one replica's share of one hit a year.
const POLICY: &str = "
domain: edge
descriptors:
  - {key: case, value: free, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: case, value: over, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: case, value: shadowed, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: case, value: local, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: local}}
  - {key: case, value: allow, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: allow}}
  - {key: case, value: deny, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: deny}}
  - {key: case, value: error, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: error}}
";

/// The table: the statuses of each row, by its first cell; and what heads the other cells.
fn table() -> (Vec<String>, BTreeMap<String, Vec<u16>>) {
    let page = fs::read_to_string(repository("docs/ENVOY.md")).expect("the page");
    let (_, section) = page.split_once(HEADING).expect("the section");
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    let mut rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        cells.collect::<Vec<String>>()
    });
    let heads = rows.next().expect("a head").split_off(1);
    let row = |mut cells: Vec<String>| {
        let statuses = cells.split_off(1);
        let statuses = statuses.iter().map(|cell| cell.parse().expect("a status")).collect();
        (cells.remove(0), statuses)
    };
    (heads, rows.skip(1).map(row).collect())
}

/// Envoys as a column says, and the Tidegates behind them.
struct Stack {
    sound: Envoy,
    hurried: Envoy,
    without_redis: Envoy,
    tidegate: Tidegate,
    // Held for as long as somebody asks or reads them.
    _away: Tidegate,
    _policy: NamedTempFile,
    _directories: [TempDir; 3],
}

impl Stack {
    fn new(backend: &Backend, denies: bool, status: Option<&str>) -> Stack {
        let policy = written(POLICY);
        let nobody = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("the bound address").to_string()
        };
        let tidegate = Tidegate::start(policy.path(), &[]);
        let away = Tidegate::start(policy.path(), &[("REDIS_URL", &nobody)]);
        let bootstrap = |tidegate: &Tidegate| {
            let bootstrap = Bootstrap::shipped()
                .with_rate_limits(BY_CASE)
                .aimed_at(backend.address, &[tidegate.grpc])
                .with_filter("failure_mode_deny", denies);
            match status {
                Some(status) => bootstrap.with_filter("status_on_error", yaml(status)),
                None => bootstrap,
            }
        };
        let directories = [(); 3].map(|()| TempDir::new().expect("a temporary directory"));
        let [one, two, three] = directories.each_ref().map(TempDir::path);
        let hurried = bootstrap(&tidegate).with_filter("timeout", SHORT_TIMEOUT);
        Stack {
            sound: Envoy::start(&bootstrap(&tidegate), one, 1),
            hurried: Envoy::start(&hurried, two, 1),
            without_redis: Envoy::start(&bootstrap(&away), three, 1),
            tidegate,
            _away: away,
            _policy: policy,
            _directories: directories,
        }
    }

    fn status(&mut self, case: &str, asked: TidegateState) -> u16 {
        match asked {
            TidegateState::Sound | TidegateState::WithoutRedis => {}
            TidegateState::Frozen => self.tidegate.freeze(),
            TidegateState::Gone => self.tidegate.kill(),
        }
        let edge = match asked {
            TidegateState::Sound | TidegateState::Gone => &self.sound,
            TidegateState::WithoutRedis => &self.without_redis,
            TidegateState::Frozen => &self.hurried,
        };
        edge.ask(&get("/").with("x-case", case)).status
    }
}

fn yaml(text: &str) -> serde_yaml::Value {
    serde_yaml::from_str(text).expect("YAML")
}

#[test]
fn each_cell_of_the_table_of_200_429_and_503_is_what_a_client_gets() {
    let (heads, mut rows) = table();
    assert_eq!(heads, COLUMNS.map(|(head, ..)| head));
    let backend = Backend::start();
    let mut seen: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    for (_, denies, status) in COLUMNS {
        let mut stack = Stack::new(&backend, denies, status);
        for (row, case, asked) in ROWS {
            seen.entry(row.to_owned()).or_default().push(stack.status(case, asked));
        }
    }
    for (row, ..) in ROWS {
        assert_eq!(rows.remove(row), seen.remove(row), "{row}");
    }
    assert!(rows.is_empty(), "not tried: {rows:?}");
}
