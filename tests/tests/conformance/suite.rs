//! Every case on every target.

use tierpack_kernels::Level;

use crate::simulated::simulated;
use crate::target::{Case, Fault, Target, processors};

/// Everything here that decodes, the reference code first.
pub(crate) fn targets() -> Vec<Box<dyn Target>> {
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    targets.extend(processors().into_iter().map(|target| Box::new(target) as Box<dyn Target>));
    targets.extend(simulated().into_iter().map(|target| Box::new(target) as Box<dyn Target>));
    targets
}

/// The case decodes to the same on every target; returns what.
pub(crate) fn agree(case: &Case) -> Result<Vec<u8>, Fault> {
    let targets = targets();
    let (reference, others) = targets.split_first().expect("the reference code");
    let expected = reference.decode(case);
    for target in others {
        let found = target.decode(case);
        match (&found, &expected) {
            (Ok(found), Ok(expected)) => {
                let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
                assert_eq!(at, None, "{} at {}: first byte that differs", case.name, target.name());
            }
            _ => assert_eq!(
                found.as_ref().map(|_| ()),
                expected.as_ref().map(|_| ()),
                "{} at {}",
                case.name,
                target.name()
            ),
        }
    }
    expected
}

#[test]
fn what_is_compared_and_what_is_skipped() {
    let names: Vec<String> = targets().iter().map(|target| target.name()).collect();
    println!("compared: {}", names.join("; "));
    for level in Level::ALL.iter().filter(|level| !level.is_available()) {
        println!("skipped: no {level} on this machine");
    }
    assert_eq!(names.first().map(String::as_str), Some("scalar"));
    assert_eq!(names.iter().filter(|name| name.starts_with("cusim")).count(), 3);
}
