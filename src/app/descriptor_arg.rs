//! Reads descriptors as people write them, on the command line and in `/explain`: `k=v,k2=v2`.
//!
//! Not here: what they match.

use super::exit_codes::Failure;

/// One descriptor: keys and values, in order. A value may be empty or absent, and may hold `=`; a
/// comma or a backslash in a key or value is written with a backslash before it.
///
/// # Errors
///
/// [`Failure::Usage`] for an entry without a key.
pub fn descriptor(text: &str) -> Result<Vec<(String, String)>, Failure> {
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
    let pair = |entry: String| {
        let (key, value) = entry.split_once('=').unwrap_or((&entry, ""));
        if key.is_empty() {
            let wrong = format!("{text:?}: a descriptor is k=v,k2=v2; every entry has a key");
            return Err(Failure::Usage(wrong));
        }
        Ok((key.to_owned(), value.to_owned()))
    };
    entries.into_iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        descriptor(text).unwrap()
    }

    #[test]
    fn a_descriptor_is_read_as_it_is_written() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(pairs("a=1,b=2"), [pair("a", "1"), pair("b", "2")]);
        assert_eq!(pairs("a"), [pair("a", "")]);
        assert_eq!(pairs("a=x=y"), [pair("a", "x=y")]);
        assert_eq!(pairs(r"a=1\,2"), [pair("a", "1,2")]);
        assert!(descriptor("=v").is_err() && descriptor("a=1,,b=2").is_err());
    }
}
