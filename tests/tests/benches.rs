//! `tierpack bench`: every codec appears, with the fields that scripts read, and figures that can be true.

use serde_json::Value;
use tierpack_client::CodecId;
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::program::{assert_says, error_line};
use tierpack_tests::{Daemon, data};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "16MiB", "--lock", "off"])
}

/// The rows of a JSON document, each of which has a positive number in every one of `figures`.
fn rows(text: &str, field: &str, figures: &[&str]) -> Vec<Value> {
    let document: Value = serde_json::from_str(text).expect("the output is JSON");
    let rows = document[field].as_array().expect("an array").clone();
    for row in &rows {
        let is_positive = |figure: &&str| row[*figure].as_f64().is_some_and(|value| value > 0.0);
        assert!(figures.iter().all(is_positive), "{row}");
    }
    rows
}

fn codecs_of(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["codec"].as_str().expect("a name")).collect()
}

fn names() -> impl Iterator<Item = &'static str> {
    CodecId::ALL.iter().map(|codec| codec.name())
}

#[test]
fn bench_gather_measures_every_codec_with_one_and_two_threads() {
    let daemon = start();
    let small = ["bench", "gather", "--rows", "600", "--width", "96", "--batch", "16", "--seconds", "0.02"];
    for dtype in ["bf16", "f16", "f32"] {
        let text = daemon.run_ok(&[&small[..], &["--dtype", dtype, "--json"]].concat());
        let rows = rows(&text, "results", &["rows_per_s", "gib_per_s", "memcpy_gather_gib_per_s"]);
        assert_eq!(codecs_of(&rows), names().flat_map(|name| [name; 2]).collect::<Vec<_>>());
        for (row, threads) in rows.iter().zip([1, 2].into_iter().cycle()) {
            let sizes = ["rows", "width", "batch", "threads"].map(|size| row[size].as_u64());
            assert_eq!(sizes, [600, 96, 16, threads].map(Some), "{row}");
            assert_eq!(row["dtype"].as_str().map(str::to_lowercase).as_deref(), Some(dtype));
            let saved = row["saved_percent"].as_f64().expect("a number");
            let least = if row["codec"] == "ibp" && dtype == "bf16" { 5.0 } else { -10.0 };
            assert!((least..60.0).contains(&saved), "{row}");
        }
    }
    assert_eq!(daemon.ls(&[]), Vec::<Value>::new(), "the benchmark has a daemon of its own");
}

#[test]
fn bench_gather_shows_raw_beside_a_chosen_codec() {
    let daemon = start();
    let small = ["bench", "gather", "--rows", "9", "--width", "3", "--batch", "2", "--seconds", "0.01"];
    let table = daemon.run_ok(&[&small[..], &["--codec", "ibp"]].concat());
    assert_says(&table, &["codec", "saved %", "rows/s", "memcpy gather GiB/s", "9 rows of 3 BF16"]);
    let firsts = table.lines().skip(1).map_while(|line| line.split_whitespace().next());
    assert_eq!(firsts.collect::<Vec<_>>(), ["raw", "raw", "ibp", "ibp"], "{table}");
    let unknown = daemon.run(&["bench", "gather", "--codec", "zip"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert_says(&String::from_utf8_lossy(&unknown.stderr), &names().collect::<Vec<_>>());
    let large = error_line(&daemon.run(&["bench", "gather", "--width", "16777216", "--batch", "1000"]));
    assert_says(&large, &["33554432000 bytes", "--batch"]);
}

#[test]
fn bench_codecs_sums_a_file_and_measures_what_is_chosen() {
    let daemon = start();
    let mut bytes = vec![0; 96 << 10];
    data::Words::Compressible.fill(&mut bytes, 1, 1, 0);
    let large = FileTensor::new("U64", &[96, 128], bytes);
    let small = FileTensor::new("U64", &[8], vec![1; 64]);
    let none = FileTensor::new("U64", &[0], Vec::new());
    let tensors: Tensors = [("large", large), ("small", small), ("none", none)]
        .map(|(name, tensor)| (name.to_owned(), tensor))
        .into();
    let file = daemon.file("three.safetensors", &files::safetensors(&tensors, &Metadata::new()));

    let figures = ["encode_gib_per_s", "decode_gib_per_s", "memcpy_gib_per_s"];
    let text = daemon.run_ok(&["bench", "codecs", &file, "--json", "--codec", "raw", "--codec", "ibp"]);
    let results = rows(&text, "results", &figures);
    assert_eq!(codecs_of(&results), ["raw", "raw", "raw", "raw", "ibp", "ibp", "ibp", "ibp"]);
    for (row, (place, threads)) in
        results.iter().zip([("cache", 1), ("cache", 2), ("dram", 1), ("dram", 2)].into_iter().cycle())
    {
        assert_eq!((&row["where"], &row["threads"]), (&place.into(), &threads.into()));
        assert_eq!((&row["tensor"], &row["dtype"]), (&"large".into(), &"U64".into()));
        assert!(row.get("bound_percent").is_some_and(Value::is_null), "integers have no exponent");
    }
    let files = rows(&text, "files", &["raw_bytes", "stored_bytes"]);
    assert_eq!(codecs_of(&files), ["raw", "ibp"]);
    for file in &files {
        assert_eq!((&file["file"], &file["raw_bytes"]), (&"three".into(), &((96 << 10) + 64).into()));
    }
    let stored = |n: usize| files[n]["stored_bytes"].as_u64().expect("a number");
    assert!(stored(1) < stored(0), "{text}");

    let whole = daemon.run_ok(&["bench", "codecs", &file, "--codec", "raw", "--access", "whole"]);
    assert_says(&whole, &["decode/memcpy", "whole file", "three"]);
}
