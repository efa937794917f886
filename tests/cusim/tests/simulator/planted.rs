//! Faults that only a sanitizer finds: a test fails if the sanitizer stays silent.
//!
//! The report ends the process, so each runs in one of its own.

use std::process::Command;

use cusim::{Order, Shape};

use crate::harness::{Arg, run};

/// Runs the test `name` again in a process of its own, in which `launch` runs; its output must hold all of `texts`.
#[track_caller]
fn is_reported(name: &str, texts: &[&str], launch: impl FnOnce()) {
    if std::env::var_os("CUSIM_PLANTED").is_some() {
        return launch();
    }
    let program = std::env::current_exe().expect("the test knows its program");
    let mut command = Command::new(program);
    command.args(["--exact", &format!("planted::{name}"), "--nocapture"]).env("CUSIM_PLANTED", "1");
    let output = command.output().expect("the test can be started again");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success(), "the sanitizer stays silent:\n{text}");
    for part in texts {
        assert!(text.contains(part), "the report lacks {part:?}:\n{text}");
    }
}

#[cfg(sanitizer = "thread")]
mod thread {
    use super::*;

    #[test]
    fn a_missing_syncwarp_is_a_race() {
        is_reported(
            "thread::a_missing_syncwarp_is_a_race",
            &["data race", "broken_race", "rules.cu:"],
            || {
                let mut out = [0; 32];
                run("broken_race", Shape::linear(1, 32), &mut [Arg::Words(&mut out)], Order::Forward)
                    .expect("no error of the simulator");
            },
        );
    }
}

#[cfg(sanitizer = "address")]
mod address {
    use super::*;

    #[test]
    fn an_overrun_of_shared_memory_is_reported() {
        let texts = ["heap-buffer-overflow", "broken_shared_overrun", "rules.cu:"];
        is_reported("address::an_overrun_of_shared_memory_is_reported", &texts, || {
            let mut out = [0; 32];
            let shape = Shape::linear(1, 32).shared(128);
            run("broken_shared_overrun", shape, &mut [Arg::Words(&mut out)], Order::Forward)
                .expect("no error of the simulator");
        });
    }

    #[test]
    fn an_overrun_of_global_memory_is_reported() {
        let texts = ["heap-buffer-overflow", "broken_global_overrun", "rules.cu:"];
        is_reported("address::an_overrun_of_global_memory_is_reported", &texts, || {
            let mut out = vec![0; 128];
            let mut args = [Arg::Words(&mut out), Arg::Number(128)];
            run("broken_global_overrun", Shape::linear(1, 32), &mut args, Order::Forward)
                .expect("no error of the simulator");
        });
    }

    #[test]
    fn a_misaligned_vector_is_reported() {
        let texts = ["misaligned address", "cusim.h:"];
        is_reported("address::a_misaligned_vector_is_reported", &texts, || {
            let (mut from, mut out) = (vec![0; 64], [0; 32]);
            let mut args = [Arg::Words(&mut from), Arg::Words(&mut out)];
            run("broken_vector_alignment", Shape::linear(1, 1), &mut args, Order::Forward)
                .expect("no error of the simulator");
        });
    }

    #[test]
    fn a_shift_by_the_width_is_reported() {
        let texts = ["shift exponent 32", "rules.cu:"];
        is_reported("address::a_shift_by_the_width_is_reported", &texts, || {
            let (mut from, mut out) = (vec![32; 1], [0; 32]);
            let mut args = [Arg::Words(&mut from), Arg::Words(&mut out)];
            run("broken_shift", Shape::linear(1, 1), &mut args, Order::Forward)
                .expect("no error of the simulator");
        });
    }
}
