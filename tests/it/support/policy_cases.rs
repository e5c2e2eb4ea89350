//! Small policies with names, many to a file of `tests/it/policy`.
//!
//! `--- # NAME` begins a case, and `--- # NAME/FILE` one of its files, if it has several. Lines
//! `# expect: TEXT` at the start of a file say what becomes of it; they count as its first lines. A
//! file of its own without such a beginning is one case, for text that has no other home, such as a
//! byte order mark; `NAME.txt` may say what becomes of it.

use std::path::{Path, PathBuf};
use std::{fs, mem};

const BEGINS: &[u8] = b"--- # ";
const EXPECTS: &[u8] = b"# expect: ";

/// A case; most have one file.
pub struct PolicyCase {
    pub name: String,
    pub files: Vec<PolicyFile>,
}

pub struct PolicyFile {
    pub name: String,
    pub text: Vec<u8>,
    pub expected: String,
}

impl PolicyCase {
    /// A case of one file, which begins with what is expected.
    pub fn of(name: &str, text: impl Into<Vec<u8>>) -> PolicyCase {
        let file = PolicyFile::new(format!("{name}.yaml"), text.into());
        PolicyCase { name: name.to_owned(), files: vec![file] }
    }
}

impl PolicyFile {
    fn new(name: String, text: Vec<u8>) -> PolicyFile {
        let told = text.split(|byte| *byte == b'\n').map_while(|line| line.strip_prefix(EXPECTS));
        let expected = String::from_utf8(told.collect::<Vec<_>>().join(&b'\n')).unwrap();
        PolicyFile { name, text, expected }
    }
}

/// The cases of a directory, `good` or `bad`.
pub fn read(directory: &str) -> Vec<PolicyCase> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/policy").join(directory);
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().unwrap() == "yaml").collect();
    paths.sort();
    paths.iter().flat_map(|path| cases(path)).collect()
}

fn cases(path: &Path) -> Vec<PolicyCase> {
    let text = fs::read(path).unwrap();
    if !text.starts_with(BEGINS) {
        let mut case = PolicyCase::of(&path.file_stem().unwrap().to_string_lossy(), text);
        if let Ok(told) = fs::read_to_string(path.with_extension("txt")) {
            told.trim_end().clone_into(&mut case.files[0].expected);
        }
        return vec![case];
    }
    let mut cases: Vec<PolicyCase> = Vec::new();
    let mut rest = &text[..];
    while let Some(after) = rest.strip_prefix(BEGINS) {
        let line_end = after.iter().position(|byte| *byte == b'\n').unwrap();
        let title = String::from_utf8(after[..line_end].to_vec()).unwrap();
        let body = &after[line_end + 1..];
        let next =
            body.windows(BEGINS.len() + 1).position(|at| at[0] == b'\n' && at[1..] == *BEGINS);
        let end = next.map_or(body.len(), |at| at + 1);
        rest = &body[end..];
        let Some((case, file)) = title.split_once('/') else {
            cases.push(PolicyCase::of(&title, &body[..end]));
            continue;
        };
        let file = PolicyFile::new(file.to_owned(), body[..end].to_vec());
        match cases.last_mut().filter(|last| last.name == case) {
            Some(last) => last.files.push(file),
            None => cases.push(PolicyCase { name: case.to_owned(), files: vec![file] }),
        }
    }
    cases
}

/// The text of a case of one file.
pub fn text(directory: &str, name: &str) -> String {
    let case = read(directory).into_iter().find(|case| case.name == name);
    String::from_utf8(mem::take(&mut case.unwrap().files[0].text)).unwrap()
}
