//! The policy of the proxies that ask over HTTP: `config/layers/forward-auth.yaml`.

use std::fs;

use super::bootstrap::repository;

/// A token's limit here, with a window that no test outlasts.
pub const LIMIT: usize = 3;

/// The example, with a smaller limit.
pub fn policy() -> String {
    let text =
        fs::read_to_string(repository("config/layers/forward-auth.yaml")).expect("the example");
    let few = text.replace("requests_per_unit: 60}", &format!("requests_per_unit: {LIMIT}}}"));
    assert_ne!(few, text);
    few.replace("unit: minute", "unit: year")
}
