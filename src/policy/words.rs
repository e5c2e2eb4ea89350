//! Words of the policy language: the values of the keys that accept one of several words, unless a
//! compiled policy has these values, too.

use crate::domain::named_enum;

named_enum! {
    /// Algorithm of a limit, as named by the key `algorithm`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) enum AlgorithmName {
        #[default]
        FixedWindow => "fixed_window",
        SlidingWindow => "sliding_window",
        SlidingLog => "sliding_log",
        TokenBucket => "token_bucket",
        LeakyBucket => "leaky_bucket",
        Concurrency => "concurrency",
    }
}

named_enum! {
    /// Whether hits are taken from the store in advance.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Prepay {
        Off => "off",
        Auto => "auto",
    }
}

named_enum! {
    /// What windows are aligned to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Align {
        Epoch => "epoch",
        Calendar => "calendar",
    }
}
