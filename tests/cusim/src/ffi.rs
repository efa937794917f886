//! The C interface of the runtime (`runtime/cusim_rt.h`).
#![expect(unsafe_code, reason = "calls into the runtime")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::{Error, Opts, Order, Result, Shape, Stats};

#[repr(C)]
struct RawOpts {
    order: u32,
    seed: u32,
    strict_exit: u32,
    strict_site: u32,
    max_idle_yields: u64,
}

unsafe extern "C" {
    fn cusim_launch(
        kernel: *const c_void,
        grid: *const u32,
        block: *const u32,
        shared_bytes: u32,
        args: *mut *mut c_void,
        opts: *const RawOpts,
    ) -> c_int;
    fn cusim_find(name: *const c_char) -> *const c_void;
    fn cusim_kernel_name(kernel: *const c_void) -> *const c_char;
    fn cusim_kernel_params(kernel: *const c_void, sizes: *mut *const u32) -> u32;
    fn cusim_error() -> *const c_char;
    fn cusim_get_stats(stats: *mut Stats);
}

/// A kernel of the runtime's table, which lives as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Found(NonNull<c_void>);

// SAFETY: the table is filled before `main` and never changed.
unsafe impl Send for Found {}
// SAFETY: as above.
unsafe impl Sync for Found {}

pub(crate) fn find(name: &str) -> Option<Found> {
    let name = CString::new(name).ok()?;
    // SAFETY: a text with its NUL; the answer is null or an entry of the table.
    let found = unsafe { cusim_find(name.as_ptr()) };
    NonNull::new(found.cast_mut()).map(Found)
}

pub(crate) fn name(kernel: Found) -> &'static str {
    // SAFETY: an entry of the table.
    let name = unsafe { cusim_kernel_name(kernel.0.as_ptr()) };
    // SAFETY: a text with its NUL, which lives as long as the table.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().expect("names of C functions are ASCII")
}

pub(crate) fn params(kernel: Found) -> &'static [u32] {
    let mut sizes = std::ptr::null();
    // SAFETY: an entry of the table, and a place for a pointer.
    let n = unsafe { cusim_kernel_params(kernel.0.as_ptr(), &raw mut sizes) };
    if n == 0 {
        return &[];
    }
    // SAFETY: the table has `n` sizes there.
    unsafe { std::slice::from_raw_parts(sizes, n as usize) }
}

fn last_error() -> String {
    // SAFETY: makes the runtime of this thread if there is none.
    let text = unsafe { cusim_error() };
    // SAFETY: a text with its NUL, which nothing changes before it is copied.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// # Safety
/// `args` fit the kernel's parameters in number and sizes, and hold what [`crate::Kernel::launch`] asks for.
pub(crate) unsafe fn launch(kernel: Found, shape: &Shape, args: &mut [Vec<u8>], opts: Opts) -> Result<Stats> {
    let mut args: Vec<*mut c_void> = args.iter_mut().map(|arg| arg.as_mut_ptr().cast()).collect();
    let raw = RawOpts {
        order: match opts.order {
            Order::Forward => 0,
            Order::Reverse => 1,
            Order::Random => 2,
        },
        seed: opts.seed,
        strict_exit: opts.strict_exit.into(),
        strict_site: opts.strict_site.into(),
        max_idle_yields: opts.max_idle_yields,
    };
    let (grid, block) = (shape.grid.as_ptr(), shape.block.as_ptr());
    let (kernel, args) = (kernel.0.as_ptr(), args.as_mut_ptr());
    // SAFETY: an entry of the table, three numbers each, and arguments that the caller answers for.
    let code = unsafe { cusim_launch(kernel, grid, block, shape.shared_bytes, args, &raw const raw) };
    match code {
        0 => Ok(stats()),
        1 => Err(Error::Launch(last_error())),
        3 => Err(Error::Fault(last_error())),
        _ => Err(Error::Rule(last_error())),
    }
}

fn stats() -> Stats {
    let mut stats = Stats::default();
    // SAFETY: a place for the numbers.
    unsafe { cusim_get_stats(&raw mut stats) };
    stats
}
