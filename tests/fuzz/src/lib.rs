//! What the fuzz targets do with their bytes: one function each, so that a test can run them as well.
//!
//! A target holds what must be true of any bytes: an error, or output of the right length; and where the bytes
//! were made to be valid, the right output.
//! A finding is a panic, a sanitizer's report, or memory out of bounds.
//!
//! Each input starts with a few bytes that choose a case and how much of the rest is repaired (magic, lengths,
//! checksums): what is never repaired would only test the first check, and what always is would never test it.
//! `run.sh` builds the binaries and runs them over `corpus`, which the program `seeds` has written.
#![forbid(unsafe_code)]

mod block_header;
mod client_page;
mod decode;
mod front;
mod input;
mod message;
mod parts;
mod planes;
mod round_trip;
pub mod seeds;

pub use block_header::block_header;
pub use client_page::client_page;
pub use decode::decode;
pub use message::message;
pub use round_trip::round_trip;

/// A target by name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 5] = [
    ("decode", decode),
    ("round_trip", round_trip),
    ("block_header", block_header),
    ("message", message),
    ("client_page", client_page),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn corpus(target: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        let paths = fs::read_dir(folder).expect("the corpus is there").map(|entry| entry.unwrap().path());
        paths.map(|path| (path.clone(), fs::read(path).expect("a seed is readable"))).collect()
    }

    #[test]
    fn the_corpus_is_what_the_program_seeds_writes() {
        for (target, _) in TARGETS {
            let committed = corpus(target);
            let seeds = seeds::of(target);
            for (name, bytes) in &seeds {
                let found = committed.iter().find(|(path, _)| path.ends_with(name));
                assert_eq!(found.map(|(_, bytes)| bytes), Some(bytes), "{target}/{name}: run seeds again");
            }
            assert!(committed.len() >= seeds.len() && seeds.len() >= 5, "{target}");
        }
    }

    #[test]
    fn every_target_passes_its_corpus_and_damaged_forms_of_it() {
        for (target, run) in TARGETS {
            for bytes in corpus(target).values() {
                run(bytes);
                for i in (0..bytes.len().min(96)).step_by(4) {
                    let mut damaged = bytes.clone();
                    damaged[i] ^= 0x81;
                    run(&damaged);
                    run(&bytes[..i]);
                }
            }
        }
    }
}
