//! Circles of imports. A circle between directories, or of more than two files of a directory, is a
//! type in the wrong place.
//!
//! `x.rs` is a file of the directory `x`, as is `x/mod.rs`. The re-exports of a `mod.rs` are a map of its
//! directory and no imports. Each file at the top of `src` is a directory of its own.

use std::collections::{BTreeMap, BTreeSet};

use super::none;
use super::source_reader::{SourceFile, all_files};

/// What each node imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The modules that each module imports, without tests.
fn imports_of_modules(files: &[SourceFile]) -> Graph {
    let modules: BTreeSet<&str> = files.iter().map(|file| &*file.module).collect();
    let module_of = |path: &str| {
        let mut path = path;
        while !modules.contains(path) {
            path = path.rsplit_once("::")?.0;
        }
        Some(path.to_owned())
    };
    let mut graph = Graph::new();
    for file in files {
        let below = format!("{}::", file.module);
        let children: Vec<&str> = modules
            .iter()
            .filter_map(|module| module.strip_prefix(&below).filter(|rest| !rest.contains("::")))
            .collect();
        let is_map = !children.is_empty();
        let imported = graph.entry(file.module.clone()).or_default();
        for line in &file.lines {
            if line.in_tests || is_map && line.is_re_export() {
                continue;
            }
            let named = file.rooms_named(line).into_iter();
            let named = named.chain(file.children_named(line, &children));
            imported.extend(named.filter_map(|path| module_of(&path)));
        }
        imported.remove(&file.module);
    }
    graph
}

/// Each group of nodes that reach one another.
fn circles(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let reached = |start: &str| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![start]);
        while let Some(node) = left.pop() {
            for next in graph.get(node).into_iter().flatten() {
                if seen.insert(next.as_str()) {
                    left.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|node| (node.as_str(), reached(node))).collect();
    let in_circle = |a: &str, b: &str| reached[a].contains(b) && reached[b].contains(a);
    let mut found = BTreeSet::new();
    for node in reached.keys() {
        found.insert(reached.keys().copied().filter(|other| in_circle(node, other)).collect());
    }
    found.into_iter().filter(|circle: &BTreeSet<&str>| circle.len() > 1).collect()
}

/// The source without tests and the root, which is a map.
fn files() -> Vec<SourceFile> {
    let files = all_files("src").into_iter();
    files.filter(|file| file.module != "lib" && !file.module.contains("::tests")).collect()
}

/// The directory of each module.
fn directories(files: &[SourceFile]) -> BTreeMap<&str, &str> {
    let stems: Vec<&str> =
        files.iter().map(|file| file.path["src/".len()..].trim_end_matches(".rs")).collect();
    let directory_of = |stem: &'_ str| {
        let is_part = |other: &&str| other.strip_prefix(stem).is_some_and(|r| r.starts_with('/'));
        let above = stem.rfind('/').filter(|_| !stems.iter().any(is_part));
        above.unwrap_or(stem.len())
    };
    let modules = files.iter().map(|file| &*file.module);
    modules.zip(&stems).map(|(module, stem)| (module, &stem[..directory_of(stem)])).collect()
}

fn faults(found: &[BTreeSet<&str>]) -> Vec<String> {
    let told = |circle: &BTreeSet<&str>| Vec::from_iter(circle.iter().copied()).join(", ");
    found.iter().map(|circle| format!("a circle: {}", told(circle))).collect()
}

#[test]
fn no_imports_go_in_a_circle_between_directories() {
    let files = files();
    let directory_of = directories(&files);
    let mut graph = Graph::new();
    for (module, imported) in imports_of_modules(&files) {
        let from = directory_of[&*module];
        let to = imported.iter().map(|module| directory_of[&**module]);
        let others = to.filter(|to| *to != from).map(str::to_owned);
        graph.entry(from.to_owned()).or_default().extend(others);
    }
    none(faults(&circles(&graph)));
}

#[test]
fn at_most_two_files_of_a_directory_import_each_other() {
    let files = files();
    let directory_of = directories(&files);
    let mut graph = imports_of_modules(&files);
    for (module, imported) in &mut graph {
        imported.retain(|other| directory_of[&**other] == directory_of[&**module]);
    }
    let mut found = circles(&graph);
    found.retain(|circle| circle.len() > 2);
    none(faults(&found));
}
