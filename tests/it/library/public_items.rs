//! The public items: few, and all of them listed in docs/LIBRARY.md.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The words of a source file.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The names after `pub use limiter::` in the crate's root.
fn exported(root: &str) -> Vec<&str> {
    let lists = root.split("pub use limiter::").skip(1);
    let mut names: Vec<&str> =
        lists.flat_map(|rest| words(rest.split(';').next().unwrap())).collect();
    names.sort_unstable();
    names
}

/// The names in the first column of the page's table.
fn listed(page: &str) -> Vec<&str> {
    let items = page.split("## Public items").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = items.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut names: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_page_lists_every_public_item() {
    let (root, page) = (read("src/lib.rs"), read("docs/LIBRARY.md"));
    assert_eq!(listed(&page), exported(&root));
}

#[test]
fn the_page_lists_every_public_method() {
    let page = read("docs/LIBRARY.md");
    let files = ["mod", "builder", "decision", "descriptor", "error", "redis_options"];
    for file in files {
        let source = read(&format!("src/limiter/{file}.rs"));
        for line in source.replace("#[doc(hidden)]\n    pub fn", "").lines() {
            let signature =
                line.strip_prefix("    pub fn ").or(line.strip_prefix("    pub async fn "));
            let Some(name) = signature.and_then(|rest| words(rest).next()) else { continue };
            assert!(
                page.contains(&format!("`{name}`")),
                "docs/LIBRARY.md lacks `{name}` of {file}.rs"
            );
        }
    }
}

#[test]
fn every_other_module_is_hidden_from_the_documentation() {
    let root = read("src/lib.rs");
    let lines: Vec<&str> = root.lines().collect();
    let modules = lines.windows(2).filter(|pair| pair[1].starts_with("pub mod "));
    let shown: Vec<&str> = modules
        .filter(|pair| pair[0] != "#[cfg_attr(doc, doc(hidden))]")
        .map(|pair| pair[1])
        .collect();
    assert!(shown.is_empty(), "{shown:?}");
}
