//! Settings from any source, and descriptors as people type them: accepted or refused, and no
//! report or error contains a secret.

use std::collections::BTreeMap;

use tidegate::domain::parse_descriptor;
use tidegate::settings::{SettingRow, Settings, Sources, TABLE, report};

use crate::fuzzer::{Target, feed};
use crate::mutation::{Decisions, Random};
use crate::sort;

/// What stands in for a secret: nothing else says it.
const SECRET: &str = "hunter2-zq";

const VALUES: &[&str] = &[
    "",
    "true",
    "no",
    "0",
    "1",
    "-1",
    "65536",
    "99999999999999999999",
    "5s",
    "1h30m",
    "1.5s",
    "250ms",
    "9999999999h",
    "64KiB",
    "16MiB",
    "99999999999GiB",
    "127.0.0.1",
    "[::1]",
    ":9090",
    "a:b:c",
    "/x",
    "redis",
    "cluster",
    "sentinel",
    "unix",
    "redis://u:hunter2-zq@h:1/2",
    "h:1,h:2",
    "m,h:1",
    "rediss://h",
    "unix:///s?db=1",
    "edge=a,b;*=c",
    "edge=",
    "0.8",
    "nan",
    "json",
    "both",
    "{",
    "\u{0}",
    "ü",
    " ",
];

fn is_secret(row: &SettingRow) -> bool {
    ["redis-auth", "redis-sentinel-auth", "key-secret"].contains(&row.name)
}

fn value(by: &mut Decisions<'_>, row: Option<&SettingRow>) -> String {
    match row {
        Some(row) if is_secret(row) => format!("{SECRET}{}", by.below(3)),
        Some(row) if row.name == "redis-url" && by.below(2) == 0 => {
            let before = String::from_utf8_lossy(by.piece()).into_owned();
            format!("{}u:{SECRET}@{before}", by.pick(&["redis://", "rediss://", "", "x://"]))
        }
        _ => match by.below(4) {
            0 => String::from_utf8_lossy(by.piece()).into_owned(),
            _ => (*by.pick(VALUES)).to_owned(),
        },
    }
}

#[test]
fn any_settings_are_read_or_refused_and_secrets_are_told_nobody() {
    let target = Target { name: "settings", share: 3, words: VALUES };
    let make = |random: &mut Random| random.bytes(60);
    feed(&target, Vec::new(), make, |input| {
        let mut by = Decisions::of(input);
        let mut sources = Sources::default();
        while !by.is_over() {
            let row = by.pick(TABLE);
            let value = value(&mut by, Some(row));
            match by.below(8) {
                0 | 1 => drop(sources.environment.insert(row.variable(), value)),
                2 => drop(sources.file.insert(row.name.to_owned(), value)),
                3 => drop(
                    sources.file.insert(String::from_utf8_lossy(by.piece()).into(), "x".into()),
                ),
                4 => {
                    let compat = row.compat_names.first().map(|name| (*name).to_owned());
                    sources.environment.extend(compat.map(|name| (name, value)));
                }
                _ => drop(sources.flags.insert(row.name.to_owned(), value)),
            }
        }
        let (said, read) = match Settings::read(&sources) {
            Ok((settings, given)) => (format!("{}{settings:?}", report(&given)), true),
            Err(faults) => {
                let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
                (lines.join("\n"), false)
            }
        };
        let tells = said.contains(SECRET) && !plainly(&sources);
        assert!(!tells, "{sources:?}\n{said}");
        sort((read, said.lines().count().min(12), sources.flags.len().min(4)))
    });
}

/// Whether a source has the secret where none belongs: in an address's host, or another setting.
fn plainly(sources: &Sources) -> bool {
    let telling = |texts: &BTreeMap<String, String>| {
        texts.iter().any(|(name, text)| {
            let name = name.to_ascii_lowercase().replace('_', "-");
            let hidden = ["redis-auth", "redis-sentinel-auth", "key-secret"]
                .iter()
                .any(|secret| name.ends_with(secret));
            let told = match name.ends_with("redis-url") {
                true => text.split(',').any(|item| {
                    // As a host, or as a user's name.
                    let user = item.split("://").last().and_then(|rest| rest.split(':').next());
                    item.rfind(SECRET) > item.rfind('@')
                        || user.is_some_and(|user| user.contains(SECRET))
                }),
                false => !hidden && text.contains(SECRET),
            };
            told || name.contains(SECRET)
        })
    };
    [&sources.flags, &sources.environment, &sources.file].into_iter().any(telling)
}

#[test]
fn any_text_is_a_descriptor_or_refused() {
    let target = Target { name: "descriptors", share: 1, words: &["\\", ",", "=", "k=v"] };
    let make = |random: &mut Random| random.bytes(40);
    feed(&target, vec![b"k=v,k2=v2".to_vec()], make, |input| {
        let text = String::from_utf8_lossy(input);
        match parse_descriptor(&text) {
            Ok(entries) => {
                assert!(entries.iter().all(|(key, _)| !key.is_empty()));
                sort(entries.len().min(8))
            }
            Err(_) => sort(64),
        }
    });
}
