//! Words of the policy language: the values of each key that accepts one of several words. The
//! keyword table, the reader, and the listings take them from here.

use crate::domain::{Accounting, Charge, OnStoreFailure, Unit};
use crate::policy::spec::{RequestPart, TierMethod};

/// Type of a key that accepts one of several words.
pub(crate) trait Word: Copy + 'static {
    /// All words and their values.
    const TABLE: &'static [(&'static str, Self)];
    /// All words, in the order of [`Word::TABLE`].
    const WORDS: &'static [&'static str];

    /// Returns the word of this value.
    fn word(self) -> &'static str;

    /// Returns the value of a word, or `None` if there is no such word.
    fn from_word(text: &str, any_case: bool) -> Option<Self> {
        let is_same = |word: &str| match any_case {
            true => word.eq_ignore_ascii_case(text),
            false => word == text,
        };
        Self::TABLE.iter().find(|(word, _)| is_same(word)).map(|(_, value)| *value)
    }
}

/// Implements [`Word`]. A value without a word does not compile.
macro_rules! words {
    ($($type:ident { $($word:expr => $value:ident,)* })*) => {$(
        impl Word for $type {
            const TABLE: &'static [(&'static str, $type)] = &[$(($word, $type::$value)),*];
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn word(self) -> &'static str {
                match self {
                    $($type::$value => $word,)*
                }
            }
        }
    )*};
}

/// Algorithm of a limit, as named by the key `algorithm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AlgorithmName {
    #[default]
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    TokenBucket,
    LeakyBucket,
    Concurrency,
}

/// Whether hits are taken from the store in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepay {
    Off,
    Auto,
}

/// What windows are aligned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Epoch,
    Calendar,
}

words! {
    Unit {
        Unit::Second.as_str() => Second,
        Unit::Minute.as_str() => Minute,
        Unit::Hour.as_str() => Hour,
        Unit::Day.as_str() => Day,
        Unit::Week.as_str() => Week,
        Unit::Month.as_str() => Month,
        Unit::Year.as_str() => Year,
    }
    AlgorithmName {
        "fixed_window" => FixedWindow,
        "sliding_window" => SlidingWindow,
        "sliding_log" => SlidingLog,
        "token_bucket" => TokenBucket,
        "leaky_bucket" => LeakyBucket,
        "concurrency" => Concurrency,
    }
    Charge {
        Charge::Admitted.as_str() => Admitted,
        Charge::Billed.as_str() => Billed,
        Charge::Always.as_str() => Always,
    }
    OnStoreFailure {
        "local" => Local,
        "allow" => Allow,
        "deny" => Deny,
        "error" => Error,
    }
    Accounting {
        "all_or_nothing" => AllOrNothing,
        "independent" => Independent,
    }
    Prepay {
        "off" => Off,
        "auto" => Auto,
    }
    Align {
        "epoch" => Epoch,
        "calendar" => Calendar,
    }
    TierMethod {
        "shared" => Shared,
        "separate" => Separate,
        "hybrid" => Hybrid,
    }
    RequestPart {
        "remote_address" => RemoteAddress,
        "method" => Method,
        "path" => Path,
        "host" => Host,
    }
}
