//! Compiling any text ends in a policy or in diagnostics, never in a panic.

use proptest::prelude::*;

use tidegate::policy::{Options, Source, compile};

use super::bad_files;
use crate::support::policy_cases;
use crate::support::yaml_fragments::PIECES;

fn seeds() -> Vec<Vec<u8>> {
    let cases = policy_cases::read("good").into_iter().chain(bad_files::cases());
    cases.flat_map(|case| case.files).map(|file| file.text).collect()
}

fn survives(text: Vec<u8>) {
    let sources = [
        Source { name: "a".to_owned(), text },
        Source { name: "b".to_owned(), text: b"domain: edge\n".to_vec() },
    ];
    for merge_domains in [false, true] {
        match compile(&sources, &Options { merge_domains, ..Options::default() }) {
            Ok(compiled) => assert!(compiled.warnings.iter().all(|w| w.kind.is_warning())),
            Err(faults) => {
                assert!(!faults.0.is_empty());
                assert!(
                    faults.0.iter().all(|f| f.line > 0 && f.column > 0 && !f.kind.is_warning())
                );
                assert!(!faults.to_string().is_empty());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        survives(text);
    }

    #[test]
    fn random_text_of_yaml_pieces_never_panics(
        pieces in proptest::collection::vec((0..PIECES.len(), "[a-z :\n]{0,3}"), 0..60)
    ) {
        let text: String = pieces.iter().map(|(at, tail)| format!("{}{tail}", PIECES[*at])).collect();
        survives(text.into_bytes());
    }

    #[test]
    fn mutated_files_never_panic(
        seed in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>(), 0..PIECES.len()), 1..8)
    ) {
        let seeds = seeds();
        let mut text = seed.get(&seeds).clone();
        for (at, what, byte, piece) in changes {
            let at = at.index(text.len() + 1);
            match what {
                0 => text.insert(at, byte),
                1 if at < text.len() => { text.remove(at); }
                2 if at < text.len() => text[at] = byte,
                _ => { text.splice(at..at, PIECES[piece].bytes()); }
            }
        }
        survives(text);
    }
}

#[test]
fn files_made_to_blow_up_are_refused() {
    for piece in ["[", "{", "{a: ", "- ", "? ", "&a [", "!x ", "'", "\"", "a: &a\n", "[*", "|"] {
        survives(piece.repeat(100_000).into_bytes());
    }
}
