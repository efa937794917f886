//! cuBLAS, where it is installed: products of matrices, on the legacy default stream.
//!
//! Found by name when it is wanted, as the driver is; the types are those of `cublas_api.h` of CUDA 12 and 13.
#![expect(unsafe_code, reason = "loads a library and calls it")]

use core::ffi::{c_int, c_void};

use anyhow::{Context as _, Result, ensure};
use libloading::Library;
use tierpack_kernels::cuda::driver::{DeviceBuffer, Stream};

use crate::device::Bench;

/// The variable that names the library's file.
const VARIABLE: &str = "TIERPACK_CUBLAS";
const NAMES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];

/// `CUDA_R_16BF`, `CUBLAS_COMPUTE_32F`, `CUBLAS_GEMM_DEFAULT`, `CUBLAS_OP_N`.
const BF16: c_int = 14;
const COMPUTE_32F: c_int = 68;
const GEMM_DEFAULT: c_int = -1;
const OP_N: c_int = 0;

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
type GemmEx = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    u64,
    c_int,
    c_int,
    u64,
    c_int,
    c_int,
    *const c_void,
    u64,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// The library, and a handle of it.
#[derive(Debug)]
pub(crate) struct Cublas {
    handle: *mut c_void,
    destroy: Destroy,
    gemm: GemmEx,
    /// Everything of the legacy default stream.
    stream: Stream,
    /// Kept open.
    _library: Library,
}

impl Cublas {
    /// Opens the library; none where there is none.
    pub(crate) fn open(bench: &Bench) -> Result<Option<Self>> {
        let names =
            std::env::var(VARIABLE).map_or_else(|_| NAMES.map(str::to_owned).to_vec(), |name| vec![name]);
        // SAFETY: loading an installed library runs its initializers, as every program that uses it does.
        let Some(library) = names.iter().find_map(|name| unsafe { Library::new(name) }.ok()) else {
            return Ok(None);
        };
        // SAFETY: the type is that of the header.
        let create: Create = *unsafe { library.get("cublasCreate_v2") }.context("cublasCreate_v2")?;
        // SAFETY: as above.
        let destroy: Destroy = *unsafe { library.get("cublasDestroy_v2") }.context("cublasDestroy_v2")?;
        // SAFETY: as above.
        let gemm: GemmEx = *unsafe { library.get("cublasGemmEx") }.context("cublasGemmEx")?;
        let _entered = bench.device.enter()?;
        let mut handle = core::ptr::null_mut();
        // SAFETY: the handle is written; the context is current.
        let code = unsafe { create(&raw mut handle) };
        ensure!(code == 0, "cublasCreate_v2: status {code}");
        // SAFETY: 0 is the default stream, which always is.
        let stream = unsafe { Stream::of_caller(&bench.device, 0) };
        Ok(Some(Self { handle, destroy, gemm, stream, _library: library }))
    }

    /// Queues the product of two square matrices of BF16 with sides of `n`, added up in F32.
    pub(crate) fn multiply(&self, bench: &Bench, n: u32, [a, b, c]: [&DeviceBuffer; 3]) -> Result<()> {
        let bytes = u64::from(n) * u64::from(n) * 2;
        ensure!([a, b, c].iter().all(|matrix| matrix.len() >= bytes), "a matrix is too short");
        let _entered = bench.device.enter()?;
        let n = c_int::try_from(n)?;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let [alpha, beta] = [&one, &zero].map(|factor| core::ptr::from_ref(factor).cast());
        let [a, b, c] = [a, b, c].map(DeviceBuffer::address);
        // SAFETY: the types are those of the header; the matrices are as long as is said, and `product.rs` keeps them
        // until the stream has been waited for; the factors are read before this returns.
        let code = unsafe {
            (self.gemm)(
                self.handle,
                OP_N,
                OP_N,
                n,
                n,
                n,
                alpha,
                a,
                BF16,
                n,
                b,
                BF16,
                n,
                beta,
                c,
                BF16,
                n,
                COMPUTE_32F,
                GEMM_DEFAULT,
            )
        };
        ensure!(code == 0, "cublasGemmEx: status {code}");
        Ok(())
    }

    /// Waits for all products.
    pub(crate) fn wait(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: made by `open`, and destroyed once.
        let code = unsafe { (self.destroy)(self.handle) };
        // There is nobody to tell: the process ends soon.
        let _ = code;
    }
}
