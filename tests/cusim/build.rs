//! Compiles the runtime, and the kernels as C++: every `.cu` file of `kernels/cuda`, and the rules' own.
//!
//! `CUSIM_SAN=address|thread` builds for a sanitizer; see `sanitize.sh`.
//! `CUSIM_UCONTEXT=1` takes the stack switch of machines other than x86-64.

use std::path::{Path, PathBuf};

const RUNTIME: &str = "src/runtime";
const RULES: &str = "src/kernels";
/// Device code that runs on threads of the host instead of fibers.
const THREADS: &str = "src/threads";
const KERNELS: &str = "../../kernels/cuda";

fn main() {
    for variable in ["CUSIM_SAN", "CUSIM_UCONTEXT", "CUSIM_KERNELS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    // A copy of the kernels with a planted fault: see `mutants.sh`.
    let kernels = PathBuf::from(std::env::var("CUSIM_KERNELS").unwrap_or_else(|_| KERNELS.to_owned()));
    for folder in [Path::new(RUNTIME), Path::new(RULES), Path::new(THREADS), &kernels] {
        println!("cargo:rerun-if-changed={}", folder.display());
    }
    // Which tests there are depends on who looks for faults.
    println!("cargo:rustc-check-cfg=cfg(sanitizer, values(none(), \"address\", \"thread\"))");
    let (mut runtime, mut device, mut threads) = (cpp(&kernels), cpp(&kernels), cpp(&kernels));
    threads.include(THREADS);
    device.define("CUSIM", None).flag("-x").flag("c++");
    // All decode kernels take the same parameters, whether they need them or not.
    device.flag("-Wno-unused-parameter");
    // Arrays that a loop of constant length fills look unset to g++.
    device.flag_if_supported("-Wno-maybe-uninitialized");
    if std::env::var_os("CUSIM_UCONTEXT").is_some() {
        runtime.define("CUSIM_UCONTEXT", None);
    }
    match std::env::var("CUSIM_SAN").as_deref() {
        Ok("address") => {
            runtime.flag("-fsanitize=address").flag("-fno-omit-frame-pointer");
            device.flag("-fsanitize=address,undefined").flag("-fno-omit-frame-pointer");
            device.flag("-fno-sanitize-recover=undefined");
            threads.flag("-fsanitize=address,undefined").flag("-fno-omit-frame-pointer");
        }
        Ok("thread") => {
            runtime.define("CUSIM_TSAN", None); // the runtime is never instrumented
            device.flag("-fsanitize=thread");
            threads.flag("-fsanitize=thread");
        }
        _ => {}
    }
    runtime.files(sources(Path::new(RUNTIME), "cpp")).compile("cusim_runtime");
    let sources = [sources(&kernels, "cu"), sources(Path::new(RULES), "cu")].concat();
    device.files(sources).compile("cusim_kernels");
    threads.files(self::sources(Path::new(THREADS), "cpp")).compile("cusim_threads");
    // After the libraries that need them; every program that links this crate gets them.
    match std::env::var("CUSIM_SAN").as_deref() {
        Ok("address") => {
            println!("cargo:rustc-link-lib=asan\ncargo:rustc-link-lib=ubsan");
            println!("cargo:rustc-cfg=sanitizer\ncargo:rustc-cfg=sanitizer=\"address\"");
        }
        Ok("thread") => {
            println!("cargo:rustc-link-lib=tsan");
            println!("cargo:rustc-cfg=sanitizer\ncargo:rustc-cfg=sanitizer=\"thread\"");
        }
        _ => {}
    }
}

fn cpp(kernels: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).debug(true).extra_warnings(true);
    build.include(RUNTIME).include(kernels);
    // Kernels register themselves in static initializers: without whole-archive the linker drops them.
    build.link_lib_modifier("+whole-archive");
    build
}

/// The files in `folder` with that ending, sorted.
fn sources(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder of sources can be read");
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == ending)).collect();
    found.sort();
    found
}
