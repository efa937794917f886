//! Everything at once, by `bench soak`: processes read, write, refit, fill the pool and are killed, every word that is read
//! is checked, and at the end nothing is left.

use std::process::{Command, Stdio};

use parking_lot::Mutex;
use serde_json::Value;
use tierpack_tests::full;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

/// A soak takes all of a small machine: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a soak that must find nothing; returns its report.
fn soak(minutes: &str, more: &[&str]) -> Value {
    let _turn = TURN.lock();
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "soak", "--json", "--minutes", minutes]).args(more);
    let output = command.stdin(Stdio::null()).output().expect("run the program");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} {text} {errors}", output.status);
    serde_json::from_str(&text).expect("a JSON object")
}

#[expect(clippy::print_stdout, reason = "figures of a test run")]
fn check(report: &Value) {
    println!("{report:#}");
    let number = |key: &str| report[key].as_u64().unwrap_or_default();
    for key in ["words_checked", "reads", "views", "updates", "puts", "kills", "stops"] {
        assert!(number(key) > 0, "{key}: {report}");
    }
    assert!(report["daemon"]["refits"].as_u64().is_some_and(|refits| refits > 0), "{report}");
    check_clean(report);
}

fn check_clean(report: &Value) {
    for key in ["mismatches", "leaked_bytes", "leases", "sessions", "transfers", "descriptors"] {
        assert_eq!(report[key].as_u64(), Some(0), "{key}: {report}");
    }
}

#[test]
fn nothing_is_mixed_up_and_nothing_leaks_while_everything_happens() {
    let report = soak(if full() { "10" } else { "0.17" }, &["--seed", "3"]);
    check(&report);
    assert_eq!(report["daemon_kills"], 0);
    if full() {
        let words = report["words_checked"].as_u64();
        assert!(words.is_some_and(|words| words >= 100_000_000), "{report}");
    }
}

#[test]
fn a_daemon_that_is_killed_loses_its_tensors_and_nothing_else() {
    let report =
        soak(if full() { "3" } else { "0.35" }, &["--seed", "4", "--processes", "4", "--kill-daemon"]);
    let number = |key: &str| report[key].as_u64();
    assert!(number("daemon_kills") > Some(0) && number("puts") > Some(0), "{report}");
    check_clean(&report);
}
