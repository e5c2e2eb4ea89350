//! Drop-in mode, in which the process replaces envoyproxy/ratelimit. A process is in this mode if
//! it was started as `ratelimit`, or without a subcommand while RUNTIME_ROOT is set.
//!
//! A deployment written for envoyproxy/ratelimit must start unchanged. Therefore, some defaults
//! follow envoyproxy/ratelimit, and settings that it would ignore cause notices instead of errors
//! (`cross_checks`, `notices`).

/// Defaults that replace those in the settings table in drop-in mode. Each pair is the name of a
/// setting and its default value.
pub(super) const DROP_IN_DEFAULTS: &[(&str, &str)] = &[
    // envoyproxy/ratelimit counts all hits, even those beyond a limit. Callers that charge after
    // the response (`apply_on_stream_done`) rely on it.
    ("charge", "billed"),
    // envoyproxy/ratelimit exports traces only if TRACING_ENABLED is set, over HTTP, and under this
    // service name; it exports no metrics over OTLP.
    ("OTEL_METRICS_EXPORTER", "none"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ("OTEL_SERVICE_NAME", "RateLimit"),
    ("traces-ratio", "1"),
    ("TRACING_ENABLED", "off"),
];

/// Information about a process that was started in drop-in mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropIn {
    /// Command-line arguments that were ignored because they are not flags of Tidegate. The values
    /// of unknown flags are omitted, because they may be secrets.
    pub ignored_arguments: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, Sources, TABLE};

    #[test]
    fn every_default_is_a_valid_value_of_a_setting() {
        for (name, value) in DROP_IN_DEFAULTS {
            let row = TABLE.iter().find(|row| row.name == *name).expect("a setting");
            assert_ne!(row.default, *value, "{name}: the same in all modes");
        }
        let sources = Sources { drop_in: Some(DropIn::default()), ..Sources::default() };
        let (settings, _) = Settings::read(&sources).unwrap();
        assert!(settings.drop_in);
        assert_eq!(settings.traces_ratio, 1.0);
    }
}
