//! The memory of the process, and its log, whatever a control plane or the files of a directory hold.
//!
//! Not here: the memory for reading alone (`policy/memory_bounds`, `control_plane::last_good`).

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use prost::Message as _;
use prost_types::Any;

use super::messages::{
    RateLimitConfig, RateLimitDescriptor, TYPE_URL, broken, domain, resource, yearly,
};
use super::plane::ControlPlane;
use super::served::{ask, plain};
use crate::support::heavy;
use crate::support::http::get;
use crate::support::proof::times;
use crate::support::tidegate_process::{Tidegate, directory, metric, tidegate};
use crate::support::wait::until;

const MIB: usize = 1 << 20;

/// The budget for reading a policy.
const READ_BYTES_MAX: usize = 64 * MIB;

/// What the process may take at its peak, with any policy within the bounds: of it 80 MiB whatever
/// the policy, and the rest in proportion to the policy's size.
const PEAK_MAX_KIB: usize = 512 << 10;
const PEAK_WITHOUT_POLICY_KIB: usize = 80 << 10;

/// Rules in a policy of nearly 250,000 descriptors and limits.
const MOST_RULES: usize = 124_900;

const FILES: usize = 16;
const FILE_BYTES: usize = 39 * MIB / 10;

/// `most`, or in `make test` an eighth: a debug build takes up to half a minute for the most rules.
fn share(most: usize) -> usize {
    most / times(8, 1) as usize
}

/// A resource with this encoding of its descriptors.
fn of_descriptors(encoded: &[u8]) -> Any {
    let (name, domain) = ("d".to_owned(), "d".to_owned());
    let mut value = RateLimitConfig { name, domain, descriptors: vec![] }.encode_to_vec();
    value.extend_from_slice(encoded);
    Any { type_url: TYPE_URL.to_owned(), value }
}

/// Just under the [`share`] of 16 MiB of repeated bytes, in fields of these numbers in each other.
fn repeated(fields: &[u8], unit: &[u8]) -> Vec<u8> {
    let wrap = |inner: Vec<u8>, number: &u8| {
        let mut field = vec![number << 3 | 2];
        prost::encoding::encode_varint(inner.len() as u64, &mut field);
        [field, inner].concat()
    };
    fields.iter().rev().fold(unit.repeat((share(16 * MIB) - 200) / unit.len()), wrap)
}

/// As many rules as a policy may have, with values that fill 16 MiB, or their [`share`]. Another number makes other rules.
fn most_rules(requests_per_unit: u32) -> Vec<Any> {
    let rule = |at: usize| RateLimitDescriptor {
        value: format!("{requests_per_unit}{at:>089}"),
        ..yearly("k", requests_per_unit)
    };
    vec![resource("most", (0..share(MOST_RULES)).map(rule).collect())]
}

/// Returns what the process may take with a policy of the [`share`] of the largest size.
fn peak_max_kib() -> usize {
    PEAK_WITHOUT_POLICY_KIB + share(PEAK_MAX_KIB - PEAK_WITHOUT_POLICY_KIB)
}

fn assert_peak(serving: &Tidegate, what: &str) {
    assert_peak_at_most(serving, what, peak_max_kib());
}

fn assert_peak_at_most(serving: &Tidegate, what: &str, most: usize) {
    let peak = serving.proc_status("VmHWM");
    println!("{peak} KiB at the peak with {what}, now {} KiB", serving.proc_status("VmRSS"));
    assert!(peak <= most, "{what}: {peak} KiB, more than {most}");
}

fn assert_short_lines(serving: &Tidegate) {
    let longest = serving.log().lines().map(str::len).max();
    assert!(longest < Some(8_192), "a line of {longest:?} bytes");
}

#[test]
fn responses_of_16_mebibytes_leave_the_process_under_512_mebibytes() {
    let _alone = heavy::blocking_turn();
    let plane = ControlPlane::start("test", None);
    plane.set("small", vec![domain("edge", 1)]);
    let serving = plain(&plane.address.to_string(), &[], &[]);
    let accepts_most = |version: &str, number: u32| {
        plane.set(version, most_rules(number));
        plane.acknowledged(version);
        assert_peak(&serving, version);
    };
    // The proof tries all kinds. In a debug build, one takes up to half a minute.
    for number in (5..=8).take(times(2, 40) as usize) {
        accepts_most(&format!("{number} for each of the most rules"), number);
    }
    let kinds = [
        ("empty descriptors", repeated(&[], &[0x1a, 0])),
        ("replaced limits", repeated(&[3, 3], &[0x2a, 0])),
        ("values in metadata", repeated(&[3, 8, 1, 2, 6], &[0x0a, 0])),
        ("names in metadata", repeated(&[3, 8], &[0x0a, 0])),
        ("a key", repeated(&[3, 1], &[1])),
    ];
    for (what, descriptors) in kinds.into_iter().take(times(1, 50) as usize) {
        let nacks = plane.nacks().len();
        plane.set(what, vec![of_descriptors(&descriptors)]);
        until(what, || (plane.nacks().len() > nacks).then_some(()));
        assert_peak(&serving, what);
        accepts_most(&format!("the most rules after {what}"), 8);
    }
    // The control plane of the tests accepts no request of this size.
    plane.set(&"v".repeat(15 * MIB), vec![domain("edge", 0)]);
    until("the policy", || (ask(&serving, "edge", "ann") == 429).then_some(()));
    assert_peak_at_most(&serving, "a version of 15 MiB", PEAK_MAX_KIB);
    assert_short_lines(&serving);
}

#[test]
fn a_flood_of_responses_leaves_the_process_small_and_its_log_short() {
    let plane = ControlPlane::start("test", None);
    plane.set("1", vec![domain("edge", 1)]);
    let serving = plain(&plane.address.to_string(), &[], &[]);
    plane.acknowledged("1");
    let before = serving.log().lines().count();
    let copies = share(20_000);
    plane.send_copies(copies);
    for (version, resource) in [("2", domain("edge", 2)), ("3", broken("bad"))] {
        let received = || metric(&serving, "xds_responses_total");
        let first = received();
        plane.set(version, vec![resource]);
        until("all responses", || (received() >= first + copies as u64).then_some(()));
    }
    // One that is applied is answered, at most once a second.
    let answers = plane.seen().len();
    assert!(answers < 200, "{answers} answers");
    plane.send_copies(1);
    plane.set(&"v".repeat(20_000_000), vec![domain("edge", 3)]);
    serving.logged_in_time("control plane unreachable, the last good policy stays in force");
    plane.set("4", vec![domain("edge", 4)]);
    plane.acknowledged("4");
    assert_peak_at_most(&serving, "a flood and a version of 20 MB", PEAK_MAX_KIB);
    // Those of two minutes.
    let lines = serving.log().lines().count() - before;
    assert!(lines <= 40, "{lines} lines");
    assert_short_lines(&serving);
}

/// Files of 3.9 MiB, or their [`share`], in a directory that is served, each made from a line per number
/// and a comment.
fn write_files(serving_from: &Path, line: impl Fn(usize) -> String, lines: usize) {
    let bytes = share(FILE_BYTES);
    for file in 0..FILES {
        let mut text = format!("domain: d{file}\ndescriptors:\n");
        (0..lines).for_each(|at| writeln!(text, "{}", line(at)).unwrap());
        assert!(text.len() < bytes, "{}", text.len());
        let comment = bytes - text.len() - 1;
        write!(text, "#{}", "c".repeat(comment)).unwrap();
        fs::write(serving_from.join(format!("{file:02}.yaml")), text).unwrap();
    }
}

#[test]
fn sixteen_files_of_3_9_mebibytes_leave_the_process_under_512_mebibytes() {
    let _alone = heavy::blocking_turn();
    let files = directory(&[]);
    let path = files.path().join("policy");
    fs::create_dir(&path).unwrap();
    let rule = |number: u32| {
        move |at: usize| {
            format!(
                "- {{key: k, value: v{at}, rate_limit: {{unit: year, requests_per_unit: {number}}}}}"
            )
        }
    };
    write_files(&path, rule(5), share(MOST_RULES) / FILES);
    let mut command = tidegate();
    command.args(["serve", "--policy", &path.display().to_string()]);
    let serving = Tidegate::start(&mut command, files);
    assert_peak(&serving, "the most rules in files");
    get(serving.port("http"), "/metrics");
    assert_peak(&serving, "the most rules in files, and a scrape");
    let reads = |message: &str, write: &dyn Fn()| {
        // Not a metric, because the page of metrics has 60 MB.
        let logged = || serving.log().matches(message).count();
        let before = logged();
        write();
        until(message, || (logged() > before).then_some(()));
    };
    reads("policy reloaded", &|| write_files(&path, rule(6), share(MOST_RULES) / FILES));
    assert_peak(&serving, "the most rules in files, replaced");
    let kinds = [("a list of nothing", "-"), ("descriptors of maps", "- {}")];
    for (what, line) in kinds.into_iter().take(times(1, 20) as usize) {
        let lines = (share(FILE_BYTES) - 100) / (line.len() + 1);
        reads("policy not reloaded", &|| write_files(&path, |_| line.to_owned(), lines));
        // Smaller files may use the whole budget for reading, too. A list that grows takes up to twice
        // what the budget counts.
        let most = (peak_max_kib() + 2 * READ_BYTES_MAX / 1_024).min(PEAK_MAX_KIB);
        assert_peak_at_most(&serving, what, most);
    }
}
