//! The client against a real daemon in the same process.
#![forbid(unsafe_code)]

mod errors;
mod fixture;
mod round_trips;
mod stale_handles;
mod threads;
