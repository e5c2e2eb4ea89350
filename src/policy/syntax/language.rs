//! The words of the policy language: which key belongs where and what it takes.
//!
//! One table (`words`), read by three: the reader (unknown, misplaced and mistyped keys), `schema`
//! (what editors complete) and the tests that hold the two together. Here are its columns. Not here:
//! the table, what a key means.

/// A kind of map in a policy file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The top of the file.
    File,
    /// An entry of `descriptors`.
    Descriptor,
    /// `rate_limit`.
    RateLimit,
    /// An entry of `replaces`.
    Replaces,
    /// `tiers`.
    Tiers,
    /// A class of `tiers`.
    Class,
    /// `body`.
    Body,
}

impl Level {
    /// All of them.
    pub(crate) const ALL: [Level; 7] = [
        Level::File,
        Level::Descriptor,
        Level::RateLimit,
        Level::Replaces,
        Level::Tiers,
        Level::Class,
        Level::Body,
    ];

    /// As messages name it.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Level::File => "the top level of the file",
            Level::Descriptor => "the descriptor",
            Level::RateLimit => "`rate_limit`",
            Level::Replaces => "an entry of `replaces`",
            Level::Tiers => "`tiers`",
            Level::Class => "a class of `tiers`",
            Level::Body => "`body`",
        }
    }

    /// As the schema names it.
    pub(crate) const fn id(self) -> &'static str {
        match self {
            Level::File => "file",
            Level::Descriptor => "descriptor",
            Level::RateLimit => "rate_limit",
            Level::Replaces => "replaces",
            Level::Tiers => "tiers",
            Level::Class => "class",
            Level::Body => "body",
        }
    }
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Text of at most so many bytes, without control characters.
    Name,
    /// Any text of at most so many bytes.
    Text {
        /// The most bytes.
        bytes_max: usize,
    },
    /// A truth value.
    Bool,
    /// A whole number within bounds.
    Number {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// One of these words.
    Word {
        /// The words.
        words: &'static [&'static str],
        /// Capitals make no difference.
        any_case: bool,
    },
    /// A list of names.
    Names,
    /// A list of maps.
    List(Level),
    /// A map.
    Map(Level),
    /// A map of maps, by names.
    MapOf(Level),
    /// So many per cent, such as `24%`.
    Percent,
    /// A map of anything.
    Free,
}

/// A key of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Where it belongs.
    pub(crate) level: Level,
    /// The word.
    pub(crate) name: &'static str,
    /// What it takes.
    pub(crate) shape: Shape,
    /// One line for editors.
    pub(crate) about: &'static str,
}
