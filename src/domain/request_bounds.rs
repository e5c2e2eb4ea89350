//! Bounds on the size of one request. They limit the work that a single message can cause.
//!
//! Not here: the bounds of a policy (`policy`) and of a connection (`server`).

/// Maximum work of one call, and of one script call, in microseconds of Redis
/// ([`Check::work`](super::Check::work)): half of the 50 ms for which a call may block Redis, because
/// another server may be half as fast. 2,048 windows or buckets fit.
pub const CALL_WORK_MAX: u64 = 24_576;

/// Bounds on the size of one request. A request that exceeds any of them is rejected as invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of descriptors per request.
    pub descriptors_max: usize,
    /// Maximum number of entries per descriptor, including the `tidegate.slot` entry.
    pub entries_max: usize,
    /// Maximum size of the encoded request, in bytes.
    pub message_bytes_max: usize,
    /// Maximum number of fields in the encoded request, including those in nested messages.
    pub fields_max: usize,
    /// Maximum number of checks per request. It is bounded because one Redis script decides all of
    /// them. A policy is rejected if a request could exceed this maximum even though each of its
    /// descriptors has a different sequence of keys.
    pub checks_max: usize,
    /// Maximum number of requests per batch. `message_bytes_max` and `fields_max` also apply to a
    /// batch as a whole.
    pub batch_requests_max: usize,
}

impl Bounds {
    /// Default bounds. They are also the largest values that can be set, except for the size of a
    /// message.
    ///
    /// - 2,048 descriptors: Envoy sends one per `rate_limits` item of a route. Envoy Gateway writes
    ///   up to 256 per policy. Envoy AI Gateway writes descriptors for up to 128 models with 16
    ///   targets each.
    /// - 160 entries: Envoy sends one per action of a `rate_limits` item, and each entry is one
    ///   level of the policy's tree. Envoy Gateway writes up to 128 header matches into a selector.
    /// - 1 MiB: Envoy limits request headers to 60 KiB, and 16 descriptors may each carry the value
    ///   of a header that long. With a lower bound, a client could make the rate limit call fail by
    ///   sending a long header, and by default Envoy admits a request if that call fails. This
    ///   bound can be changed by a setting.
    /// - 65,536 fields: 2,048 descriptors of ten entries have 63,500 fields. The number is bounded
    ///   because a decoder allocates 72 bytes even for an empty entry, which takes only two bytes
    ///   in the message.
    /// - 2,048 checks: one per descriptor. A Redis script takes 2 to 12 µs for a window or bucket;
    ///   [`CALL_WORK_MAX`] bounds calls on other counters.
    /// - 1,024 requests per batch: beyond 100 requests, a larger batch hardly reduces the cost per
    ///   request.
    pub const DEFAULT: Bounds = Bounds {
        descriptors_max: 2_048,
        entries_max: 160,
        message_bytes_max: 1024 * 1024,
        fields_max: 65_536,
        checks_max: 2_048,
        batch_requests_max: 1_024,
    };
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds::DEFAULT
    }
}
