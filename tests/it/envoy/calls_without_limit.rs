//! Envoy with a wrong domain, or with descriptors that no rule has: every request passes, and the log
//! says why.

use serde_json::Value;

use super::admission_bounds::RequestSeries;
use super::bootstrap::Bootstrap;
use super::http_client::get;
use super::stack::{Stack, written};
use crate::support::wait::until;

const POLICY: &str = "
domain: edge
descriptors:
  - key: remote_address
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 3}
";
const ADDRESS: &str = "remote_address: {}";
const PATH: &str = "request_headers: {header_name: ':path', descriptor_key: path}";
const REQUESTS: usize = 30;

#[test]
fn thirty_requests_that_meet_no_limit_are_named_with_what_was_meant() {
    for (domain, actions, keys, advice) in [
        ("egde", [ADDRESS, PATH].as_slice(), "remote_address, path", "did you mean edge?"),
        ("edge", &[ADDRESS], "remote_address", "the descriptor is too short: send path in it"),
        ("edge", &[PATH, ADDRESS], "path, remote_address", "in another order"),
    ] {
        let actions: Vec<String> = actions.iter().map(|action| format!("{{{action}}}")).collect();
        let rate_limits = format!("[{{actions: [{}]}}]", actions.join(", "));
        let bootstrap = Bootstrap::shipped().with_rate_limits(&rate_limits);
        let policy = written(POLICY);
        let stack = Stack::new(bootstrap.with_filter("domain", domain), policy.path());
        let row = RequestSeries::of(&stack, (0..REQUESTS).map(|_| get("/")));
        assert!(row.replies.iter().all(|reply| reply.status == 200), "none is limited");
        // On a busy machine, they are in two summaries.
        let lines = until("a line for all requests", || {
            let log = stack.tidegate.log();
            let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let lines: Vec<Value> = lines
                .filter(|line| line["message"] == "calls admitted because no limit applies")
                .collect();
            let calls = lines.iter().filter_map(|line| line["calls"].as_u64()).sum::<u64>();
            (calls == REQUESTS as u64).then_some(lines)
        });
        let line = &lines[0];
        assert_eq!((&line["domain"], &line["keys"]), (&domain.into(), &keys.into()), "{line}");
        assert!(line["advice"].as_str().is_some_and(|text| text.contains(advice)), "{line}");
    }
}
