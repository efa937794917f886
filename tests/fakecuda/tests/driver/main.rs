//! The stand-in driver, called as host code calls a driver: through the bindings, from a library that is opened late.

#[macro_use]
mod harness;

mod capture;
mod faults;
mod memory;
mod modules;
mod registration;
mod schedule;
mod trace;
