//! Improves error messages of the command line parser: adds an example descriptor if only
//! descriptors are missing, and suggests one similar subcommand instead of several.

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::domain::nearest_word;
use crate::settings::{TABLE, find_similar_name};

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
        ErrorKind::UnknownArgument => {
            suggest_setting(&mut error);
            error
        }
        ErrorKind::InvalidSubcommand => {
            keep_nearest_subcommand(&mut error);
            error
        }
        _ => error,
    }
}

/// Suggests the flag of `serve` that other programs call by the given name.
fn suggest_setting(error: &mut Error) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return };
    let similar = find_similar_name(TABLE, given.split('=').next().unwrap_or_default());
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    if let Some(similar) = similar.filter(|_| usage.contains("tidegate serve")) {
        let flag = ContextValue::String(format!("--{similar}"));
        error.insert(ContextKind::SuggestedArg, flag);
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
    fn a_flag_of_other_programs_gets_ours_as_suggestion() {
        for (given, own) in [
            ("--config", "--policy"),
            ("--port", "--grpc-port"),
            ("--redis", "--redis-url"),
            ("--redis-host=h", "--redis-url"),
            ("--tls-cert", "--grpc-server-tls-cert"),
            ("--workers", "--threads"),
            ("--verbose", "--log-level"),
            ("--grpc-prot", "--grpc-port"),
        ] {
            let told = message(&["serve", given]);
            assert!(told.contains(&format!("a similar argument exists: '{own}'")), "{told}");
        }
        assert!(!message(&["check", "--config"]).contains("--policy"), "no flag of check");
    }

    #[test]
    fn a_misspelt_subcommand_gets_one_suggestion() {
        let told = message(&["chek", "p.yaml"]);
        assert!(told.contains("a similar subcommand exists: 'check'\n"), "{told}");
        assert!(!message(&["frobnicate"]).contains("similar"), "none is close");
    }
}
