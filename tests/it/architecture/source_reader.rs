//! Reads source files as lines of code: comments and strings removed, `use` lists expanded, `super`
//! resolved. It understands this repository's style, not all of Rust.

use std::fs;
use std::path::Path;

/// One source file.
pub(crate) struct SourceFile {
    /// Its path in the repository.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
    /// Its module: `policy::key`.
    pub(crate) module: String,
    /// Its room: `policy`, `store::memory`.
    pub(crate) room: String,
    /// Its lines; a `use` list that goes over several is one.
    pub(crate) lines: Vec<Line>,
}

/// One line.
pub(crate) struct Line {
    /// Its number, from 1.
    pub(crate) number: usize,
    /// Its code, without comments and the insides of texts.
    pub(crate) code: String,
    /// It is in the file's test module.
    pub(crate) in_tests: bool,
}

/// Every Rust file below a directory of the repository, by path; none where it does not exist.
pub(crate) fn all_files(directory: &str) -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(&root.join(directory), &mut found);
    found.sort();
    found
        .iter()
        .map(|path| {
            let text = fs::read_to_string(root.join(path)).expect("a source file");
            SourceFile::parse(path, &text)
        })
        .collect()
}

fn walk(directory: &Path, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let inside = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).expect("inside");
            found.push(inside.display().to_string());
        }
    }
}

impl SourceFile {
    pub(crate) fn parse(path: &str, text: &str) -> SourceFile {
        let inside = path.strip_prefix("src/").unwrap_or(path).trim_end_matches(".rs");
        let module = inside.trim_end_matches("/mod").replace('/', "::");
        let parts: Vec<&str> = module.split("::").collect();
        let room = match parts.as_slice() {
            ["store", one @ ("memory" | "redis"), ..] => format!("store::{one}"),
            [first, ..] => (*first).to_owned(),
            [] => String::new(),
        };
        SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
            room,
            module,
            lines: lines(text, path.ends_with("/tests.rs")),
        }
    }

    /// The paths below the crate's root that a line names.
    pub(crate) fn rooms_named(&self, line: &Line) -> Vec<String> {
        let mut named = Vec::new();
        for root in ["crate::", "tidegate::"] {
            for (at, _) in line.code.match_indices(root) {
                if is_word_start(&line.code, at) && !line.code[..at].ends_with("::") {
                    spread("", &line.code[at + root.len()..], &mut named);
                }
            }
        }
        // An inline test module is one level further down than its file.
        let inline = line.in_tests && !self.module.ends_with("::tests");
        let parts: Vec<&str> = self.module.split("::").collect();
        let depth = parts.len() + usize::from(inline);
        let mut rest = line.code.as_str();
        while let Some(at) = rest.find("super::") {
            let mut after = &rest[at..];
            let mut ups = 0;
            while let Some(next) = after.strip_prefix("super::") {
                after = next;
                ups += 1;
            }
            let above: String = parts[..depth.saturating_sub(ups).min(parts.len())]
                .iter()
                .map(|part| format!("{part}::"))
                .collect();
            spread(&above, after, &mut named);
            rest = after;
        }
        named
    }
}

impl SourceFile {
    /// The paths below this file's module that a line names without a root, such as `child::item`.
    pub(crate) fn children_named(&self, line: &Line, children: &[&str]) -> Vec<String> {
        let mut named = Vec::new();
        for child in children {
            for (at, _) in line.code.match_indices(&format!("{child}::")) {
                let before = &line.code[..at];
                let is_relative = !before.ends_with("::") || before.ends_with("self::");
                if is_word_start(&line.code, at) && is_relative {
                    spread(&format!("{}::", self.module), &line.code[at..], &mut named);
                }
            }
        }
        named
    }
}

impl Line {
    /// Whether the line re-exports items, as the map of a directory does.
    pub(crate) fn is_re_export(&self) -> bool {
        let code = self.code.trim_start();
        code.starts_with("pub use ") || code.starts_with("pub(crate) use ")
    }

    /// Whether the line names a path of the world outside, as a whole word.
    pub(crate) fn names(&self, path: &str) -> bool {
        let (root, rest) = path.split_once("::").unwrap_or((path, ""));
        self.code.match_indices(root).any(|(at, _)| {
            if !is_word_start(&self.code, at) || self.code[..at].ends_with("::") {
                return false;
            }
            let Some(after) = self.code[at + root.len()..].strip_prefix("::") else { return false };
            let mut named = Vec::new();
            spread("", after, &mut named);
            rest.is_empty()
                || named.iter().any(|one| one == rest || one.starts_with(&format!("{rest}::")))
        })
    }
}

fn is_word_start(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$')
}

/// Spreads `a::{b, c::d}` into `a::b` and `a::c::d`; returns what follows.
fn spread<'c>(before: &str, code: &'c str, named: &mut Vec<String>) -> &'c str {
    let end = code
        .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':' || c == '*'))
        .unwrap_or(code.len());
    let (path, mut rest) = code.split_at(end);
    let path = format!("{before}{path}");
    let Some(list) = rest.strip_prefix('{').filter(|_| path.is_empty() || path.ends_with("::"))
    else {
        let path = path.trim_end_matches([':', '*']);
        if !path.is_empty() {
            named.push(path.trim_end_matches("::self").to_owned());
        }
        return rest;
    };
    rest = list;
    loop {
        rest = rest.trim_start_matches([',', ' ', '\n']);
        if rest.is_empty() {
            return rest;
        }
        if let Some(rest) = rest.strip_prefix('}') {
            return rest;
        }
        let before = rest.len();
        rest = spread(&path, rest, named);
        if let Some(renamed) = rest.strip_prefix(" as ") {
            rest = renamed.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
        }
        if rest.len() == before {
            return rest;
        }
    }
}

/// `all_tests`: the file is a test module as a whole.
fn lines(text: &str, all_tests: bool) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut in_tests = all_tests;
    let mut in_use = false;
    for (at, raw) in text.lines().enumerate() {
        let code = bare(raw);
        in_tests |= code.trim() == "#[cfg(test)]";
        match lines.last_mut() {
            Some(used) if in_use => {
                used.code.push(' ');
                used.code.push_str(code.trim());
                lines.push(Line { number: at + 1, code: String::new(), in_tests });
                let first = lines.len() - 2;
                // The whole list stays on its first line.
                let whole =
                    lines.iter().rposition(|line| line.code.contains("use ")).unwrap_or(first);
                if whole != first {
                    let moved = std::mem::take(&mut lines[first].code);
                    lines[whole].code.push_str(&moved);
                }
                in_use = !code.contains(';');
            }
            _ => {
                let start = code.trim_start();
                let uses = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "]
                    .iter()
                    .any(|begin| start.starts_with(begin));
                in_use = uses && !code.contains(';');
                lines.push(Line { number: at + 1, code, in_tests });
            }
        }
    }
    lines
}

/// A line without its comment and without the insides of its texts.
fn bare(line: &str) -> String {
    let mut code = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    let mut in_text = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_text => {
                chars.next();
            }
            '"' => in_text = !in_text,
            _ if in_text => continue,
            '\'' if chars.clone().nth(1) == Some('\'') => {
                chars.next();
                chars.next();
                continue;
            }
            '/' if chars.peek() == Some(&'/') => break,
            _ => {}
        }
        code.push(c);
    }
    code
}
