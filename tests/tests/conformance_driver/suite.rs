//! Every case through the driver, compared with the reference code.

use crate::driver::drivers;
use crate::target::{Case, Fault, Target, processors};

/// The case decodes to the same through the driver; gives what.
pub(crate) fn agree(case: &Case) -> Result<Vec<u8>, Fault> {
    let expected = processors()[0].decode(case);
    for target in drivers() {
        assert!(target.decode(case) == expected, "{} at {}: it differs", case.name, target.name());
    }
    expected
}
