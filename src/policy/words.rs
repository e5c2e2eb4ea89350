//! Words of the policy language: the values of each key that accepts one of several words. The
//! keyword table, the reader, and the listings take them from here.

use crate::domain::{Accounting, Charge, OnStoreFailure, Unit, named_enum};
use crate::policy::compiled_policy::{EmptySegments, RequestPart, TierMethod};

/// Type of a key that accepts one of several words.
pub(crate) trait Word: Copy + 'static {
    const VALUES: &'static [Self];
    /// All words, in the order of [`Word::VALUES`].
    const WORDS: &'static [&'static str];

    /// Returns the value of a word, or `None` if there is no such word.
    fn from_word(text: &str, any_case: bool) -> Option<Self> {
        let is_same = |word: &&str| match any_case {
            true => word.eq_ignore_ascii_case(text),
            false => *word == text,
        };
        let at = Self::WORDS.iter().position(is_same)?;
        Self::VALUES.get(at).copied()
    }
}

/// Implements [`Word`].
macro_rules! words {
    ($($type:ident),*) => {$(
        impl Word for $type {
            const VALUES: &'static [$type] = &$type::ALL;
            const WORDS: &'static [&'static str] = &$type::NAMES;
        }
    )*};
}

words!(
    Accounting,
    AlgorithmName,
    Align,
    Charge,
    EmptySegments,
    OnStoreFailure,
    Prepay,
    RequestPart,
    TierMethod,
    Unit
);

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
