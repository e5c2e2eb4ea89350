//! Three limits on one descriptor, `config/examples/several-at-once`: each refuses at its own
//! number, and a refusal by one charges none.

use std::fs;

use super::admission_bounds::{RequestSeries, StatedLimit, assert_limited};
use super::bootstrap::repository;
use super::http_client::{Reply, Request, get};
use super::stack::{Stack, example, written};
use crate::support::wait;

/// As the example states them.
const BURST: u64 = 4;
const PER_SECOND: f64 = 2.0;
const DAILY: u64 = 30;
const IP_CAP: u64 = 12;

/// The example as it ships, but for this.
fn stack(changed: impl Fn(&str) -> String) -> Stack {
    let file = repository("config/examples/several-at-once/policy.yaml");
    let policy = written(&changed(&fs::read_to_string(file).expect("the example")));
    let settings = [("TIDEGATE_LIMIT_NAME_HEADER", "x-limited-by")];
    Stack::with_settings(example("several-at-once"), policy.path(), &settings)
}

/// Every window a year and the bucket's rate with it, so that no number depends on when it is asked.
fn in_a_year() -> Stack {
    stack(|policy| policy.replace("unit: second", "unit: year").replace("unit: day", "unit: year"))
}

fn with_token(token: &str) -> Request {
    get("/").with("x-api-token", token)
}

/// Which limit refused, if one did.
fn refused_by(reply: &Reply) -> Option<&str> {
    assert!(matches!(reply.status, 200 | 429), "{reply:?}");
    (reply.status == 429).then(|| reply.header("x-limited-by").expect("its name"))
}

/// What is left for a token at an address, of the burst, the day and the cap.
fn left(stack: &Stack, token: &str, address: u8) -> [u64; 3] {
    let descriptor = format!("api_token={token},remote_address=127.0.0.{address}");
    let left = stack.tidegate.left("edge", &descriptor);
    ["burst", "daily", "ip-cap"].map(|name| left[name])
}

#[test]
fn the_burst_of_a_token_refuses_at_its_number_and_charges_neither_day_nor_address() {
    let stack = in_a_year();
    let request = with_token("t1").from(2);
    let replies: Vec<Reply> = (0..BURST + 3).map(|_| stack.ask(&request)).collect();
    let refused: Vec<Option<&str>> = replies.iter().map(refused_by).collect();
    let (passed, after) = refused.split_at(BURST as usize);
    assert!(passed.iter().all(Option::is_none), "{refused:?}");
    assert_eq!(after, [Some("burst"); 3]);
    assert_eq!(left(&stack, "t1", 2), [0, DAILY - BURST, IP_CAP - BURST]);
    assert_eq!(refused_by(&stack.ask(&request.from(3))), Some("burst"), "wherever it comes from");
    assert_eq!(left(&stack, "t1", 3), [0, DAILY - BURST, IP_CAP]);
}

#[test]
fn the_cap_of_an_address_refuses_the_fourth_token_and_charges_nothing_to_it() {
    let stack = in_a_year();
    for token in ["t1", "t2", "t3"] {
        for _ in 0..BURST {
            assert_eq!(refused_by(&stack.ask(&with_token(token).from(2))), None, "{token}");
        }
    }
    for _ in 0..3 {
        assert_eq!(refused_by(&stack.ask(&with_token("t4").from(2))), Some("ip-cap"));
    }
    assert_eq!(left(&stack, "t4", 2), [BURST, DAILY, 0]);
    assert_eq!(refused_by(&stack.ask(&with_token("t4").from(3))), None, "elsewhere it may");
    assert_eq!(left(&stack, "t4", 3), [BURST - 1, DAILY - 1, IP_CAP - 1]);
}

/// At the rate as it ships, so it takes the 13 seconds in which 26 hits come back: between them
/// hundreds of requests are refused, and none of those is charged to the day.
#[test]
fn the_day_of_a_token_refuses_at_its_number_however_often_the_burst_refused_before() {
    let stack = stack(str::to_owned);
    let request = with_token("t1").from(2);
    let (mut admitted, mut by_burst) = (0, 0);
    loop {
        let refused = wait::until("a hit to come back", || {
            let reply = stack.ask(&request);
            let refused = refused_by(&reply).map(str::to_owned);
            by_burst += u64::from(refused.as_deref() == Some("burst"));
            (refused.as_deref() != Some("burst")).then_some(refused)
        });
        match refused.as_deref() {
            None => admitted += 1,
            Some(name) => break assert_eq!(name, "daily"),
        }
    }
    assert_eq!(admitted, DAILY);
    assert!(by_burst > 0, "the burst never refused");
    assert_eq!(refused_by(&stack.ask(&with_token("t2").from(2))), None);
}

#[test]
fn at_the_rate_as_it_ships_burst_and_cap_admit_what_their_time_allows() {
    let stack = stack(str::to_owned);
    let bucket = StatedLimit::Bucket { burst: BURST, per_second: PER_SECOND };
    assert_limited(&stack, &with_token("t1").from(2), bucket);
    let tokens = ["t2", "t3", "t4", "t5"].into_iter();
    let row = RequestSeries::of(
        &stack,
        tokens.flat_map(|t| (0..BURST).map(move |_| with_token(t).from(3))),
    );
    row.assert_limited_by(StatedLimit::Window { hits: IP_CAP, seconds: 1 });
}
