//! Enums whose variants have names in policy files, settings, metrics, or logs.
//!
//! Not here: reading such names from policy files (`policy`) and settings (`settings`).

/// Enum that [`named_enum`] declares.
pub(crate) trait NamedEnum: Copy + 'static {
    const VALUES: &'static [Self];
    /// All names, in the order of [`NamedEnum::VALUES`].
    const WORDS: &'static [&'static str];

    /// Returns the value of a name, or `None` if there is no such name.
    fn from_name(name: &str, any_case: bool) -> Option<Self> {
        let is_same = |word: &&str| match any_case {
            true => word.eq_ignore_ascii_case(name),
            false => *word == name,
        };
        let at = Self::WORDS.iter().position(is_same)?;
        Self::VALUES.get(at).copied()
    }
}

/// Declares an enum with a name for each variant. The names, and the list of all variants, follow
/// from the declaration, so that none can be missing.
macro_rules! named_enum {
    (@join $first:literal $(, $name:literal)*) => { concat!($first $(, "|", $name)*) };
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $type:ident {
            $($(#[$variant_attribute:meta])* $variant:ident => $name:literal,)*
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $type {
            $($(#[$variant_attribute])* $variant,)*
        }

        #[allow(dead_code, reason = "not every enum needs all of its lists")]
        impl $type {
            /// All variants, in the order of their discriminants.
            $visibility const ALL: [$type; $type::NAMES.len()] = [$($type::$variant),*];
            /// Names of all variants, in the order of `ALL`.
            $visibility const NAMES: [&'static str; [$($name),*].len()] = [$($name),*];
            /// The names, separated by `|`.
            $visibility const KEYWORDS: &'static str = $crate::domain::named_enum!(@join $($name),*);

            /// Returns the name of the variant, as written in policy files, metrics, and logs.
            $visibility const fn as_str(self) -> &'static str {
                $type::NAMES[self as usize]
            }
        }

        impl $crate::domain::NamedEnum for $type {
            const VALUES: &'static [$type] = &$type::ALL;
            const WORDS: &'static [&'static str] = &$type::NAMES;
        }
    };
}

pub(crate) use named_enum;
