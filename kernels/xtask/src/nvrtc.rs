//! NVIDIA's runtime compiler, through cudarc's bindings, loaded when it is asked for.
//!
//! The wheel's libraries do not find each other: both are opened by their paths, the built-ins first, and answer
//! cudarc by their names.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use cudarc::nvrtc::{result, sys};
use libloading::Library;

/// The version that made the committed images.
pub(crate) const VERSION: &str = "13.0.88";

/// How to get the compiler.
pub(crate) const HELP: &str =
    "The compiler is NVRTC 13.0.88. To get it, with the tools that read what it makes:
  python3 -m venv .venv-cuda
  .venv-cuda/bin/pip install --no-deps nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvdisasm==13.2.51 \
nvidia-cuda-cuobjdump==13.2.51";

const LIBRARIES: [&str; 2] = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"];

/// The folder of the libraries in a Python environment.
pub(crate) fn wheel_folder(environment: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(environment.join("lib")).ok()?;
    let folders = versions.flatten().map(|entry| entry.path().join("site-packages/nvidia/cu13/lib"));
    folders.into_iter().find(|folder| folder.join(LIBRARIES[1]).is_file())
}

/// The compiler; its libraries stay loaded while it lives.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    _libraries: Vec<Library>,
}

/// What one compilation returned.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// A cubin for `sm_` architectures, else PTX.
    pub(crate) image: Vec<u8>,
    /// What the compiler and the assembler said.
    pub(crate) log: String,
}

impl Nvrtc {
    /// Opens the libraries of a folder, or those that the system finds; `None` where it finds none.
    ///
    /// # Errors
    /// A named folder without them, or another version than [`VERSION`].
    pub(crate) fn open(folder: Option<&Path>) -> Result<Option<Self>> {
        let mut libraries = Vec::new();
        for name in LIBRARIES.iter().filter(|_| folder.is_some()) {
            let path = folder.unwrap_or(Path::new("")).join(name);
            // SAFETY: a library of NVIDIA, whose initializers ask nothing of the program.
            let library = unsafe { Library::new(&path) };
            libraries.push(library.with_context(|| format!("open {}\n{HELP}", path.display()))?);
        }
        // SAFETY: it looks for a library and calls nothing in it.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        let nvrtc = Self { _libraries: libraries };
        let empty = nvrtc.compile("", "version.cu", &["--gpu-architecture=compute_80".to_owned()])?;
        check_version(&String::from_utf8_lossy(&empty.image))?;
        Ok(Some(nvrtc))
    }

    /// Compiles one file.
    pub(crate) fn compile(&self, source: &str, name: &str, options: &[String]) -> Result<Compiled> {
        let (source, c_name) = (CString::new(source)?, CString::new(name)?);
        let program = result::create_program(&source, Some(&c_name)).map_err(|e| anyhow!("{e:?}"))?;
        let program = Program(program);
        // SAFETY: the program is alive.
        let compiled = unsafe { result::compile_program(program.0, options) };
        // SAFETY: as above; NVRTC ends the log with a zero byte.
        let log = unsafe { result::get_program_log(program.0) }.map_err(|e| anyhow!("{e:?}"))?;
        // SAFETY: as above.
        let log = unsafe { CStr::from_ptr(log.as_ptr()) }.to_string_lossy().into_owned();
        compiled.map_err(|e| anyhow!("compile {name}: {e:?}\n{log}"))?;
        let cubin = program.cubin()?;
        let image = if cubin.is_empty() { program.ptx()? } else { cubin };
        Ok(Compiled { image, log })
    }
}

/// A program of the compiler, destroyed on drop.
struct Program(sys::nvrtcProgram);

impl Program {
    /// Empty where the architecture is a virtual one.
    fn cubin(&self) -> Result<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the program is alive, and `len` is written to.
        let sized = unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut len) };
        if sized.result().is_err() || len == 0 {
            return Ok(Vec::new());
        }
        let mut image = vec![0_u8; len];
        // SAFETY: the program is alive, and `image` has the bytes that it asks for.
        let got = unsafe { sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast::<c_char>()) };
        got.result().map_err(|e| anyhow!("read the cubin: {e:?}"))?;
        Ok(image)
    }

    fn ptx(&self) -> Result<Vec<u8>> {
        // SAFETY: the program is alive.
        let ptx = unsafe { result::get_ptx(self.0) }.map_err(|e| anyhow!("read the PTX: {e:?}"))?;
        let mut image: Vec<u8> = ptx.iter().map(|c| c.to_ne_bytes()[0]).collect();
        while image.last() == Some(&0) {
            image.pop();
        }
        Ok(image)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once. A failure leaves a program behind, which ends with the process.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// PTX names the compiler that made it in its first lines: `release 13.0, V13.0.88`.
fn check_version(ptx: &str) -> Result<()> {
    let found = ptx.lines().find_map(|line| line.split_once("release ")?.1.split_once(", V"));
    match found.map(|(_, version)| version.trim()) {
        Some(VERSION) => Ok(()),
        Some(other) => bail!("NVRTC is {other}, and the images are those of {VERSION}\n{HELP}"),
        None => bail!("the PTX does not name the version of NVRTC\n{HELP}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_named() {
        let ptx = |version| format!("//\n// Cuda compilation tools, release 13.0, V{version}\n// Based on\n");
        assert!(check_version(&ptx(VERSION)).is_ok());
        let error = check_version(&ptx("13.5.37")).unwrap_err().to_string();
        assert!(error.contains("13.5.37") && error.contains("nvidia-cuda-nvrtc==13.0.88"), "{error}");
        assert!(check_version("").is_err());
    }

    #[test]
    fn a_wheel_is_found_below_its_environment() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(wheel_folder(folder.path()), None);
        let lib = folder.path().join("lib/python3.99/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).unwrap();
        assert_eq!(wheel_folder(folder.path()), None);
        std::fs::write(lib.join(LIBRARIES[1]), "").unwrap();
        assert_eq!(wheel_folder(folder.path()), Some(lib));
    }

    #[test]
    fn a_folder_without_libraries_is_an_error_that_helps() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", Nvrtc::open(Some(folder.path())).unwrap_err());
        assert!(error.contains("pip install"), "{error}");
    }
}
