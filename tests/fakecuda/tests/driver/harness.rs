//! Opening the stand-in, processes for tests of their own, and memory to register.
#![expect(unsafe_code, reason = "calls the driver, and maps memory")]

use std::ffi::{CString, c_void};
use std::process::{Command, Output};
use std::ptr;

use cudarc::driver::sys;

pub(crate) use sys::{CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream};

/// Which test the process is there for.
const CHILD: &str = "FAKE_CUDA_TEST";

/// Calls a function of the driver; its code.
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: a test passes pointers to what it holds for the call, and keeps what the driver uses later, unless
        // to lose it is the test: then the stand-in answers with an error.
        #[expect(unsafe_code, reason = "calls the driver")]
        let code = unsafe { cudarc::driver::sys::$name($($arg),*) };
        code as u32
    }};
}

/// Calls a function of the driver that must succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(cu!($name($($arg),*)), 0, stringify!($name))
    };
}

/// Runs `body` in a process of its own, with these variables, and checks that it ends well; what it said.
///
/// Errors of kernels stay for the whole process, and the stand-in reads its environment once.
#[track_caller]
pub(crate) fn alone(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> String {
    let output = alone_any(name, variables, body);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// As [`alone`], however the process ends.
pub(crate) fn alone_any(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Output {
    if std::env::var_os(CHILD).is_some() {
        body();
        end();
    }
    let mut command = Command::new(std::env::current_exe().expect("the test knows its program"));
    command.args(["--exact", name, "--nocapture"]).env(CHILD, name).envs(variables.iter().copied());
    command.output().expect("the test can be started again")
}

/// The test has been run in its own process: what it says of the parent's process would be said twice.
#[expect(clippy::exit, reason = "the process is there for one test")]
fn end() -> ! {
    std::process::exit(0)
}

/// Opens the stand-in by its path, for the bindings to find it.
#[expect(clippy::mem_forget, reason = "the driver stays until the process ends")]
pub(crate) fn load() {
    let program = std::env::current_exe().expect("the test knows its program");
    let path = program.parent().expect("it lies in a folder").join("libfakecuda.so");
    // SAFETY: initializers of the library register kernels, and nothing else.
    let library = unsafe { libloading::Library::new(&path) }.expect("cargo has built the stand-in");
    std::mem::forget(library);
    // SAFETY: only looks for the library, which is there.
    assert!(unsafe { sys::is_culib_present() }, "the SONAME answers for {}", path.display());
}

/// Opens the stand-in and gives this thread its context.
pub(crate) fn open() {
    load();
    ok!(cuInit(0));
    let mut context = ptr::null_mut();
    ok!(cuDevicePrimaryCtxRetain(&raw mut context, 0));
    ok!(cuCtxSetCurrent(context));
}

pub(crate) fn enter() {
    let mut context = ptr::null_mut();
    ok!(cuDevicePrimaryCtxRetain(&raw mut context, 0));
    ok!(cuCtxSetCurrent(context));
}

/// A stream that the legacy stream need not wait for.
pub(crate) fn stream() -> CUstream {
    let mut stream = ptr::null_mut();
    ok!(cuStreamCreate(&raw mut stream, 1));
    stream
}

pub(crate) fn event() -> CUevent {
    let mut event = ptr::null_mut();
    ok!(cuEventCreate(&raw mut event, 2));
    event
}

pub(crate) fn device(len: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&raw mut at, len));
    at
}

/// A PTX text whose kernel takes as many addresses.
pub(crate) fn ptx(kernel: &str, params: usize) -> CString {
    let params: Vec<_> = (0..params).map(|idx| format!("\t.param .u64 {kernel}_param_{idx}")).collect();
    let params = params.join(",\n");
    let head = ".version 9.0\n.target sm_80\n.address_size 64\n\n";
    let text = format!("{head}.visible .entry {kernel}(\n{params}\n)\n{{\n\tret;\n}}\n");
    CString::new(text).expect("no NUL")
}

pub(crate) fn load_image(image: *const c_void) -> (u32, CUmodule) {
    let mut module = ptr::null_mut();
    let code = cu!(cuModuleLoadData(&raw mut module, image));
    (code, module)
}

pub(crate) fn find(module: CUmodule, kernel: &str) -> (u32, CUfunction) {
    let (name, mut function) = (CString::new(kernel).expect("no NUL"), ptr::null_mut());
    let code = cu!(cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
    (code, function)
}

/// A kernel of cusim's own, which takes as many addresses.
pub(crate) fn kernel(name: &str, params: usize) -> CUfunction {
    let text = ptx(name, params);
    let (code, module) = load_image(text.as_ptr().cast());
    assert_eq!(code, 0, "{name}");
    let (code, function) = find(module, name);
    assert_eq!(code, 0, "{name}");
    function
}

/// Launches one thread block with these addresses; the code.
pub(crate) fn launch(function: CUfunction, threads: u32, addresses: &mut [u64], stream: CUstream) -> u32 {
    let mut params: Vec<*mut c_void> =
        addresses.iter_mut().map(|address| (&raw mut *address).cast()).collect();
    let (params, extra) = (params.as_mut_ptr(), ptr::null_mut());
    cu!(cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, params, extra))
}

/// The words at an address of the device.
pub(crate) fn words(at: u64, n: usize) -> Vec<u32> {
    let mut words = vec![0_u32; n];
    ok!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), at, n * 4));
    words
}

/// A memfd, mapped shared.
pub(crate) struct Shared {
    at: *mut c_void,
    pub(crate) len: usize,
}

impl Shared {
    pub(crate) fn new(len: usize) -> Self {
        Self::with(len, libc::PROT_READ | libc::PROT_WRITE)
    }

    pub(crate) fn read_only(len: usize) -> Self {
        Self::with(len, libc::PROT_READ)
    }

    fn with(len: usize, protection: i32) -> Self {
        let size = i64::try_from(len).expect("a length of a file");
        // SAFETY: a name with its NUL.
        let file = unsafe { libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: a file of ours.
        assert_eq!(unsafe { libc::ftruncate(file, size) }, 0);
        // SAFETY: a new mapping, wherever there is room.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, file, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at, len }
    }

    pub(crate) fn host(&self) -> *mut c_void {
        self.at
    }

    pub(crate) fn register(&self, flags: u32) -> u32 {
        cu!(cuMemHostRegister_v2(self.at, self.len, flags))
    }

    pub(crate) fn device(&self) -> u64 {
        let mut at = 0;
        ok!(cuMemHostGetDevicePointer_v2(&raw mut at, self.at, 0));
        at
    }

    pub(crate) fn store(&mut self, idx: usize, value: u32) {
        assert!(idx * 4 < self.len);
        // SAFETY: inside the mapping, which is writable.
        let word = unsafe { self.at.cast::<u32>().add(idx) };
        // SAFETY: as above.
        unsafe { word.write_volatile(value) };
    }

    pub(crate) fn load(&self, idx: usize) -> u32 {
        assert!(idx * 4 < self.len);
        // SAFETY: inside the mapping.
        let word = unsafe { self.at.cast::<u32>().add(idx) };
        // SAFETY: as above.
        unsafe { word.read_volatile() }
    }

    /// Puts other memory at its place.
    pub(crate) fn replace(&self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: over a mapping of ours.
        let at = unsafe { libc::mmap(self.at, self.len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_eq!(at, self.at);
    }

    /// Takes the memory away, registered or not.
    pub(crate) fn unmap(&self) {
        // SAFETY: a mapping of ours, which the test does not touch again.
        assert_eq!(unsafe { libc::munmap(self.at, self.len) }, 0);
    }
}

/// Touches an address as the host does.
pub(crate) fn touch(at: u64) -> u8 {
    let at = usize::try_from(at).expect("addresses have 64 bits");
    // SAFETY: none: the test is that this ends the process.
    unsafe { ptr::with_exposed_provenance::<u8>(at).read_volatile() }
}

/// A text of the driver.
pub(crate) fn text(at: *const std::ffi::c_char) -> String {
    // SAFETY: the driver's texts live as long as the driver.
    let text = unsafe { std::ffi::CStr::from_ptr(at) };
    text.to_string_lossy().into_owned()
}
