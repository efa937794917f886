//! FFI of the cusim runtime (`sim/cusim_rt.h`) and a small safe launcher for kernel tests.
use std::ffi::{CStr, CString, c_char, c_int, c_void};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Opts {
    /// 0 forward, 1 reverse, 2 random
    pub order: u32,
    pub seed: u32,
    pub strict_exit: u32,
    pub strict_site: u32,
    /// livelock limit, 0 = default
    pub max_idle_yields: u64,
}
impl Opts {
    pub fn order(order: u32, seed: u32) -> Self {
        Self { order, seed, strict_exit: 1, strict_site: 1, max_idle_yields: 0 }
    }
}

unsafe extern "C" {
    pub fn cusim_launch(
        kernel: *const c_void,
        grid: *const u32,
        block: *const u32,
        dyn_smem: u32,
        args: *mut *mut c_void,
        opts: *const Opts,
    ) -> c_int;
    pub fn cusim_find(name: *const c_char) -> *const c_void;
    pub fn cusim_kernel_params(kernel: *const c_void, sizes: *mut *const u32) -> u32;
    pub fn cusim_error() -> *const c_char;
}

pub fn last_error() -> String {
    unsafe { CStr::from_ptr(cusim_error()) }.to_string_lossy().into_owned()
}

/// Launches a registered kernel; `args` holds the bytes of each parameter.
///
/// # Safety
/// The argument bytes must match the kernel's parameter types, and pointers in them must be valid.
pub unsafe fn launch(
    name: &str,
    grid: [u32; 3],
    block: [u32; 3],
    dyn_smem: u32,
    args: &mut [Vec<u8>],
    opts: Opts,
) -> Result<(), String> {
    let cname = CString::new(name).unwrap();
    let k = cusim_find(cname.as_ptr());
    if k.is_null() {
        return Err(format!("no kernel {name} (EXPORT_KERNEL?)"));
    }
    let mut sizes = std::ptr::null();
    let n = cusim_kernel_params(k, &mut sizes) as usize;
    let sizes = std::slice::from_raw_parts(sizes, n);
    if args.len() != n || args.iter().zip(sizes).any(|(a, &s)| a.len() != s as usize) {
        return Err(format!("{name} takes parameters of {sizes:?} bytes"));
    }
    let mut ptrs: Vec<*mut c_void> = args.iter_mut().map(|a| a.as_mut_ptr().cast()).collect();
    match cusim_launch(k, grid.as_ptr(), block.as_ptr(), dyn_smem, ptrs.as_mut_ptr(), &opts) {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}
