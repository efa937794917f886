//! The shared-memory protocol, explored by loom: every order in which its steps and their effects can meet.
//!
//! Each model drives the functions that production runs (`epoch`, `publish`, `ring`), over loom's atomics, and keeps
//! the bytes of extents in loom's cells: an access that is not ordered after the one before it ends the model.
//! Each rule has a mutant that breaks it, and a test that loom finds the break; a model that finds no mutant proves
//! nothing.
//! A model whose exploration is bounded says so in its test's name or comment; the others are exhaustive.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p tierpack-shm --release --test loom -- --nocapture
//! ```
#![cfg(loom)]

#[path = "loom/blocks.rs"]
mod blocks;
#[path = "loom/ends.rs"]
mod ends;
#[path = "loom/explore.rs"]
mod explore;
#[path = "loom/finished.rs"]
mod finished;
#[path = "loom/overlays.rs"]
mod overlays;
#[path = "loom/ring.rs"]
mod ring;
#[path = "loom/seqcount.rs"]
mod seqcount;
#[path = "loom/shared.rs"]
mod shared;
#[path = "loom/slots.rs"]
mod slots;
