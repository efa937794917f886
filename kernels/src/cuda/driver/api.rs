//! The driver's functions, found by name when the first GPU of the process is opened.
//!
//! cudarc finds the library; the calls go through types of our own, for three reasons.
//! A code that is newer than cudarc would be undefined behavior in its enum, and is a number here.
//! A function that the library lacks is an error here, and a panic there.
//! A library named by path is used as it is, whatever it calls itself.
//!
//! Handles of the driver (context, stream, event, module, function) are opaque words; nothing here looks into them.
//! On every platform that TierPack builds for, a word is passed as a pointer is.

#![expect(unsafe_code, reason = "loads the driver and resolves its functions")]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::env;
use std::ffi::OsStr;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

use super::error::{GpuError, NEEDED_DRIVER};

/// The variable that names another driver library: a path, or `system`.
pub const DRIVER_VARIABLE: &str = "TIERPACK_CUDA_DRIVER";

/// An opaque handle of the driver.
pub(super) type Handle = usize;

/// Declares the table of functions.
///
/// Expansion of `mem_alloc: "cuMemAlloc_v2"(*mut u64, usize);`: the field
/// `mem_alloc: unsafe extern "C" fn(*mut u64, usize) -> c_uint`, and its look-up by that name.
macro_rules! functions {
    ($($field:ident: $symbol:literal($($argument:ty),*);)*) => {
        /// The functions.
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_uint,)*
            /// Compiles PTX with a log; drivers have it, a stand-in may not.
            pub(super) module_load_data_ex: Option<LoadDataEx>,
            /// Keeps a thread that polls from ending another thread's capture.
            pub(super) exchange_capture_mode: Option<unsafe extern "C" fn(*mut c_uint) -> c_uint>,
            /// Loads a kernel that the driver would else load at its first launch, perhaps within a capture.
            pub(super) func_load: Option<unsafe extern "C" fn(Handle) -> c_uint>,
            /// The process that loaded the driver.
            process: u32,
            /// Kept open: the functions above lie in it.
            library: Source,
        }

        impl Api {
            fn resolve(library: Source) -> Result<Self, GpuError> {
                let symbols = library.symbols();
                Ok(Self {
                    // SAFETY: the types are those of the driver's header, cuda.h.
                    $($field: unsafe { find(symbols, $symbol) }?,)*
                    // SAFETY: as above.
                    module_load_data_ex: unsafe { find(symbols, "cuModuleLoadDataEx") }.ok(),
                    // SAFETY: as above.
                    exchange_capture_mode: unsafe { find(symbols, "cuThreadExchangeStreamCaptureMode") }.ok(),
                    // SAFETY: as above.
                    func_load: unsafe { find(symbols, "cuFuncLoad") }.ok(),
                    process: std::process::id(),
                    library,
                })
            }
        }
    };
}

type LoadDataEx =
    unsafe extern "C" fn(*mut Handle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void) -> c_uint;

functions! {
    get_error_name: "cuGetErrorName"(c_uint, *mut *const c_char);
    driver_get_version: "cuDriverGetVersion"(*mut c_int);
    device_get_count: "cuDeviceGetCount"(*mut c_int);
    device_get: "cuDeviceGet"(*mut c_int, c_int);
    device_get_name: "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_get_uuid: "cuDeviceGetUuid_v2"(*mut [u8; 16], c_int);
    device_get_attribute: "cuDeviceGetAttribute"(*mut c_int, c_uint, c_int);
    primary_ctx_retain: "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    primary_ctx_release: "cuDevicePrimaryCtxRelease_v2"(c_int);
    ctx_set_current: "cuCtxSetCurrent"(Handle);
    ctx_get_current: "cuCtxGetCurrent"(*mut Handle);
    mem_get_info: "cuMemGetInfo_v2"(*mut usize, *mut usize);
    mem_alloc: "cuMemAlloc_v2"(*mut u64, usize);
    mem_free: "cuMemFree_v2"(u64);
    mem_host_alloc: "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    mem_free_host: "cuMemFreeHost"(*mut c_void);
    mem_host_register: "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    mem_host_unregister: "cuMemHostUnregister"(*mut c_void);
    mem_host_get_device_pointer: "cuMemHostGetDevicePointer_v2"(*mut u64, *mut c_void, c_uint);
    memcpy_htod_async: "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle);
    memcpy_dtoh_async: "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
    memset_d8_async: "cuMemsetD8Async"(u64, u8, usize, Handle);
    stream_create: "cuStreamCreateWithPriority"(*mut Handle, c_uint, c_int);
    stream_destroy: "cuStreamDestroy_v2"(Handle);
    stream_synchronize: "cuStreamSynchronize"(Handle);
    stream_wait_event: "cuStreamWaitEvent"(Handle, Handle, c_uint);
    stream_is_capturing: "cuStreamIsCapturing"(Handle, *mut c_uint);
    event_create: "cuEventCreate"(*mut Handle, c_uint);
    event_destroy: "cuEventDestroy_v2"(Handle);
    event_record: "cuEventRecord"(Handle, Handle);
    event_synchronize: "cuEventSynchronize"(Handle);
    event_query: "cuEventQuery"(Handle);
    module_load_data: "cuModuleLoadData"(*mut Handle, *const c_void);
    module_unload: "cuModuleUnload"(Handle);
    module_get_function: "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    func_set_attribute: "cuFuncSetAttribute"(Handle, c_uint, c_int);
    launch_kernel: "cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

/// Where the library came from.
enum Source {
    /// The installed driver, kept by cudarc for as long as the process lives.
    System(&'static Library),
    /// A file that was named.
    File(Library),
}

impl Source {
    fn symbols(&self) -> &Library {
        match self {
            Self::System(library) => library,
            Self::File(library) => library,
        }
    }

    fn open(without_variable: Option<&OsStr>) -> Result<Self, GpuError> {
        let path = env::var_os(DRIVER_VARIABLE).filter(|path| !path.is_empty());
        let path = path.or_else(|| without_variable.map(OsStr::to_owned));
        match path.filter(|path| path != "system") {
            Some(path) => Self::open_file(&path),
            None => Self::open_system(),
        }
    }

    fn open_file(path: &OsStr) -> Result<Self, GpuError> {
        // SAFETY: the user who names the library vouches for it, as with the loader's own variables.
        let opened = unsafe { Library::new(path) };
        opened.map(Self::File).map_err(|cause| GpuError::NoDriver {
            cause: format!("load {} of {DRIVER_VARIABLE}: {cause}", path.display()),
        })
    }

    fn open_system() -> Result<Self, GpuError> {
        // SAFETY: loading the installed driver runs its initializers, as every CUDA program does.
        let is_present = unsafe { sys::is_culib_present() };
        if !is_present {
            return Err(GpuError::NoDriver { cause: "libcuda.so.1 is not installed".to_owned() });
        }
        // SAFETY: as above; it is present, so this does not panic.
        Ok(Self::System(unsafe { sys::culib() }))
    }
}

/// Looks a function up.
///
/// # Safety
/// - `T` is the type of the function with that name, a function pointer.
unsafe fn find<T: Copy>(library: &Library, symbol: &'static str) -> Result<T, GpuError> {
    // SAFETY: the caller promises the type.
    let found = unsafe { library.get::<T>(symbol) };
    found.map(|found| *found).map_err(|_| GpuError::NoFunction { name: symbol })
}

impl Api {
    /// The functions; the driver is loaded and its version checked at the first call that succeeds.
    ///
    /// `library` is what [`DRIVER_VARIABLE`] says where it says nothing.
    pub(super) fn get(library: Option<&OsStr>) -> Result<&'static Self, GpuError> {
        static API: OnceLock<Api> = OnceLock::new();
        if let Some(api) = API.get() {
            return if api.process == std::process::id() { Ok(api) } else { Err(GpuError::Forked) };
        }
        let library = Source::open(library)?;
        check_version(&library)?;
        let api = Self::resolve(library)?;
        Ok(API.get_or_init(|| api))
    }

    /// The driver's name of a code.
    pub(super) fn name_of(&self, code: u32) -> String {
        named(self.get_error_name, code)
    }

    /// What a call returned.
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<(), GpuError> {
        if code == 0 { Ok(()) } else { Err(GpuError::of(call, code, self.name_of(code))) }
    }
}

type GetErrorName = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;

fn named(get_error_name: GetErrorName, code: u32) -> String {
    let mut name = core::ptr::null();
    // SAFETY: `name` is written with a pointer to static text, or the call fails.
    let found = unsafe { get_error_name(code, &raw mut name) };
    if found != 0 || name.is_null() {
        return "a code that this driver has no name for".to_owned();
    }
    // SAFETY: the driver returned a pointer to a static C string.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Initializes the driver, and refuses one that is too old before anything that it may lack is looked up.
fn check_version(library: &Source) -> Result<(), GpuError> {
    let symbols = library.symbols();
    // SAFETY: the type is that of cuda.h.
    let get_error_name = unsafe { find::<GetErrorName>(symbols, "cuGetErrorName") };
    let name_of = |code| get_error_name.as_ref().map_or_else(|_| String::new(), |get| named(*get, code));
    // SAFETY: the type is that of cuda.h.
    let get_version: unsafe extern "C" fn(*mut c_int) -> c_uint =
        unsafe { find(symbols, "cuDriverGetVersion") }?;
    let mut found = 0;
    // SAFETY: `found` is written; the function needs no initialization.
    let code = unsafe { get_version(&raw mut found) };
    if code != 0 {
        return Err(GpuError::of("cuDriverGetVersion", code, name_of(code)));
    }
    if found < NEEDED_DRIVER {
        return Err(GpuError::OldDriver { found, needed: NEEDED_DRIVER });
    }
    // SAFETY: the type is that of cuda.h.
    let init: unsafe extern "C" fn(c_uint) -> c_uint = unsafe { find(symbols, "cuInit") }?;
    // SAFETY: it may be called any number of times.
    match unsafe { init(0) } {
        0 => Ok(()),
        100 => Err(GpuError::NoDevice),
        code => Err(GpuError::of("cuInit", code, name_of(code))),
    }
}

impl core::fmt::Debug for Api {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let source = match &self.library {
            Source::System(_) => "the installed driver",
            Source::File(_) => "a named file",
        };
        f.debug_struct("Api").field("library", &source).finish_non_exhaustive()
    }
}
