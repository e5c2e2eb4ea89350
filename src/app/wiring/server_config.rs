//! Converts settings into the configuration of the gRPC server and its responses.

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::app::process::exit_codes::Failure;
use crate::domain::{Bounds, Permissions};
use crate::server::{Address, ListenSettings, Listener, ServerLimits, Tls};
use crate::settings::{HeaderFamily, OnOff, Settings};
use crate::wire::{LimitHeaderNames, ResponseConfig, ResponseSettings, WireError};

/// Binds the gRPC listener. Resolves the listen address if it is a host name.
///
/// # Errors
///
/// Returns [`Failure::Unavailable`] if the address cannot be bound.
pub(crate) fn bind_grpc(settings: &Settings, tls: Option<Tls>) -> Result<Listener, Failure> {
    let (flags, address) = match &settings.grpc_uds {
        Some(path) => (["--grpc-uds", "--grpc-uds"], Address::Unix(path.clone())),
        None => {
            let flags = ["--grpc-host", "--grpc-port"];
            (flags, Address::Tcp(resolve(&settings.grpc_host, settings.grpc_port, flags)?))
        }
    };
    let granted = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = NonZeroUsize::new(settings.threads).unwrap_or(granted);
    let limits = server_limits(settings);
    Listener::bind(ListenSettings { address, threads, limits, tls }).map_err(|error| match error {
        WireError::Bind { address, source } => Failure::address(flags, &address, &source),
        error => error.into(),
    })
}

fn server_limits(settings: &Settings) -> ServerLimits {
    let unless_zero = |duration: Duration| (!duration.is_zero()).then_some(duration);
    ServerLimits {
        streams_max: settings.streams,
        connections_max: settings.connections,
        connection_age_max: unless_zero(settings.grpc_max_connection_age),
        drain_delay: settings.drain_delay,
        hard_limit: settings.drain_limit(),
        ..ServerLimits::default()
    }
}

/// Returns whether `/json` and `/authz` are enabled. By default, they are disabled if the gRPC port
/// requires client certificates, because the HTTP port cannot require them.
pub(crate) fn is_json_enabled(settings: &Settings) -> bool {
    match settings.json {
        OnOff::On => true,
        OnOff::Off => false,
        OnOff::Auto => settings.grpc_client_tls_cacert.is_none(),
    }
}

/// Returns the configuration of response headers, bodies and metadata.
pub(crate) fn response_config(settings: &Settings) -> Result<ResponseConfig, Failure> {
    let standard = match settings.headers {
        HeaderFamily::RateLimit | HeaderFamily::Both => Some(LimitHeaderNames::default()),
        HeaderFamily::None | HeaderFamily::XRateLimit => None,
    };
    let compat = settings.limit_response_headers_enabled.then(|| LimitHeaderNames {
        limit: settings.limit_limit_header.clone(),
        remaining: settings.limit_remaining_header.clone(),
        reset: settings.limit_reset_header.clone(),
    });
    let name = &settings.limit_name_header;
    let response = ResponseSettings {
        x_rate_limit: matches!(settings.headers, HeaderFamily::XRateLimit | HeaderFamily::Both),
        rate_limit: compat.or(standard),
        reset: settings.header_reset,
        retry_after: settings.retry_after,
        retry_jitter_percent: settings.retry_after_spread,
        limited_by: (!name.is_empty()).then(|| name.clone()),
        body: settings.rejection_body,
        request_metadata: settings.response_dynamic_metadata,
    };
    Ok(ResponseConfig::new(response)?)
}

/// Resolves a host name to its first address. Listen addresses are resolved once, at startup. An
/// error names `flags`, which set the host and the port.
pub(crate) fn resolve(
    host: &str,
    port: u16,
    flags: [&'static str; 2],
) -> Result<SocketAddr, Failure> {
    let failure = |error| Failure::address(flags, &format!("{host}:{port}"), &error);
    let mut found = (host, port).to_socket_addrs().map_err(failure)?;
    found.next().ok_or_else(|| failure(std::io::ErrorKind::AddrNotAvailable.into()))
}

/// Returns the permissions of callers without a grant.
pub(crate) fn open_permissions(settings: &Settings) -> Permissions {
    let Settings { refunds: refund, peeks: peek, request_limits: limits, .. } = *settings;
    Permissions { refund, peek, limits }
}

/// Returns the bounds on the size of a request and the number of limits it checks.
pub(crate) fn bounds(settings: &Settings) -> Bounds {
    Bounds {
        descriptors_max: settings.descriptors,
        entries_max: settings.entries,
        message_bytes_max: settings.message_size,
        checks_max: settings.checks,
        ..Bounds::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{ResetFormat, RetryAfterFormat};
    use crate::settings::Sources;

    fn settings(flags: &[(&str, &str)]) -> Settings {
        Settings::read(&Sources::from_flags(flags)).unwrap().0
    }

    #[test]
    fn each_limit_of_the_server_is_that_of_its_setting() {
        let limits = server_limits(&settings(&[
            ("streams", "7"),
            ("connections", "23"),
            ("drain-delay", "14ms"),
        ]));
        assert_eq!((limits.streams_max, limits.connections_max), (7, 23));
        assert_eq!(limits.drain_delay, Duration::from_millis(14));
    }

    #[test]
    fn a_tenth_of_the_hard_limit_and_at_most_a_second_is_left_for_the_exit() {
        let flags = |hard_limit| [("drain-delay", "0s"), ("hard-limit", hard_limit)];
        let drain_ms =
            |hard_limit| server_limits(&settings(&flags(hard_limit))).hard_limit.as_millis();
        assert_eq!((drain_ms("5s"), drain_ms("60s")), (4_500, 59_000));
    }

    #[test]
    fn zero_disables_the_maximum_connection_age() {
        let off = server_limits(&settings(&[("grpc-max-connection-age", "0s")]));
        assert_eq!(off.connection_age_max, None);
        let on = server_limits(&settings(&[]));
        assert_eq!(on.connection_age_max, Some(Duration::from_secs(86_400)));
    }

    #[test]
    fn formats_of_times_in_headers_are_those_of_the_settings() {
        let formats = |flags: &[(&str, &str)]| {
            let config = response_config(&settings(flags)).unwrap().settings;
            (config.reset, config.retry_after, config.retry_jitter_percent)
        };
        let default = (ResetFormat::Seconds, Some(RetryAfterFormat::Seconds), 0);
        assert_eq!(formats(&[]), default);
        let flags =
            [("header-reset", "unix"), ("retry-after", "date"), ("retry-after-spread", "20")];
        let changed = (ResetFormat::UnixTime, Some(RetryAfterFormat::HttpDate), 20);
        assert_eq!(formats(&flags), changed);
        assert_eq!(formats(&[("retry-after", "off")]).1, None);
    }
}
