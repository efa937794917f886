//! A stand-in for the CUDA driver: kernels run on the CPU, and what a GPU may do late is done late.
//!
//! A shared library, `libfakecuda.so`, with the names of the driver that the tests' host code calls.
//! Tests open it by its absolute path; its SONAME, `libcuda.so`, then answers who asks for the driver.
//! Kernels run on `tierpack-cusim`, from the same source as the images that a module is loaded from: an image whose
//! kernels take other parameters is refused.
//!
//! What it is for: code that is right only by luck fails here.
//! Device memory is inaccessible unless the device works; it has canaries behind each allocation, and poison in it.
//! Registered memory has another address on the device than on the host, and is read-only there if so registered.
//! Pageable memory is read within the call, page-locked memory when the stream gets to it.
//! A fault of a kernel stays for the whole process, as on a GPU: a test that provokes one has a process of its own.
//!
//! It encodes a reading of the driver's documentation. Nothing that passes here has run on a GPU.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `FAKE_CUDA_MODE` | `late` (as without it): work runs in calls that synchronize, and only there; `sync`: within the call that asks for it; `random`: each call may run some; `worker`: a thread runs it |
//! | `FAKE_CUDA_SEED` | of mode `random` and of random lanes; 1 without it |
//! | `FAKE_CUDA_ORDER` | of lanes: `0` forward, `1` reverse, `2` random |
//! | `FAKE_CUDA_MEM` | bytes of device memory; 8 GiB without it |
//! | `FAKE_CUDA_DEVICES` | `0`: `cuInit` answers `CUDA_ERROR_NO_DEVICE` |
//! | `FAKE_CUDA_ATTR_<n>` | value of device attribute `n`, for example 113 for read-only registration |
//! | `FAKE_CUDA_FAIL` | `NAME:N:CODE`, several with commas: the `N`-th call of `NAME` answers `CODE`, every call with `N` 0 |
//! | `FAKE_CUDA_ALIAS` | `0`: registered memory has one address on host and device |
//! | `FAKE_CUDA_PROTECT` | `0`: the host may touch device memory |
//! | `FAKE_CUDA_LEAKS` | `1`: live allocations and registrations are told when the context is released |
//! | `FAKE_CUDA_TRACE` | a file that gets a line per call: name, arguments, answer |

#![deny(unsafe_code)]

#[macro_use]
mod trace;
#[macro_use]
mod call;

mod args;
mod attributes;
mod capture;
mod code;
mod copies;
mod devices;
mod events;
mod functions;
mod graphs;
mod image;
mod launches;
mod memory;
mod modules;
mod ops;
mod raw;
mod schedule;
mod settings;
mod state;
mod streams;
