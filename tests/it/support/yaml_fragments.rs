//! Pieces of YAML that are more telling than random bytes.
//!
//! Not here: words of the policy language.

pub const PIECES: [&str; 24] = [
    "<<: *a",
    "&a ",
    "*a",
    "---\n",
    "...\n",
    "!x ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    "\t",
    "'",
    "\"",
    "|\n",
    ">\n",
    "- ",
    ": ",
    "#",
    "~",
    "99999999999999999999",
    "-.inf",
    "\u{feff}",
    "descriptors: ",
];
