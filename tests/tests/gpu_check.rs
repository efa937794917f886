//! `gpu-check` without a GPU: the facts that it asks first, on the stand-in with the attributes of several devices, and
//! the stages that follow from them, with programs that do nothing but say how they were called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tierpack_tests::device::stand_in;

const BENCH: &str = env!("CARGO_BIN_EXE_tierpack-gpu-bench");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/gpu-check");

/// Variables of the stand-in.
type Attributes<'a> = &'a [(&'a str, &'a str)];

/// As the stand-in is without variables.
const REGISTERS: Attributes<'_> = &[];
/// A discrete GPU on Linux with the open modules of the driver.
const HMM: Attributes<'_> = &[("FAKE_CUDA_ATTR_88", "1"), ("FAKE_CUDA_ATTR_113", "0")];
/// A GPU that shares the page tables of its processor.
const ATS: Attributes<'_> = &[("FAKE_CUDA_ATTR_88", "1"), ("FAKE_CUDA_ATTR_100", "1")];
/// A discrete GPU on Linux with other modules.
const STAGES: Attributes<'_> = &[("FAKE_CUDA_ATTR_113", "0")];
const NOTHING: Attributes<'_> = &[("FAKE_CUDA_ATTR_99", "0")];
/// What it claims to read is what its kernels fault at: the fifth launch, behind those of four registrations.
const FAULTS: Attributes<'_> = &[("FAKE_CUDA_ATTR_88", "1"), ("FAKE_CUDA_FAIL", "cuLaunchKernel:5:700")];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The rows of the stage, one line each, with single spaces.
fn facts(attributes: Attributes<'_>) -> Vec<String> {
    let mut command = Command::new(BENCH);
    command.args(["facts", "--small"]).env("TIERPACK_CUDA_DRIVER", stand_in());
    let output = command.envs(attributes.iter().copied()).output().expect("run the bench");
    assert!(output.status.success(), "{attributes:?}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn facts_are_what_the_driver_says_and_answers() {
    const NOTE: &str = "stand-in: not a GPU figure";
    let cases: [(Attributes<'_>, &[&str]); 6] = [
        (
            REGISTERS,
            &[
                "driver 13000 NOTE; CUDA 13.0",
                "attribute 88 0.000 NOTE; kernels read pageable memory",
                "attribute 91 0.000 NOTE; registered memory has the host's address on the device",
                "attribute 113 1.000 NOTE; memory that the process may only read can be registered",
                "access mode staged yes NOTE; always",
                "registers a sealed file, read-only yes NOTE; access mode registered",
                "access mode registered yes NOTE",
                "registers a sealed file, read-write no NOTE; CUDA_ERROR_INVALID_VALUE (1)",
                "registers a writable file, read-write yes NOTE; no access mode of TierPack yet",
                "registers a private mapping of a sealed file yes NOTE; never used: a copy of the pool",
                "registers a private copy yes NOTE; that registration works at all",
                "reads a sealed file as pageable memory no NOTE; not tried: attribute 88 is 0",
                "access mode ats no NOTE; not tried: attribute 88 is 0",
            ],
        ),
        (
            HMM,
            &[
                "registers a sealed file, read-only no NOTE; CUDA_ERROR_NOT_SUPPORTED (801)",
                "access mode registered no NOTE; the GPU cannot register memory that a process may only read \
                 (attribute 113 is 0)",
                "registers a writable file, read-write yes NOTE; no access mode of TierPack yet",
                "reads a sealed file as pageable memory yes NOTE; HMM: faults of the GPU",
                "access mode ats yes NOTE; HMM: faults of the GPU",
            ],
        ),
        (ATS, &["attribute 100 1.000", "access mode ats yes NOTE; ATS: the processor's page tables"]),
        (STAGES, &["access mode staged yes", "access mode registered no", "access mode ats no"]),
        (
            NOTHING,
            &["attribute 99 0.000", "registers a private copy no NOTE; CUDA_ERROR_NOT_SUPPORTED (801)"],
        ),
        (
            FAULTS,
            &["access mode registered yes", "access mode ats no NOTE; CUDA_ERROR_ILLEGAL_ADDRESS (700)"],
        ),
    ];
    for (attributes, wanted) in cases {
        let mut rows = facts(attributes).into_iter();
        let all = rows.as_slice().join("\n");
        for line in wanted {
            let line = line.replace("NOTE", NOTE);
            // In this order: what can go wrong last comes last.
            assert!(rows.any(|row| row.starts_with(&line)), "{attributes:?}: no {line:?} in\n{all}");
        }
    }
}

/// A folder as `cargo run -p xtask -- pack` makes it, whose programs do nothing; `facts` is the shell's command for those.
fn pack(folder: &Path, facts: &str) {
    let programs = folder.join("programs");
    fs::create_dir(&programs).expect("a folder");
    let bench = format!("if [ \"$1\" = facts ]; then {facts}; fi; echo \"a row of $*\"");
    let test = "[ \"$1\" = --list ] && echo 'a: test' || echo 'test result: ok. 1 passed'";
    let reads = "echo \"$0: access $TIERPACK_TEST_ACCESS; test result: ok. 1 passed\"";
    let all = [
        ("tierpack-gpu-bench", bench.as_str()),
        ("conformance_driver", test),
        ("device", reads),
        ("device_raw", reads),
    ];
    for (name, body) in all {
        let path = programs.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    }
    fs::copy(SCRIPT, folder.join("gpu-check")).expect("the script");
    let make = "cd programs && tar -czf ../programs.tar.gz . && \
                sha256sum * | while read -r sum name; do echo \"$sum 1 $name\"; done >../manifest.txt";
    let made = Command::new("bash").args(["-c", make]).current_dir(folder).status().expect("run bash");
    assert!(made.success());
}

/// What the script reports, and what it printed.
fn gpu_check(facts: &str, variables: Attributes<'_>) -> (Value, Output) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pack(folder.path(), facts);
    let mut command = Command::new("bash");
    command.arg(folder.path().join("gpu-check")).env("OUT", folder.path());
    command.env("TIERPACK_CUDA_DRIVER", stand_in()).envs(variables.iter().copied());
    // A processor that is busy with other tests: no stage is to be skipped, unless the test asks for that.
    if variables.iter().all(|(name, _)| *name != "BUDGET") {
        command.env("BUDGET", "100000");
    }
    let output = command.output().expect("run the script");
    let json = fs::read_to_string(folder.path().join("gpu-check.json")).expect("a report");
    (serde_json::from_str(&json).expect("a report in JSON"), output)
}

fn names(report: &Value) -> Vec<&str> {
    let stages = report["stages"].as_array().expect("stages");
    let names = stages.iter().map(|stage| stage["name"].as_str().expect("a name"));
    // Whether a machine has that checker is not the script's doing.
    names.filter(|name| !name.starts_with("compute-sanitizer")).collect()
}

/// The stages for these modes: figures in the order of what they decide, then the tests.
fn stages(modes: &[&str], in_place: &[&str]) -> Vec<String> {
    let each = |name: &str, modes: &[&str]| modes.iter().map(|mode| format!("{name}, {mode}")).collect();
    let once = |name: &str| vec![name.to_owned()];
    let tests = |mode: &&str| [format!("device, {mode}"), format!("device_raw, {mode}")];
    [
        vec!["unpack".to_owned(), "facts".to_owned(), "bench: copies".to_owned()],
        each("bench: in-place", in_place),
        once("bench: registration"),
        once("bench: decode"),
        each("bench: gather", in_place),
        each("bench: product", in_place),
        each("bench: reads", modes),
        once("conformance_driver"),
        once("conformance_driver, PTX"),
        modes.iter().flat_map(tests).collect(),
        once("bench: nvcomp"),
    ]
    .concat()
}

#[test]
fn every_stage_runs_in_each_access_mode_of_the_device() {
    let real = format!("exec '{BENCH}' \"$@\"");
    let cases: [(Attributes<'_>, &[&str], &[&str]); 5] = [
        (REGISTERS, &["registered", "staged"], &["registered"]),
        (HMM, &["ats", "staged"], &["ats"]),
        (ATS, &["ats", "registered", "staged"], &["ats", "registered"]),
        (STAGES, &["staged"], &["staged"]),
        (FAULTS, &["registered", "staged"], &["registered"]),
    ];
    for (attributes, modes, in_place) in cases {
        let (report, output) = gpu_check(&real, attributes);
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{attributes:?}: {printed}");
        assert_eq!(names(&report), stages(modes, in_place), "{attributes:?}: {printed}");
        assert_eq!(report["modes"], Value::from(modes), "{attributes:?}");
        // A program hears of the mode: tests by a variable, benchmarks by an option.
        for mode in modes {
            assert!(printed.contains(&format!("device: access {mode};")), "{mode}: {printed}");
            assert!(printed.contains("a row of reads --json"), "{mode}: {printed}");
            assert!(printed.contains(&format!("--access {mode} --small")), "{mode}: {printed}");
        }
        // Facts are no figures of a GPU, and say so.
        let facts = report["figures"].as_array().expect("rows of the facts");
        assert!(facts.len() > 12 && facts.iter().all(|row| row["note"].to_string().contains("stand-in")));
    }
}

#[test]
fn facts_that_end_early_cost_their_own_modes() {
    let row = |mode: &str| format!("echo 'access mode {mode}     yes     of a test'");
    let early = format!("{}; {}; echo 'driver: no answer' >&2; exit 3", row("staged"), row("registered"));
    for (facts, modes) in [(early.as_str(), &["registered", "staged"][..]), ("exit 3", &["staged"])] {
        let (report, output) = gpu_check(facts, &[]);
        assert!(!output.status.success() && report["failed"] == 1, "{facts}: {}", text(&output.stdout));
        assert_eq!(report["modes"], Value::from(modes), "{facts}");
        assert!(names(&report).contains(&"device, staged"), "{facts}");
    }
}

#[test]
fn a_budget_that_is_spent_skips_stages_and_fails() {
    let (report, output) = gpu_check("exit 3", &[("BUDGET", "1")]);
    assert!(!output.status.success());
    let stages = report["stages"].as_array().expect("stages");
    assert!(stages.len() > 10 && stages.iter().all(|stage| stage["status"] == "skipped"), "{stages:?}");
}
