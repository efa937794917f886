//! The client against a real daemon in the same process.
#![forbid(unsafe_code)]

// `cfg(test)` always holds here; it tells clippy that helper functions are test code too.
#[cfg(test)]
mod errors;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod round_trips;
#[cfg(test)]
mod stale_handles;
#[cfg(test)]
mod threads;
