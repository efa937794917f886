//! Every case through the driver, compared with the reference code.

use tierpack_tests::device::{is_real, say};

use crate::driver::drivers;
use crate::target::{Case, Fault, Target, processors};

/// The case decodes to the same through the driver; returns what.
pub(crate) fn agree(case: &Case) -> Result<Vec<u8>, Fault> {
    let expected = processors()[0].decode(case);
    for target in drivers() {
        assert!(target.decode(case) == expected, "{} at {}: it differs", case.name, target.name());
    }
    expected
}

#[test]
fn what_is_compared_and_what_is_skipped() {
    let names: Vec<String> = drivers().iter().map(|target| target.name()).collect();
    say(&format!("compared: {}", names.join("; ")));
    if !is_real() {
        say("skipped: real driver; TIERPACK_CUDA_DRIVER=system compares the installed one");
        assert_eq!(names, ["the driver, fakecuda CPU device"]);
    }
}
