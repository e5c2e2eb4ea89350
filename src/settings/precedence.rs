//! Where a setting's value comes from: a flag, the environment, the settings file, the default, in
//! this order; and the report that says so.
//!
//! Not here: reading any of them (`app` hands them in as maps), what a value means (`value`).

use std::collections::BTreeMap;
use std::fmt;

use super::SettingError;
use super::row::{Row, Show};
use super::value_types::Wrong;

/// Names and texts, as they were given.
pub type Texts = BTreeMap<String, String>;

/// All that was given: by flag name, by environment name, by flag name in the settings file.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Flags, without the leading hyphens.
    pub flags: Texts,
    /// The environment.
    pub environment: Texts,
    /// The settings file.
    pub file: Texts,
}

/// Who gave a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag.
    Flag,
    /// The environment, under this name.
    Environment(String),
    /// The settings file.
    File,
    /// Nobody.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::File => f.write_str("settings file"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// One setting's text and who gave it.
#[derive(Clone, Debug)]
pub struct Given {
    /// The table's row.
    pub row: &'static Row,
    /// The text.
    pub text: String,
    /// Who gave it.
    pub origin: Origin,
}

impl Given {
    /// The value as it may be shown: secrets hidden, passwords in addresses masked.
    pub fn shown(&self) -> String {
        match self.row.show {
            Show::Plain => self.text.clone(),
            Show::Hidden if self.text.is_empty() => String::new(),
            Show::Hidden => "(hidden)".to_owned(),
            Show::Address => self.text.split(',').map(masked).collect::<Vec<_>>().join(","),
        }
    }
}

/// An address with what stands before an `@` masked: `redis://user:(hidden)@host`.
fn masked(address: &str) -> String {
    // What stands before a later `://` is no scheme: a password may stand there.
    let is_scheme = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        Some(_) | None => (String::new(), address),
    };
    match rest.rsplit_once('@') {
        None => format!("{scheme}{}", place(rest)),
        Some((login, rest)) => {
            let user = login.split_once(':').map_or("", |(user, _)| user);
            let is_name = user.bytes().all(of_name);
            let user = if is_name { user } else { "" };
            format!("{scheme}{user}:(hidden)@{}", place(rest))
        }
    }
}

/// Where a server is, if it looks like that: a path, or a host and a port of digits. A password with
/// a comma falls apart, and its first part looks like a host and a port that is none.
fn place(text: &str) -> &str {
    let address = text.split(['/', '?']).next().unwrap_or_default();
    let port = match address.rsplit_once(':') {
        Some((_, port)) if !address.ends_with(']') => port,
        Some(_) | None => "",
    };
    let is_host = address.bytes().all(|byte| of_name(byte) || b":[]".contains(&byte));
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
    if is_host && is_port { text } else { "(hidden)" }
}

/// What names of users and hosts are made of.
fn of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_".contains(&byte)
}

/// The text of every setting, in the table's order.
pub(super) fn gather(table: &'static [Row], sources: &Sources) -> Vec<Given> {
    table.iter().map(|row| find(row, sources)).collect()
}

fn find(row: &'static Row, sources: &Sources) -> Given {
    let flag = sources.flags.get(row.name).map(|text| (text, Origin::Flag));
    // An empty variable counts as absent: that is how manifests write "not set".
    let of_environment = |name: &String| {
        let text = sources.environment.get(name).filter(|text| !text.is_empty())?;
        Some((text, Origin::Environment(name.clone())))
    };
    let found = flag
        .or_else(|| {
            let theirs = row.theirs.iter().map(|name| (*name).to_owned());
            std::iter::once(row.variable()).chain(theirs).find_map(|name| of_environment(&name))
        })
        .or_else(|| sources.file.get(row.name).map(|text| (text, Origin::File)));
    match found {
        Some((text, origin)) => Given { row, text: text.clone(), origin },
        None => Given { row, text: row.default.to_owned(), origin: Origin::Default },
    }
}

/// Reads one value; a fault goes to the list.
pub(super) fn read<T>(
    given: &[Given],
    name: &str,
    reader: impl Fn(&str) -> Result<T, Wrong>,
    faults: &mut Vec<SettingError>,
) -> Option<T> {
    let one = given.iter().find(|one| one.row.field == name)?;
    match reader(one.text.trim()) {
        Ok(value) => Some(value),
        Err(wrong) => {
            let (name, origin, shown) = (one.row.name, one.origin.clone(), one.shown());
            faults.push(SettingError::Value { name, origin, shown, wrong });
            None
        }
    }
}

/// Names in the settings file that are no settings.
pub(super) fn unknown_names(table: &'static [Row], file: &Texts) -> Vec<SettingError> {
    file.keys()
        .filter(|name| !table.iter().any(|row| row.name == name.as_str()))
        .map(|name| SettingError::Unknown { name: name.clone(), nearest: nearest(table, name) })
        .collect()
}

/// Theirs that would start something silently different.
pub(super) fn refused(environment: &Texts) -> Vec<SettingError> {
    let differs = |name: &str, same: &str| {
        environment
            .get(name)
            .is_some_and(|text| !text.is_empty() && !text.eq_ignore_ascii_case(same))
    };
    let mut faults = Vec::new();
    if differs("BACKEND_TYPE", "redis") {
        faults.push(SettingError::Refused {
            name: "BACKEND_TYPE",
            way_out: "only redis is a shared store here (memcached cannot count exactly); unset \
                      it and give REDIS_URL, or --store memory for one replica",
        });
    }
    if differs("CONFIG_TYPE", "file") {
        faults.push(SettingError::Refused {
            name: "CONFIG_TYPE",
            way_out: "policies come from files; unset it and give --policy or RUNTIME_ROOT",
        });
    }
    faults
}

/// The setting whose name is the same but for case, hyphens and underscores, or begins the same.
pub(super) fn nearest(table: &'static [Row], name: &str) -> Option<&'static str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_'], "");
    let wanted = plain(name);
    let same = table.iter().find(|row| plain(row.name) == wanted);
    let near = || table.iter().find(|row| wanted.len() > 3 && plain(row.name).starts_with(&wanted));
    same.or_else(near).map(|row| row.name)
}

/// What `serve --print-settings` prints: a line per setting with its value and where it is from.
pub fn report(given: &[Given]) -> String {
    use fmt::Write;
    let width = given.iter().map(|one| one.row.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for one in given {
        let shown = one.shown();
        let shown = if shown.is_empty() { "\"\"" } else { shown.as_str() };
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{:width$}  {}  ({})", one.row.name, shown, one.origin);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TABLE;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn origin_of(sources: &Sources, name: &str) -> (String, Origin) {
        let all = gather(TABLE, sources);
        let one = all.iter().find(|one| one.row.name == name).unwrap();
        (one.text.clone(), one.origin.clone())
    }

    #[test]
    fn a_flag_beats_our_variable_beats_theirs_beats_the_file_beats_the_default() {
        let mut sources = Sources::default();
        assert_eq!(origin_of(&sources, "grpc-port"), ("8081".into(), Origin::Default));
        sources.file = texts(&[("grpc-port", "1")]);
        assert_eq!(origin_of(&sources, "grpc-port"), ("1".into(), Origin::File));
        sources.environment = texts(&[("GRPC_PORT", "2")]);
        let theirs = Origin::Environment("GRPC_PORT".into());
        assert_eq!(origin_of(&sources, "grpc-port"), ("2".into(), theirs));
        sources.environment.insert("TIDEGATE_GRPC_PORT".into(), "3".into());
        let ours = Origin::Environment("TIDEGATE_GRPC_PORT".into());
        assert_eq!(origin_of(&sources, "grpc-port"), ("3".into(), ours));
        sources.flags = texts(&[("grpc-port", "4")]);
        assert_eq!(origin_of(&sources, "grpc-port"), ("4".into(), Origin::Flag));
    }

    #[test]
    fn an_empty_variable_counts_as_absent() {
        let sources = Sources { environment: texts(&[("GRPC_PORT", "")]), ..Sources::default() };
        assert_eq!(origin_of(&sources, "grpc-port").1, Origin::Default);
    }

    #[test]
    fn a_password_inside_an_address_is_masked() {
        assert_eq!(masked("redis://ann:pa@ss@h:1"), "redis://ann:(hidden)@h:1");
        assert_eq!(masked("redis://:secret@h:1"), "redis://:(hidden)@h:1");
        assert_eq!(masked("secret@h:1/2@x"), ":(hidden)@x");
        assert_eq!(masked("h:1"), "h:1");
        assert_eq!(masked("redis://h:1/2?x=y"), "redis://h:1/2?x=y");
        assert_eq!(masked("redis://[::1]"), "redis://[::1]");
        assert_eq!(masked("ann:secret@h{x://y"), "ann:(hidden)@(hidden)");
        assert_eq!(masked("unix:///run/a:b.sock"), "unix:///run/a:b.sock");
        assert_eq!(masked("redis://ann:sec"), "redis://(hidden)", "of ann:sec,ret@h:1");
    }

    #[test]
    fn secrets_are_never_in_the_report() {
        let environment = texts(&[("REDIS_AUTH", "hunter2"), ("REDIS_URL", "redis://u:pw@h:1")]);
        let printed = report(&gather(TABLE, &Sources { environment, ..Sources::default() }));
        assert!(!printed.contains("hunter2") && !printed.contains("pw@"), "{printed}");
        assert!(printed.contains("(environment REDIS_AUTH)"), "{printed}");
    }

    #[test]
    fn an_unknown_name_in_the_file_is_told_the_nearest() {
        let faults = unknown_names(TABLE, &texts(&[("grpc_port", "1"), ("nonsense", "1")]));
        assert_eq!(faults.len(), 2);
        assert!(faults[0].to_string().contains("did you mean \"grpc-port\""), "{}", faults[0]);
    }
}
