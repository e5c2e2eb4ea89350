//! Text form of a descriptor, `k=v,k2=v2`, on the command line, in URLs, and in overrides.
//!
//! Not here: wildcards in values (`policy`).

/// Parses a descriptor such as `k=v,k2=v2` into its keys and values, in order. A value may be empty
/// or absent and may contain `=`. A backslash escapes a comma or another backslash.
///
/// # Errors
///
/// Returns a message for the operator if an entry has no key, or has a colon instead of `=`.
pub fn parse_descriptor(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut entries = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, entries.last_mut()) {
            (',', _) => entries.push(String::new()),
            ('\\', Some(entry)) => entry.push(chars.next().unwrap_or('\\')),
            (c, Some(entry)) => entry.push(c),
            (_, None) => {}
        }
    }
    let separator = |c: char| c == ':' || c.is_whitespace();
    let lacks_equals = |entry: &&String| !entry.contains('=') && entry.find(separator) > Some(0);
    if let Some((key, value)) =
        entries.iter().find(lacks_equals).and_then(|entry| entry.split_once(separator))
    {
        return Err(format!("{text:?} has no `=`: write {key}={}", value.trim_start()));
    }
    let pair = |entry: String| match entry.split_once('=').unwrap_or((&entry, "")) {
        ("", _) => Err(format!("{text:?}: write k=v,k2=v2; every entry has a key")),
        (key, value) => Ok((key.to_owned(), value.to_owned())),
    };
    entries.into_iter().map(pair).collect()
}

/// Formats keys and values as [`parse_descriptor`] reads them. Keys must not contain `=`.
///
/// ```
/// use tidegate::domain::{format_descriptor, parse_descriptor};
/// let pairs = parse_descriptor(r"user=ann,path=/a\,b").unwrap();
/// assert_eq!(format_descriptor(&pairs), r"user=ann,path=/a\,b");
/// ```
pub fn format_descriptor(pairs: &[(String, String)]) -> String {
    let escaped = |text: &str| text.replace('\\', r"\\").replace(',', r"\,");
    let entry = |(key, value): &(String, String)| format!("{}={}", escaped(key), escaped(value));
    pairs.iter().map(entry).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_keys_values_and_escapes() {
        let pairs = |text: &str| parse_descriptor(text).unwrap();
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(pairs("a=1,b=2"), [pair("a", "1"), pair("b", "2")]);
        assert_eq!(pairs("a"), [pair("a", "")]);
        assert_eq!(pairs("a=x=y"), [pair("a", "x=y")]);
        assert_eq!(pairs(r"a=1\,2"), [pair("a", "1,2")]);
        assert_eq!(pairs(":path"), [pair(":path", "")]);
        let error = parse_descriptor("remote_address: 10.0.0.1").unwrap_err();
        assert!(error.ends_with("write remote_address=10.0.0.1"), "{error}");
        for blank in ["user ann", "user\tann", "user  ann", "plan=free,user ann"] {
            let error = parse_descriptor(blank).unwrap_err();
            assert!(error.ends_with("has no `=`: write user=ann"), "{error}");
        }
        assert_eq!(pairs("path=/a b"), [pair("path", "/a b")]);
        assert!(parse_descriptor("=v").is_err() && parse_descriptor("a=1,,b=2").is_err());
    }

    #[test]
    fn a_formatted_descriptor_is_read_back() {
        for (key, value) in [("a", ""), ("a,b", "1,2"), (r"a\", r"\,\\"), (":path", "/x=y z: *")] {
            let pairs = [(key.to_owned(), value.to_owned()), ("b".to_owned(), "x".to_owned())];
            let text = format_descriptor(&pairs);
            assert_eq!(parse_descriptor(&text).as_deref(), Ok(&pairs[..]), "{text}");
        }
    }
}
