//! The call trace: order, numbers, answers.

use crate::harness::{Shared, alone, device, kernel, launch, open, stream};

#[test]
fn each_call_is_a_line_with_its_numbers_and_its_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace");
    let variables = [("FAKE_CUDA_TRACE", path.to_str().expect("a text"))];
    alone("trace::each_call_is_a_line_with_its_numbers_and_its_answer", &variables, || {
        open();
        let (shared, stream, counter) = (Shared::new(8192), stream(), device(64));
        assert_eq!(shared.register(3), 0);
        assert_eq!(shared.register(3), 712);
        let at = shared.device();
        assert_eq!(launch(kernel("legal_order", 2), 32, &mut [counter, at], stream), 0);
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemHostUnregister(shared.host()));
    });
    let trace = std::fs::read_to_string(&path).expect("the trace is there");
    let lines: Vec<&str> = trace.lines().collect();
    let at = |start: &str, rest: &str| {
        let found = lines.iter().position(|line| line.starts_with(start) && line.contains(rest));
        found.unwrap_or_else(|| panic!("no line {start} {rest}:\n{trace}"))
    };
    let order = [
        at("cuInit flags=0", "-> 0"),
        at("cuMemAlloc_v2 at=0x", "len=64 -> 0"),
        at("cuMemHostRegister_v2 at=0x", "len=8192 flags=3 -> 0"),
        at("cuMemHostRegister_v2 at=0x", "len=8192 flags=3 -> 712"),
        at("cuMemHostGetDevicePointer_v2 device=0x", "-> 0"),
        at("cuModuleLoadData module=0x", "kernels=1 -> 0"),
        at("cuLaunchKernel function=0x", "grid_x=1 grid_y=1 grid_z=1 block_x=32"),
        at("cuLaunchKernel", "kernel=\"legal_order\" -> 0"),
        at("cuStreamSynchronize handle=0x", "-> 0"),
        at("cuMemHostUnregister at=0x", "-> 0"),
    ];
    assert!(order.is_sorted(), "{order:?}\n{trace}");
}
