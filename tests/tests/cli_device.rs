//! The command line on a GPU: `bench gather` and `demo` with `--device cuda`, on the stand-in unless
//! `TIERPACK_CUDA_DRIVER` says otherwise.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tierpack_tests::device::{Settings, is_real, stand_in};
use tierpack_tests::program::{assert_says, error_line};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const DRIVER: &str = "TIERPACK_CUDA_DRIVER";
const NOTE: &str = "these are no GPU figures";
const GATHER: [&str; 12] = [
    "bench",
    "gather",
    "--rows",
    "600",
    "--width",
    "96",
    "--batch",
    "64",
    "--seconds",
    "0.02",
    "--codec",
    "planes:4",
];

/// Runs one command to its end.
fn run(args: &[&str], settings: Settings<'_>) -> Output {
    let mut command = Command::new(PROGRAM);
    if !is_real() {
        command.env(DRIVER, stand_in()).env("FAKE_CUDA_LEAKS", "1");
    }
    command.env_remove("TIERPACK_SOCKET").envs(settings.iter().copied());
    command.args(args).stdin(Stdio::null()).output().expect("run the program")
}

/// As [`run`], for a command that must succeed; returns its standard output.
fn run_ok(args: &[&str], settings: Settings<'_>) -> String {
    let output = run(args, settings);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("fakecuda: "), "{errors}");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("the output is JSON")
}

fn number(value: &Value, field: &str) -> f64 {
    let number = value[field].as_f64();
    assert!(number.is_some(), "{field} of {value}");
    number.unwrap_or_default()
}

/// Asserts that figures of the stand-in say so, and others do not.
fn check_note(note: &Value) {
    assert_eq!(note.as_str().is_some_and(|note| note.contains(NOTE)), !is_real(), "{note}");
}

#[test]
fn bench_gather_shows_a_row_for_every_rate_of_hits() {
    let document = json(&run_ok(&[&GATHER[..], &["--device", "cuda", "--json"]].concat(), &[]));
    check_note(&document["note"]);
    assert_eq!((&document["stand_in"], &document["power_law"]), (&(!is_real()).into(), &1.05.into()));
    for (field, value) in [("rows", 600.0), ("width", 96.0), ("batch", 64.0)] {
        assert!((number(&document, field) - value).abs() < 0.5, "{document}");
    }
    assert!(document["device"].is_string() && document["access"].is_string(), "{document}");
    let rows = document["results"].as_array().expect("an array");
    let codecs: Vec<_> = rows.iter().map(|row| row["codec"].as_str().expect("a name")).collect();
    assert_eq!(codecs, [["raw"; 4], ["planes:4"; 4]].concat());
    let wanted = [(0.0, 0.0), (7.0, 15.0), (44.0, 57.0), (95.0, 100.0)];
    for (row, (least, most)) in rows.iter().zip(wanted.into_iter().cycle()) {
        let percent = number(row, "hit_percent");
        assert!((least..=most).contains(&percent), "{row}");
        assert_eq!(number(row, "cache_bytes") > 0.0, most > 0.0, "{row}");
        assert_eq!(number(row, "cache_lines") > 0.0, most > 0.0, "{row}");
        for figure in [
            "rows_per_s",
            "gib_per_s",
            "raw_zero_copy_gib_per_s",
            "of_raw_zero_copy",
            "get_to_device_gib_per_s",
        ] {
            assert!(number(row, figure) > 0.0, "{figure} of {row}");
        }
        let saved = number(row, "saved_percent");
        assert_eq!(saved > 10.0, row["codec"] == "planes:4", "{row}");
    }
    // All rows are in the cache, as they are stored.
    assert!(number(&rows[7], "cache_bytes") < number(&rows[3], "cache_bytes"), "{document}");
}

#[test]
fn bench_gather_says_what_its_table_is_worth() {
    let small = ["bench", "gather", "--rows", "9", "--width", "3", "--batch", "2", "--seconds", "0.01"];
    let table = run_ok(&[&small[..], &["--codec", "raw", "--device", "cuda:0"]].concat(), &[]);
    assert_says(
        &table,
        &["hit %", "of raw zero-copy", "whole get GiB/s", "power law of 1.05", "9 rows of 3"],
    );
    assert_eq!(table.lines().any(|line| line.starts_with("Note: ") && line.contains(NOTE)), !is_real());
}

#[test]
fn bench_gather_has_no_cache_where_the_host_gathers() {
    let args = [&GATHER[..], &["--device", "cuda"]].concat();
    let staged = [("TIERPACK_DEVICE_ACCESS", "staged")];
    let document = json(&run_ok(&[&args[..], &["--json"]].concat(), &staged));
    assert_eq!(document["access"], "staged");
    let rows = document["results"].as_array().expect("an array");
    assert_eq!(rows.len(), 2, "{document}");
    for row in rows {
        assert_eq!((&row["hit_percent"], &row["cache_bytes"]), (&Value::Null, &0.into()));
    }
    assert_says(&run_ok(&args, &staged), &["access staged", "the host gathers"]);
}

#[test]
fn the_demo_gathers_hot_rows_on_the_gpu() {
    let demo = ["demo", "--processes", "2", "--seconds", "0.2", "--device", "cuda"];
    let document = json(&run_ok(&[&demo[..], &["--json"]].concat(), &[]));
    check_note(&document["note"]);
    let processes = document["processes"].as_array().expect("an array");
    assert_eq!(processes.len(), 2);
    for process in processes {
        assert!(number(process, "reads") > 0.0 && number(process, "pss_bytes") > 0.0, "{process}");
        let gpu = &process["gpu"];
        check_note(&gpu["note"]);
        assert_eq!((&process["mismatches"], &gpu["mismatches"]), (&0.into(), &0.into()));
        let [rows, hits, misses] = ["rows", "hits", "misses"].map(|field| number(gpu, field));
        assert!(hits > 0.0 && misses > 0.0 && (hits + misses - rows).abs() < 0.5, "{gpu}");
        // Hot rows cross the bus once, and in their stored form.
        assert!(number(gpu, "bus_bytes") < number(gpu, "raw_bytes"), "{gpu}");
        let [stored, raw] = ["cached_bytes", "cached_raw_bytes"].map(|field| number(gpu, field));
        assert!(number(gpu, "cached_rows") > 0.0 && 0.0 < stored && stored < raw, "{gpu}");
        assert!(number(gpu, "seconds") > 0.0, "{gpu}");
    }
    let table = run_ok(&demo, &[]);
    assert_says(
        &table,
        &["hits", "misses", "over the bus, about", "in the cache", "Host memory of the daemon"],
    );
    assert_eq!(table.lines().any(|line| line.starts_with("Note: ") && line.contains(NOTE)), !is_real());
}

#[test]
fn without_a_gpu_one_line_says_what_to_do() {
    let missing = [(DRIVER, "/nonexistent")];
    let gather = |device| [&GATHER[..], &["--device", device]].concat();
    for args in [gather("cuda"), vec!["demo", "--device", "cuda:0"]] {
        let error = error_line(&run(&args, &missing));
        assert_says(&error, &["no CUDA driver", "/nonexistent", "install it, or read to host memory"]);
        let usage = run(&[&args[..args.len() - 1], &["gpu"]].concat(), &missing);
        assert_eq!(usage.status.code(), Some(2));
        assert_says(&String::from_utf8_lossy(&usage.stderr), &["choose cpu, cuda or cuda:N"]);
    }
    assert_says(&error_line(&run(&gather("cuda:77"), &[])), &["there is no GPU 77"]);
    if !is_real() {
        let error = error_line(&run(&gather("cuda"), &[("FAKE_CUDA_DEVICES", "0")]));
        assert_says(&error, &["sees no GPU", "CUDA_VISIBLE_DEVICES"]);
    }
    // Who asks for none needs none.
    for device in [&[][..], &["--device", "cpu"]] {
        let table = run_ok(&[&GATHER[..], device].concat(), &missing);
        assert_says(&table, &["memcpy gather GiB/s"]);
        let report = json(&run_ok(&[&["demo", "--seconds", "0.1", "--json"][..], device].concat(), &missing));
        assert!(report.get("note").is_none() && report["processes"][0].get("gpu").is_none(), "{report}");
    }
}
