//! Settings whose values are words, and which other modules than `settings` use, too.

use super::named_enum::named_enum;

named_enum! {
    /// Log level: the lowest severity that is logged.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Verbosity {
        /// Logs nothing.
        Off => "off",
        /// Logs failures only.
        Error => "error",
        /// Logs failures and problems that need attention.
        Warn => "warn",
        /// Logs failures, problems and normal events.
        Info => "info",
        /// Logs all events, including details for debugging.
        Debug => "debug",
    }
}

named_enum! {
    /// Format of log lines.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LineFormat {
        /// Plain text for human readers.
        Text => "text",
        /// One JSON object per line, for log processors.
        Json => "json",
    }
}

named_enum! {
    /// Display format of the descriptor values of rejected keys.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ValueDisplay {
        /// Shows the first 24 bytes of each value.
        Shortened => "shortened",
        /// Shows no values, only the keyed hash that identifies the counter. `tidegate explain`
        /// prints the hash of a known descriptor.
        #[default]
        Hashed => "hashed",
    }
}

named_enum! {
    /// Protocol of the OTLP export.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OtlpProtocol {
        /// Protobuf messages in gRPC calls.
        #[default]
        Grpc => "grpc",
        /// Protobuf messages in HTTP/1.1 requests.
        HttpProtobuf => "http/protobuf",
    }
}

named_enum! {
    /// Format of the time in the reset header.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ResetFormat {
        /// Seconds from now, rounded up, at least 1.
        #[default]
        Seconds => "seconds",
        /// Unix time in seconds, rounded up.
        UnixTime => "unix",
    }
}

named_enum! {
    /// Format of the time in the `Retry-After` header.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum RetryAfterFormat {
        /// Seconds from now, rounded up, at least 1.
        #[default]
        Seconds => "seconds",
        /// HTTP date, rounded up to a whole second.
        HttpDate => "date",
    }
}
