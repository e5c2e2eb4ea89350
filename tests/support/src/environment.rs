//! Numbers from the environment, such as the seed (TIDEGATE_SEED) of a random test.

/// The number in a variable, `None` if it is not set or empty.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}
