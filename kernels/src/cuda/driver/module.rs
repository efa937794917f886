//! Kernels: a module loaded into a context, and launches of its functions.

#![expect(unsafe_code, reason = "calls the driver")]

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::ffi::CString;
use std::sync::Arc;

use super::api::Handle;
use super::device::Device;
use super::error::GpuError;
use super::stream::Stream;
use crate::cuda::images::{self, Image, Module};
use crate::cuda::launch::Launch;

/// The variable that has the driver compile the PTX although there is a cubin for the device: `ptx`.
pub const IMAGE_VARIABLE: &str = "TIERPACK_CUDA_IMAGE";

/// Dynamic shared memory that a launch may have without asking before. Source: CUDA C++ Programming Guide.
const FREE_SHARED_BYTES: u32 = 48 << 10;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_uint = 8;
/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const LOG_OPTIONS: [c_uint; 2] = [5, 6];
const LOG_BYTES: usize = 8 << 10;
/// No kernel has more.
const MAX_PARAMETERS: usize = 4;

/// The kernels of one module.
#[derive(Debug)]
pub struct Kernels {
    device: Arc<Device>,
    module: Handle,
    functions: Vec<Function>,
}

#[derive(Debug)]
struct Function {
    name: &'static str,
    handle: Handle,
    /// Dynamic shared memory that it may have.
    shared_bytes: AtomicU32,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Of 8 bytes: an address of the device.
    Address(u64),
    /// Of 4 bytes.
    Number(u32),
}

impl Parameter {
    fn pointer(&self) -> *mut c_void {
        match self {
            Self::Address(value) => core::ptr::from_ref(value).cast_mut().cast(),
            Self::Number(value) => core::ptr::from_ref(value).cast_mut().cast(),
        }
    }
}

impl Kernels {
    /// Loads the image of `module` for the device, and looks up its kernels.
    ///
    /// # Errors
    /// [`GpuError::Module`] with what the driver's compiler says, [`GpuError::Setting`] for an unknown word in
    /// [`IMAGE_VARIABLE`].
    pub fn load(device: &Arc<Device>, module: Module) -> Result<Self, GpuError> {
        let (major, minor) = device.facts().capability;
        let is_ptx = match std::env::var_os(IMAGE_VARIABLE).filter(|value| !value.is_empty()) {
            None => false,
            Some(value) if value == "ptx" => true,
            Some(value) => {
                let (name, found) = (IMAGE_VARIABLE, value.to_string_lossy().into_owned());
                return Err(GpuError::Setting { name, found, needed: "ptx is needed, or nothing" });
            }
        };
        // No cubin is for capability 0.
        let (major, minor) = if is_ptx { (0, 0) } else { (major, minor) };
        Self::load_image(device, &images::choose(module, major, minor), module.kernels())
    }

    fn load_image(device: &Arc<Device>, image: &Image, names: &[&'static str]) -> Result<Self, GpuError> {
        let _entered = device.enter()?;
        // PTX is text, and ends with a zero.
        let bytes: Vec<u8> = image.bytes.iter().copied().chain([0]).collect();
        let mut log = vec![0_u8; LOG_BYTES];
        let mut module = 0;
        let loaded = load(device, &bytes, &mut log, &mut module);
        loaded.map_err(|error| match error.plain() {
            Ok((code, name)) => {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                let said = String::from_utf8_lossy(&log[..end]).trim().to_owned();
                let log = if said.is_empty() { said } else { format!(": {said}") };
                GpuError::Module { module: image.name, device: device.facts().capability, code, name, log }
            }
            Err(other) => other,
        })?;
        let mut this = Self { device: Arc::clone(device), module, functions: Vec::new() };
        this.functions = names.iter().map(|name| this.find(name)).collect::<Result<_, _>>()?;
        Ok(this)
    }

    fn find(&self, name: &'static str) -> Result<Function, GpuError> {
        let mut handle = 0;
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: the handle is written; the module is loaded, the name ends with a zero.
        let found =
            unsafe { (self.device.api.module_get_function)(&raw mut handle, self.module, symbol.as_ptr()) };
        launched(name, self.device.api.check("cuModuleGetFunction", found))?;
        if let Some(load) = self.device.api.func_load {
            // SAFETY: the function is one of a module that is loaded; its context is current.
            launched(name, self.device.api.check("cuFuncLoad", unsafe { load(handle) }))?;
        }
        Ok(Function { name, handle, shared_bytes: AtomicU32::new(FREE_SHARED_BYTES) })
    }

    /// The device that they are loaded for.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Launches the kernel that `launch` names, with these parameters.
    ///
    /// # Errors
    /// [`GpuError::Launch`], [`GpuError::Driver`], [`GpuError::Lost`].
    ///
    /// # Panics
    /// For more parameters than any kernel has.
    ///
    /// # Safety
    /// - The parameters are those of the kernel, in their order and of their types.
    /// - What they lead it to is memory that it may use in that way until it has run.
    pub unsafe fn launch(
        &self,
        launch: &Launch,
        parameters: &[Parameter],
        stream: &Stream,
    ) -> Result<(), GpuError> {
        let &Launch { kernel: name, grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, .. } = launch;
        let lacks = || GpuError::Launch { kernel: name, code: 500, name: "no such kernel".to_owned() };
        let function = self.functions.iter().find(|function| function.name == name).ok_or_else(lacks)?;
        let _entered = self.device.enter()?;
        self.allow(function, shared_bytes)?;
        let mut arguments = [core::ptr::null_mut(); MAX_PARAMETERS];
        assert!(parameters.len() <= MAX_PARAMETERS, "{} parameters of {name}", parameters.len());
        for (argument, parameter) in arguments.iter_mut().zip(parameters) {
            *argument = parameter.pointer();
        }
        // SAFETY: the caller promises the parameters; the driver copies them before it returns.
        let code = unsafe {
            (self.device.api.launch_kernel)(
                function.handle,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared_bytes,
                stream.handle(),
                arguments.as_mut_ptr(),
                core::ptr::null_mut(),
            )
        };
        launched(name, self.device.api.check("cuLaunchKernel", code))
    }

    /// Asks once for more dynamic shared memory than every launch may have.
    fn allow(&self, function: &Function, bytes: u32) -> Result<(), GpuError> {
        if bytes <= function.shared_bytes.load(Ordering::Relaxed) {
            return Ok(());
        }
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is one of a loaded module.
        let set = unsafe { (self.device.api.func_set_attribute)(function.handle, MAX_DYNAMIC_SHARED, value) };
        launched(function.name, self.device.api.check("cuFuncSetAttribute", set))?;
        function.shared_bytes.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// [`GpuError::Launch`] with the kernel, where the driver only says no.
fn launched(kernel: &'static str, answer: Result<(), GpuError>) -> Result<(), GpuError> {
    answer.map_err(|error| match error.plain() {
        Ok((code, name)) => GpuError::Launch { kernel, code, name },
        Err(other) => other,
    })
}

/// Loads an image; `log` gets what the driver's compiler has to say against it.
fn load(device: &Device, image: &[u8], log: &mut [u8], module: &mut Handle) -> Result<(), GpuError> {
    let image = image.as_ptr().cast();
    let Some(load_with_log) = device.api.module_load_data_ex else {
        // SAFETY: the handle is written; the image ends with a zero.
        let loaded = unsafe { (device.api.module_load_data)(module, image) };
        return device.api.check("cuModuleLoadData", loaded);
    };
    let mut options = LOG_OPTIONS;
    // The second value is no pointer: the interface passes numbers in their place.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), core::ptr::without_provenance_mut(log.len())];
    // SAFETY: as above; both options have a value, and the log has the length that is said.
    let loaded = unsafe { load_with_log(module, image, 2, options.as_mut_ptr(), values.as_mut_ptr()) };
    device.api.check("cuModuleLoadDataEx", loaded)
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded once; launches are waited for before the kernels go.
        self.device.release(|api| unsafe { (api.module_unload)(self.module) });
    }
}
