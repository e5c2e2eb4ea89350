//! Bounds of one request, which limit the work that a single message can cause.
//!
//! Not here: the bounds of a policy (`policy`) and of a connection (`server`).

/// Bounds on the size of one request. A request that exceeds any of them is rejected as invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of descriptors per request.
    pub descriptors_max: usize,
    /// Maximum number of entries per descriptor, including the entry `tidegate.slot`.
    pub entries_max: usize,
    /// Maximum size of the encoded request, in bytes.
    pub message_bytes_max: usize,
    /// Maximum number of fields of the encoded request, including those of nested messages.
    pub fields_max: usize,
    /// Maximum number of checks per request, because one Redis script decides them all. A policy
    /// that could need more checks is rejected when it is loaded; if a request needs more anyway,
    /// the excess checks are skipped.
    pub checks_max: usize,
}

impl Bounds {
    /// Default bounds.
    ///
    /// - 64 descriptors: Envoy sends one per `rate_limits` item of a route, and ten are a lot.
    /// - 16 entries: Envoy sends one per action of an item, and each entry is one level of the
    ///   policy's tree.
    /// - 1 MiB: Envoy limits request headers to 60 KiB, and 16 descriptors may each carry the value
    ///   of a header that long. With a lower bound, a client could make the call fail by sending a
    ///   long header, and Envoy lets failed calls pass. This bound is a setting.
    /// - 8,192 fields: 64 descriptors of 16 entries have 3,400. A decoder allocates 72 bytes for a
    ///   descriptor that takes two bytes in a message.
    /// - 128 checks: two per descriptor.
    pub const DEFAULT: Bounds = Bounds {
        descriptors_max: 64,
        entries_max: 16,
        message_bytes_max: 1024 * 1024,
        fields_max: 8_192,
        checks_max: 128,
    };
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds::DEFAULT
    }
}
