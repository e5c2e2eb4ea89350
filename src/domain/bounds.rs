//! Bounds of one request: how much work a single message can ask for.
//!
//! Not here: bounds of a policy (`policy`), of a connection (`server`).

/// Bounds of one request. A request beyond any of them is rejected as invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Descriptors per request.
    pub descriptors_max: usize,
    /// Entries per descriptor, `tidegate.slot` included.
    pub entries_max: usize,
    /// Bytes of the encoded request.
    pub message_bytes_max: usize,
    /// Checks that the request may lead to: what one script of a store decides at once. Policies
    /// that could need more are rejected at load, and checks beyond the bound are left out.
    pub checks_max: usize,
}

impl Bounds {
    /// The bounds that apply unless somebody chooses others.
    ///
    /// - 64 descriptors: Envoy sends one per `rate_limits` item of a route, and ten are a lot.
    /// - 16 entries: one per action of an item, and one level of the policy's tree each.
    /// - 4 MiB: Envoy caps the headers that it copies values from at 60 KiB, and each of 64
    ///   descriptors may carry such a value: 3.75 MiB, and some for the rest. With a lower bound a
    ///   client's long header would make the call fail, and Envoy lets failed calls pass.
    /// - 128 checks: two per descriptor.
    pub const DEFAULT: Bounds = Bounds {
        descriptors_max: 64,
        entries_max: 16,
        message_bytes_max: 4 * 1024 * 1024,
        checks_max: 128,
    };
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds::DEFAULT
    }
}
