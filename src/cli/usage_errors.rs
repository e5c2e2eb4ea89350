//! Improves error messages of the command line parser: adds an example descriptor if only
//! descriptors are missing, and suggests one similar subcommand instead of several.

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::domain::nearest_word;

/// Placeholder for descriptor arguments in the usage text of subcommands.
pub(super) const DESCRIPTORS_PLACEHOLDER: &str = "K=V,K2=V2";

/// Returns the error with a clearer message if only descriptors are missing or the subcommand is
/// unknown. Returns all other errors unchanged.
pub(super) fn reword(mut error: Error) -> Error {
    match error.kind() {
        ErrorKind::MissingRequiredArgument => match only_descriptors_are_missing(&error) {
            true => missing_descriptors_error(&error),
            false => error,
        },
        ErrorKind::InvalidSubcommand => {
            keep_nearest_subcommand(&mut error);
            error
        }
        _ => error,
    }
}

fn only_descriptors_are_missing(error: &Error) -> bool {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => {
            missing.iter().all(|name| name.contains(DESCRIPTORS_PLACEHOLDER))
        }
        _ => false,
    }
}

fn missing_descriptors_error(error: &Error) -> Error {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let message = format!(
        "no descriptor: add at least one KEY=VALUE after the domain, such as \
         remote_address=10.0.0.1\n\n{usage}\n\nFor more information, try '--help'.\n"
    );
    Error::raw(error.kind(), message)
}

/// Removes all suggested subcommands except the one with the most similar name.
fn keep_nearest_subcommand(error: &mut Error) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) else {
        return;
    };
    if let Some(nearest) = nearest_word(given, similar.iter().map(String::as_str)) {
        let nearest = ContextValue::String(nearest.to_owned());
        error.insert(ContextKind::SuggestedSubcommand, nearest);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn message(arguments: &[&str]) -> String {
        let arguments = ["tidegate"].iter().chain(arguments);
        reword(Cli::try_parse_from(arguments).unwrap_err()).to_string()
    }

    #[test]
    fn missing_descriptors_are_reported_with_an_example() {
        for arguments in [
            &["ask", "localhost:8081", "edge"][..],
            &["explain", "--policy", "p.yaml", "edge"],
            &["reset", "--debug-token-file", "token", "edge"],
        ] {
            let told = message(arguments);
            assert!(told.starts_with("error: no descriptor: add at least one KEY=VALUE"), "{told}");
            assert!(told.contains(&format!("\n\nUsage: tidegate {} ", arguments[0])), "{told}");
        }
        let told = message(&["ask", "localhost:8081"]);
        assert!(told.contains("<DOMAIN>") && told.contains(DESCRIPTORS_PLACEHOLDER), "{told}");
    }

    #[test]
    fn a_misspelt_subcommand_gets_one_suggestion() {
        let told = message(&["chek", "p.yaml"]);
        assert!(told.contains("a similar subcommand exists: 'check'\n"), "{told}");
        assert!(!message(&["frobnicate"]).contains("similar"), "none is close");
    }
}
