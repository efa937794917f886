//! What the tidy test knows of the tree: names, arrows, islands, crate roots, versions.

pub(crate) const TOP_LEVEL: &str = "Cargo.toml Cargo.lock daemon client kernels shm tests README.md ARCHITECTURE.md \
    CHANGELOG.md LICENSE docs .ci .config .gitignore rustfmt.toml clippy.toml .git target";
pub(crate) const FOLDERS: &[&str] = &["daemon", "client", "kernels", "shm", "tests", "docs"];
pub(crate) const MAX_LINES: usize = 500;

/// Manifest, crates that it may depend on, crates that only its tests may depend on.
pub(crate) const EDGES: &[(&str, &[&str], &[&str])] = &[
    ("shm/Cargo.toml", &[], &[]),
    ("kernels/Cargo.toml", &["shm"], &[]),
    ("kernels/xtask/Cargo.toml", &[], &[]),
    ("client/Cargo.toml", &["kernels", "shm"], &["daemon"]),
    ("daemon/Cargo.toml", &["kernels", "shm"], &[]),
    // `shm`: the limits of the protocol, and the type of the stats document.
    // `kernels`: `bench codecs` measures them without a daemon.
    ("client/cli/Cargo.toml", &["client", "daemon", "kernels", "shm"], &[]),
    ("tests/Cargo.toml", &["cli", "client", "daemon", "kernels", "shm"], &["cusim", "fakecuda"]),
    // Its conformance target has the sources of `tests/tests/conformance.rs`.
    ("tests/cusim/Cargo.toml", &[], &["kernels", "shm"]),
    // Its tests need itself built.
    ("tests/fakecuda/Cargo.toml", &["cusim"], &["fakecuda"]),
    ("tests/fuzz/Cargo.toml", &["kernels", "shm"], &[]),
];

/// The files in which `unsafe` may stand.
pub(crate) const ISLANDS: &[&str] = &[
    "client/src/device/raw.rs",
    "client/src/device/tier/raw.rs",
    "kernels/src/cpu/avx2/decode.rs",
    "kernels/src/cpu/avx2/decode/tail.rs",
    "kernels/src/cpu/avx2/mod.rs",
    "kernels/src/cpu/bmi2.rs",
    "kernels/src/cuda/driver/api.rs",
    "kernels/src/cuda/driver/device.rs",
    "kernels/src/cuda/driver/gather.rs",
    "kernels/src/cuda/driver/memory.rs",
    "kernels/src/cuda/driver/module.rs",
    "kernels/src/cuda/driver/register.rs",
    "kernels/src/cuda/driver/run.rs",
    "kernels/src/cuda/driver/stage.rs",
    "kernels/src/cuda/driver/stream.rs",
    "kernels/src/prefetch.rs",
    "kernels/xtask/src/nvrtc.rs",
    "shm/src/attachment.rs",
    "shm/src/attachment/segments.rs",
    "shm/src/chunk.rs",
    "shm/src/fork.rs",
    "shm/src/fork/ranges.rs",
    "shm/src/heap.rs",
    "shm/src/mapping.rs",
    "shm/src/pool.rs",
    "shm/src/segment.rs",
    "shm/src/socket.rs",
    "tests/cusim/src/ffi.rs",
    "tests/cusim/src/lib.rs",
    "tests/cusim/tests/gather/device.rs",
    "tests/cusim/tests/gather/threads.rs",
    "tests/cusim/tests/simulator/harness.rs",
    "tests/fakecuda/src/args.rs",
    "tests/fakecuda/src/call.rs",
    "tests/fakecuda/src/ops.rs",
    "tests/fakecuda/src/raw.rs",
    "tests/fakecuda/tests/driver/harness.rs",
    "tests/src/bin/gpu_bench/cublas.rs",
    "tests/src/bin/gpu_bench/device.rs",
    "tests/src/bin/gpu_bench/host.rs",
    "tests/src/bin/gpu_bench/nvcomp.rs",
    "tests/src/bin/test_client/fork.rs",
    "tests/tests/conformance/simulated.rs",
    "tests/tests/conformance_driver/driver.rs",
    "tests/tests/device_coherence/stream.rs",
    "tests/tests/device_graph/captured.rs",
    "tests/tests/device_raw.rs",
];

pub(crate) const FORBID: &str = "#![forbid(unsafe_code)]";
pub(crate) const DENY: &str = "#![deny(unsafe_code)]";
/// What each crate root, and the reference codecs, must say about `unsafe`.
pub(crate) const ROOTS: &[(&str, &str)] = &[
    ("shm/src/lib.rs", DENY),
    ("kernels/src/lib.rs", DENY),
    ("kernels/src/scalar/mod.rs", FORBID),
    ("kernels/xtask/src/main.rs", DENY),
    ("client/src/lib.rs", DENY),
    ("daemon/src/lib.rs", FORBID),
    ("daemon/src/main.rs", FORBID),
    ("client/cli/src/lib.rs", FORBID),
    ("client/cli/src/main.rs", FORBID),
    ("tests/src/lib.rs", FORBID),
    ("tests/cusim/src/lib.rs", DENY),
    ("tests/fakecuda/src/lib.rs", DENY),
    ("tests/fuzz/src/lib.rs", FORBID),
    ("tests/src/bin/tierpack.rs", FORBID),
    ("tests/src/bin/gpu_bench.rs", DENY),
    ("tests/src/bin/test_client.rs", DENY),
    ("tests/tests/conformance.rs", DENY),
];

/// Where a version stands in a text, and where the constant that must equal it is.
pub(crate) const VERSIONS: &[(&str, &str, &str, &str)] = &[
    ("kernels/FORMAT.md", "Format version: ", "kernels/src/block.rs", "FORMAT_VERSION"),
    ("shm/LAYOUT.md", "Layout version: ", "shm/src/layout.rs", "LAYOUT_VERSION"),
    ("shm/LAYOUT.md", "Protocol version: ", "shm/src/message.rs", "PROTOCOL_VERSION"),
];

/// What does not land. In pieces, so that this file may.
pub(crate) const UNFINISHED: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[", "ignore"),
];
