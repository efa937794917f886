//! Compiles the cusim runtime and the kernels. CUSIM_SAN = "" | "address" | "thread".
fn main() {
    let (sim, kern) = ("src/runtime", "../../kernels/cuda");
    let san = std::env::var("CUSIM_SAN").unwrap_or_default();
    println!("cargo:rerun-if-env-changed=CUSIM_SAN");
    let base = || {
        let mut b = cc::Build::new();
        b.cpp(true).std("c++17").opt_level(2).debug(true).include(sim).include(kern).warnings(false);
        // Kernels register themselves in static initializers: without whole-archive the linker drops them.
        b.link_lib_modifier("+whole-archive");
        b
    };
    let (mut rt, mut kernels) = (base(), base());
    match san.as_str() {
        "address" => {
            for b in [&mut rt, &mut kernels] {
                b.flag("-fsanitize=address").flag("-fno-omit-frame-pointer");
            }
            println!("cargo:rustc-link-arg=-lasan"); // for this crate's own tests
        }
        "thread" => {
            rt.define("CUSIM_TSAN", None); // the runtime is never instrumented
            kernels.flag("-fsanitize=thread");
            println!("cargo:rustc-link-arg=-ltsan");
        }
        _ => {}
    }
    rt.file(format!("{sim}/cusim.cpp")).compile("cusim_rt");
    // A file for each module, as on the GPU.
    for module in ["kernels", "kernels_encode", "kernels_fit"] {
        kernels.file(format!("{sim}/{module}.cpp"));
    }
    kernels.compile("cusim_kernels");
    for d in [sim, kern] {
        println!("cargo:rerun-if-changed={d}");
    }
}
