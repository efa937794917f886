//! What a test may find missing on a machine, and how it says that it was skipped.

use std::process::{Command, Stdio};

/// Says that a test, or a part of one, cannot run here; with `TIERPACK_REQUIRE_TOOLS=1`, as in CI, that is a failure.
///
/// # Panics
/// When tools are required.
pub fn skip(reason: &str) {
    let required = std::env::var_os("TIERPACK_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    assert!(!required, "cannot run, and TIERPACK_REQUIRE_TOOLS is 1: {reason}");
    tell(&format!("skipped: {reason}"));
}

/// Says something about a test in its output.
#[expect(clippy::print_stdout, reason = "a test's output is where it speaks")]
pub fn tell(text: &str) {
    println!("{text}");
}

/// Whether `probe` can be run with success; else the caller's test is skipped.
///
/// # Panics
/// As [`skip`].
pub fn can(what: &str, probe: &[&str]) -> bool {
    let mut command = Command::new(probe[0]);
    command.args(&probe[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let can = command.status().is_ok_and(|status| status.success());
    if !can {
        skip(&format!("{what} needs `{}`, which does not work here", probe.join(" ")));
    }
    can
}

/// Runs under strace, with a program that does not outlive it.
const TRACED: [&str; 4] = ["-f", "-o", "/dev/null", "-e"];
const ENDS_WITH_PARENT: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// A command that runs `program` with one of its system calls changed: `inject` is what strace takes after `-e`.
pub fn traced(inject: &str, program: &str) -> Command {
    let mut command = Command::new("strace");
    command.args(TRACED).arg(inject).args(ENDS_WITH_PARENT).arg(program);
    command
}

/// Whether [`traced`] works here; else the caller's test is skipped.
///
/// # Panics
/// As [`skip`].
pub fn can_trace(what: &str) -> bool {
    let probe =
        [&["strace"][..], &TRACED, &["inject=getppid:error=EPERM"], &ENDS_WITH_PARENT, &["true"]].concat();
    can(what, &probe)
}
