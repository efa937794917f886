//! The command line: files go in and come back word for word, and every command says what it did.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::program::{assert_says, error_line};
use tierpack_tests::{Daemon, data};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/minilm_layer0_bf16.safetensors");
const SERVE: [&str; 4] = ["--pool-size", "64MiB", "--lock", "off"];

fn start() -> Daemon {
    Daemon::start(PROGRAM, &SERVE)
}

/// Runs `get` with these arguments and reads what it wrote; returns its standard error too.
fn export(daemon: &Daemon, args: &[&str]) -> (Tensors, Metadata, String) {
    let path = daemon.dir().join("out.safetensors");
    let output = daemon.run(&[&["get", "-o", path.to_str().expect("a path of the test")], args].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let (tensors, metadata) = files::read(&path);
    (tensors, metadata, errors)
}

fn tensor(n: u16) -> FileTensor {
    let mut bytes = vec![0; 64];
    data::fill(&mut bytes, n, 1, 0);
    FileTensor::new("F32", &[4, 4], bytes)
}

fn metadata(pairs: &[(&str, &str)]) -> Metadata {
    pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn a_checkpoint_comes_back_word_for_word_with_its_metadata() {
    let daemon = start();
    let (tensors, metadata) = files::read(Path::new(CHECKPOINT));
    assert!(tensors.len() == 18 && metadata.contains_key("license"), "{tensors:?}");
    assert_says(&daemon.run_ok(&["put", CHECKPOINT]), &["18 tensors", "default"]);
    assert_eq!(export(&daemon, &["--all"]), (tensors.clone(), metadata.clone(), String::new()));

    // Some of them by name, from another namespace; the names are sorted, not the arguments.
    daemon.run_ok(&["put", CHECKPOINT, "--namespace", "other", "--access", "whole"]);
    let names = ["embeddings.position_ids", "adapter.unused.weight", "config.layer_norm_eps"];
    let chosen: Tensors =
        tensors.iter().filter(|(name, _)| names.contains(&name.as_str())).map(own).collect();
    let args = [&["--namespace", "other"][..], &names].concat();
    assert_eq!(export(&daemon, &args), (chosen, metadata, String::new()));
}

fn own((name, tensor): (&String, &FileTensor)) -> (String, FileTensor) {
    (name.clone(), tensor.clone())
}

#[test]
fn ls_tells_everything_and_stored_bytes_are_what_the_pool_rose_by() {
    let daemon = start();
    let before = daemon.stats().pool;
    daemon.run_ok(&["put", CHECKPOINT, "--codec", "raw"]);
    let (tensors, _) = files::read(Path::new(CHECKPOINT));
    let entries = daemon.ls(&[]);
    assert_eq!(entries.len(), tensors.len());
    let mut sum = 0;
    for entry in &entries {
        let file = &tensors[entry["name"].as_str().expect("a name")];
        assert_eq!(entry["namespace"], "default");
        assert_eq!(entry["codec"], "raw");
        assert_eq!(entry["dtype"], file.dtype.as_str());
        assert_eq!(entry["shape"], serde_json::json!(file.shape));
        let raw = file.bytes.len() as u64;
        assert_eq!(entry["raw_bytes"], raw);
        let stored = entry["stored_bytes"].as_u64().expect("a number");
        assert!(stored >= raw && stored.is_multiple_of(64), "{entry}");
        check_saved(entry, raw, stored);
        sum += stored;
    }
    let after = daemon.stats().pool;
    assert_eq!(after.used_bytes - before.used_bytes, sum);
    assert_eq!((after.stored_bytes, after.reserved_bytes, after.held_bytes), (sum, 0, 0));
    assert_eq!(daemon.ls(&["--namespace", "default"]), entries);
    assert_eq!(daemon.ls(&["--namespace", "nothing here"]), Vec::<Value>::new());
    daemon.run_ok(&["rm", "--all"]);
    assert_eq!(daemon.quiet().pool.used_bytes, before.used_bytes);
}

#[expect(clippy::cast_precision_loss, reason = "sizes of a test are small")]
fn check_saved(entry: &Value, raw: u64, stored: u64) {
    let saved = entry["saved_percent"].as_f64().expect("a number");
    let expected = if raw == 0 { 0.0 } else { 100.0 * (1.0 - stored as f64 / raw as f64) };
    assert!((saved - expected).abs() < 1e-9, "{entry}");
}

/// A matrix of the checkpoint as a npy file of wider floats.
fn widened(daemon: &Daemon, name: &str, descr: &str) -> String {
    let (tensors, _) = files::read(Path::new(CHECKPOINT));
    let FileTensor { shape, bytes, .. } = &tensors["encoder.layer.0.attention.self.query.weight"];
    let values = bytes.as_chunks::<2>().0.iter().map(|&[low, high]| f32::from_le_bytes([0, 0, low, high]));
    let bytes: Vec<u8> = match descr {
        "<f8" => values.flat_map(|value| f64::from(value).to_le_bytes()).collect(),
        // The same bytes as integers.
        _ => values.flat_map(f32::to_le_bytes).collect(),
    };
    daemon.file(&format!("{name}.npy"), &files::npy(descr, shape, &bytes))
}

#[test]
fn a_preference_decides_between_codecs() {
    let daemon = start();
    let file = widened(&daemon, "weights", "<f8");
    for (prefer, codec, runner_up) in
        [("ratio", "planes:2-2-2", "planes:3"), ("speed", "planes:4", "planes:2-2-2")]
    {
        daemon.run_ok(&["put", &file, "--overwrite", "--prefer", prefer]);
        let entries = daemon.ls(&[]);
        assert_eq!((&entries[0]["codec"], &entries[0]["runner_up"]), (&codec.into(), &runner_up.into()));
        let percent = |field: &str| entries[0][field].as_f64().expect("a number");
        assert!((percent("saved_percent") - percent("predicted_saved_percent")).abs() < 1e-9, "{entries:?}");
        assert_says(&daemon.run_ok(&["ls", "--verbose"]), &[codec, runner_up]);
    }
    let output = daemon.run(&["put", &file, "--overwrite", "--prefer", "speed", "--codec", "ibp"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_says(&errors, &["--prefer is for --codec auto", "--codec ibp leaves no choice"]);
    let error = daemon.run(&["put", &file, "--codec", "planes"]);
    assert_says(&String::from_utf8(error.stderr).unwrap(), &["\"planes\"", "planes:4, planes:3"]);
    let help = daemon.run_ok(&["put", "--help"]);
    assert_says(&help, &["auto, raw, ibp, ibp:window, planes:4", "--prefer", "speed"]);
}

#[test]
fn integers_are_stored_raw_where_planes_are_asked_for() {
    let daemon = start();
    let file = widened(&daemon, "integers", "<i4");
    for prefer in ["ratio", "speed"] {
        daemon.run_ok(&["put", &file, "--name", prefer, "--prefer", prefer]);
    }
    assert_says(&daemon.run_ok(&["put", &file, "--codec", "planes:4"]), &["1 tensor"]);
    for entry in daemon.ls(&[]) {
        let codec = entry["codec"].as_str().expect("a name");
        let asked_for_planes = entry["name"] == "integers";
        assert!(!codec.starts_with("planes") && (codec == "raw") == asked_for_planes, "{entry}");
        if asked_for_planes {
            // The prediction is that of raw, and is kept.
            assert_eq!(entry["predicted_saved_percent"], entry["saved_percent"]);
            let nothing = (&Value::Null, &0.into(), &0.into());
            assert_eq!((&entry["runner_up"], &entry["generation"], &entry["participating"]), nothing);
        }
    }
    let table = daemon.run_ok(&["ls", "--verbose"]);
    let row = table.lines().find(|line| line.contains("integers")).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert!(cells.contains(&"raw") && cells.ends_with(&["-", "-", "-", "0", "0"]), "{row}");
}

#[test]
fn npy_files_are_named_by_their_stem_or_by_name() {
    let daemon = start();
    let cases: [(&str, &str, &[u64], usize); 7] = [
        ("<f4", "F32", &[2, 3], 24),
        ("<f2", "F16", &[5], 10),
        ("<f8", "F64", &[], 8),
        ("|b1", "BOOL", &[3, 0], 0),
        ("<i8", "I64", &[1, 1, 2], 16),
        ("|u1", "U8", &[7], 7),
        ("<c8", "C64", &[2], 16),
    ];
    for (idx, (descr, dtype, shape, len)) in cases.into_iter().enumerate() {
        let bytes: Vec<u8> =
            (0..len).map(|n| u8::try_from((n * 7 + 200 * idx) & 0xFF).expect("masked")).collect();
        let file = daemon.file(&format!("array {idx}.npy"), &files::npy(descr, shape, &bytes));
        daemon.run_ok(&["put", &file]);
        let (found, _, _) = export(&daemon, &[&format!("array {idx}")]);
        assert_eq!(found[&format!("array {idx}")], FileTensor::new(dtype, shape, bytes), "{descr}");
    }
    let file = daemon.file("x.npy", &files::npy("<i4", &[6], &[1; 24]));
    daemon.run_ok(&["put", &file, "--name", "a/b", "--namespace", "other", "--row-elems", "2"]);
    let handle = daemon.client().namespace("other").unwrap().open("a/b").unwrap();
    assert_eq!((handle.n_rows(), handle.row_bytes()), (3, 8));
}

#[test]
fn a_name_holds_any_character() {
    let names = [
        "",
        " ",
        "a\nb",
        "nul\0nul",
        "\u{1b}[31mred\u{1b}[0m",
        "\"quoted\" 'single' \\back",
        "../../etc/passwd",
        "/",
        "😀 é ü 中",
        "\u{202e}right to left",
        "--all",
        "\u{7f}\u{9b}\r\t",
        "{\"a\": 1}",
    ];
    let long = "é".repeat(2048);
    let names = names.iter().copied().chain([long.as_str()]).zip(0..);
    let tensors: Tensors = names.map(|(name, n)| (name.to_owned(), tensor(n))).collect();
    let daemon = start();
    let file = daemon.file("names.safetensors", &files::safetensors(&tensors, &Metadata::new()));
    daemon.run_ok(&["put", &file]);
    assert_eq!(export(&daemon, &["--all"]), (tensors.clone(), Metadata::new(), String::new()));

    let listed = daemon.ls(&[]);
    let listed: Vec<&str> = listed.iter().map(|entry| entry["name"].as_str().expect("a name")).collect();
    assert_eq!(listed, tensors.keys().map(String::as_str).collect::<Vec<_>>());
    let table = daemon.run_ok(&["ls"]);
    assert!(!table.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{table:?}");
    // A heading, one line for each, one with the sums.
    assert_eq!(table.lines().count(), tensors.len() + 2, "{table}");

    // By name, where an argument can hold it.
    for name in tensors.keys().filter(|name| !name.contains('\0')) {
        let (found, _, _) = export(&daemon, &["--", name]);
        assert_eq!(found, Tensors::from([own((name, &tensors[name]))]));
        daemon.run_ok(&["rm", "--", name]);
    }
    assert_eq!(daemon.ls(&[]).len(), 1);
}

#[test]
fn metadata_that_tensors_do_not_agree_on_is_left_out_with_a_warning() {
    let daemon = start();
    let one = |name: &str, n| Tensors::from([(name.to_owned(), tensor(n))]);
    let a = files::safetensors(&one("a", 1), &metadata(&[("license", "MIT"), ("who", "a")]));
    let b = files::safetensors(&one("b", 2), &metadata(&[("license", "MIT"), ("who", "b"), ("x\n", "y")]));
    daemon.run_ok(&["put", &daemon.file("a.safetensors", &a)]);
    daemon.run_ok(&["put", &daemon.file("b.safetensors", &b)]);
    let (_, agreed, warning) = export(&daemon, &["--all"]);
    assert_eq!(agreed, metadata(&[("license", "MIT")]));
    assert_eq!(warning.lines().count(), 1, "{warning:?}");
    assert_says(&warning, &["tierpack: warning: ", "2 tensors", "\"who\"", r#""x\n""#]);
    assert_eq!(export(&daemon, &["b"]).1.len(), 3);
}

#[test]
fn an_existing_tensor_is_replaced_only_when_asked() {
    let daemon = start();
    let with = |n| files::safetensors(&Tensors::from([("a".to_owned(), tensor(n))]), &Metadata::new());
    daemon.run_ok(&["put", &daemon.file("1.safetensors", &with(1))]);
    let second = daemon.file("2.safetensors", &with(2));
    let error = error_line(&daemon.run(&["put", &second]));
    assert_says(&error, &["\"a\"", "--overwrite", "\"default\""]);
    assert_eq!(export(&daemon, &["a"]).0["a"], tensor(1));
    daemon.run_ok(&["put", &second, "--overwrite"]);
    assert_eq!(export(&daemon, &["a"]).0["a"], tensor(2));
    assert_eq!(daemon.ls(&[]).len(), 1);
    assert_eq!(daemon.quiet().pool.used_bytes, daemon.stats().pool.stored_bytes);
}

#[test]
fn rm_removes_what_it_names_or_nothing() {
    let daemon = start();
    let three: Tensors = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| (name.to_owned(), tensor(n))).into();
    let file = daemon.file("x.safetensors", &files::safetensors(&three, &Metadata::new()));
    daemon.run_ok(&["put", &file]);
    daemon.run_ok(&["put", &file, "--namespace", "other"]);
    let error = error_line(&daemon.run(&["rm", "a", "missing", "b"]));
    assert_says(&error, &["1 of 3 names", "\"missing\"", "tierpack ls"]);
    assert_eq!(daemon.ls(&[]).len(), 6);
    assert_says(&daemon.run_ok(&["rm", "a", "c"]), &["2 tensors", "default"]);
    assert_says(&daemon.run_ok(&["rm", "--all"]), &["1 tensor "]);
    assert_eq!(daemon.ls(&[]).len(), 3, "--all is all of one namespace");
    daemon.run_ok(&["rm", "--all", "--namespace", "other"]);
    assert_eq!(daemon.run_ok(&["ls", "--json"]), "[]\n");
    assert_eq!(daemon.quiet().pool.used_bytes, 0);
}

#[test]
fn exit_codes_tell_errors_from_wrong_usage() {
    let daemon = start();
    let code = |args: &[&str]| daemon.run(args).status.code();
    assert_eq!(code(&["ls"]), Some(0));
    assert_eq!(code(&["--help"]), Some(0));
    let usage: [&[&str]; 7] = [
        &[],
        &["fly"],
        &["put"],
        &["get", "a"],
        &["rm"],
        &["rm", "a", "--all"],
        &["serve", "--pool-size", "many"],
    ];
    for args in usage {
        assert_eq!(code(args), Some(2), "{args:?}");
    }
    let errors: [&[&str]; 5] = [
        &["get", "nothing", "-o", "/tmp/never.safetensors"],
        &["put", "/nowhere.safetensors"],
        &["put", "/etc/hostname"],
        &["rm", "nothing"],
        &["serve"],
    ];
    for args in errors {
        error_line(&daemon.run(args));
    }
    let help = daemon.run_ok(&["--help"]);
    assert_says(&help, &["Exit codes:", "  0  ", "  1  ", "  2  "]);
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_output_quietly() {
    let daemon = start();
    daemon.run_ok(&["put", CHECKPOINT]);
    let mut command = daemon.command();
    let mut child = command.arg("ls").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
}

#[test]
fn the_demo_finds_every_word_as_it_was_stored() {
    let daemon = start();
    let text = daemon.run_ok(&["demo", "--json", "--processes", "2", "--seconds", "1"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let number = |value: &Value| value.as_u64().expect("a number");
    let (tensors, processes) =
        (report["tensors"].as_array().unwrap(), report["processes"].as_array().unwrap());
    let sum = |field: &str| tensors.iter().map(|tensor| number(&tensor[field])).sum::<u64>();
    assert_eq!(number(&report["raw_bytes"]), sum("raw_bytes"));
    assert_eq!(number(&report["stored_bytes"]), sum("stored_bytes"));
    assert!(number(&report["host_bytes"]) > sum("stored_bytes"), "{text}");
    assert_eq!((tensors.len(), processes.len()), (18, 2));
    assert_ne!(processes[0]["pid"], processes[1]["pid"]);
    for process in processes {
        assert!(number(&process["reads"]) > 0 && process["gib_per_s"].as_f64().unwrap() > 0.0, "{process}");
        assert_eq!(process["mismatches"], 0);
    }
    assert_eq!(daemon.ls(&[]), Vec::<Value>::new(), "the demo has a daemon of its own");
}

#[test]
fn stats_are_one_document_and_a_table() {
    let daemon = start();
    daemon.run_ok(&["put", CHECKPOINT]);
    let stats: Value = serde_json::from_str(&daemon.run_ok(&["stats", "--json"])).unwrap();
    let pool = &stats["pool"];
    assert_eq!((&pool["size_bytes"], &pool["lock"]), (&(64 << 20).into(), &"off".into()));
    assert_eq!(stats["namespaces"][0]["tensors"], 18);
    assert_says(&daemon.run_ok(&["stats"]), &["default", "18", "64.00 MiB"]);
}

#[test]
fn a_printed_configuration_loads_again() {
    let daemon = start();
    let args = ["serve", "--print-config", "--pool-size", "12MiB", "--lock", "require", "--workers", "3"];
    let printed = daemon.run_ok(&args);
    assert_says(&printed, &["pool_size = \"12MiB\"", "lock = \"require\"", "workers = 3", "control.sock"]);
    let file = daemon.file("config.toml", printed.as_bytes());
    // Neither the socket nor anything else is given again.
    let mut command = std::process::Command::new(PROGRAM);
    command.env_remove("TIERPACK_SOCKET").args(["serve", "--print-config", "--config", &file]);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), printed);
}
