//! The simulator itself: what breaks a rule ends in the right error, what is legal passes, and every CPU twin gives
//! what the GPU's instruction gives.

mod barriers;
mod harness;
mod legal;
mod memory;
#[cfg(sanitizer)]
mod planted;
mod twins;
mod warps;
