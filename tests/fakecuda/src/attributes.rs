//! What the device says of itself: an H200, as far as host code asks.

use std::ffi::c_int;

use crate::args::Out;
use crate::state::State;

/// Numbers of `CUdevice_attribute` that the stand-in itself asks for.
pub(crate) mod number {
    pub(crate) const MAJOR: u32 = 75;
    pub(crate) const MINOR: u32 = 76;
    pub(crate) const HOST_REGISTER_SUPPORTED: u32 = 99;
    pub(crate) const READ_ONLY_HOST_REGISTER_SUPPORTED: u32 = 113;
}

/// Everything else is 0.
const DEFAULTS: &[(u32, c_int)] = &[
    // Threads of a thread block, in all and in x, y, z; thread blocks of a grid in x, y, z.
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, c_int::MAX),
    (6, 65535),
    (7, 65535),
    // Shared memory of a thread block, lanes of a warp, registers of a thread block, clock in kHz, multiprocessors.
    (8, 49152),
    (10, 32),
    (12, 65536),
    (13, 1_980_000),
    (16, 132),
    // Maps memory of the host, runs kernels at once, memory clock and width, L2, threads, unified addresses.
    (19, 1),
    (31, 1),
    (36, 3_201_000),
    (37, 6144),
    (38, 62_914_560),
    (39, 2048),
    (41, 1),
    (number::MAJOR, 9),
    (number::MINOR, 0),
    // Shared memory and registers of a multiprocessor, managed memory, shared memory of a thread block that asks.
    (81, 233_472),
    (82, 65536),
    (83, 1),
    (89, 1),
    (97, 232_448),
    // 88, pageable memory access, is 0: there is something to register. 91, the host's address on the device, is 0:
    // the stand-in gives another one.
    (number::HOST_REGISTER_SUPPORTED, 1),
    (number::READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    // Memory pools.
    (115, 1),
];

pub(crate) fn value(state: &State, attribute: u32) -> c_int {
    let by_default = || DEFAULTS.iter().find(|(known, _)| *known == attribute).map(|(_, value)| *value);
    let asked = state.settings.attributes.get(&attribute).copied();
    asked.or_else(by_default).unwrap_or(0)
}

driver_call!(fn cuDeviceGetAttribute(out: Out<c_int>, attribute: u32, _device: c_int) needs Init |state| {
    out.set(value(state, attribute))
});
