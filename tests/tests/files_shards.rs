//! Checkpoints in shards: what an index assigns is stored, and what is missing or doubled is named before any of it is.

use std::fs;
use std::path::Path;

use serde_json::json;
use tierpack_tests::Daemon;
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::program::{assert_says, error_line};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "32MiB", "--lock", "off"])
}

/// A shard of these tensors, all of whose bytes are `fill`.
fn shard(daemon: &Daemon, file: &str, names: &[&str], fill: u8) -> String {
    let tensor = FileTensor::new("U8", &[2, 4], vec![fill; 8]);
    let tensors: Tensors = names.iter().map(|name| ((*name).to_owned(), tensor.clone())).collect();
    let metadata = Metadata::from([("format".to_owned(), "pt".to_owned())]);
    daemon.file(file, &files::safetensors(&tensors, &metadata))
}

fn index(daemon: &Daemon, map: &[(&str, &str)]) -> String {
    let map: serde_json::Map<_, _> =
        map.iter().map(|(name, file)| ((*name).to_owned(), json!(file))).collect();
    let text = json!({"metadata": {"total_size": 32}, "weight_map": map}).to_string();
    daemon.file("model.safetensors.index.json", text.as_bytes())
}

/// `put ARGS…` is refused with a line that says all of `parts`, and nothing is stored.
#[track_caller]
fn refuses(daemon: &Daemon, args: &[&str], parts: &[&str]) {
    assert_says(&error_line(&daemon.run(&[&["put"], args].concat())), parts);
    assert!(daemon.ls(&[]).is_empty(), "something was stored");
}

#[track_caller]
fn check(daemon: &Daemon, expected: &[(&str, u8)]) {
    let names: Vec<_> =
        daemon.ls(&[]).iter().map(|entry| entry["name"].as_str().map(str::to_owned)).collect();
    let wanted: Vec<_> = expected.iter().map(|(name, _)| Some((*name).to_owned())).collect();
    assert_eq!(names, wanted);
    for (name, fill) in expected {
        assert_eq!(daemon.client().get(name).expect("it is there").as_bytes(), [*fill; 8], "{name}");
    }
}

#[test]
fn an_index_puts_what_it_assigns() {
    let daemon = start();
    shard(&daemon, FIRST, &["a", "b"], 1);
    shard(&daemon, SECOND, &["b", "c", "d"], 2);
    // `b` is in both, and `d` in none as far as the index says.
    let index = index(&daemon, &[("a", FIRST), ("b", SECOND), ("c", SECOND)]);
    let output = daemon.run(&["put", &index]);
    let errors = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{errors}");
    assert_says(&errors, &["warning", "does not name 2 tensors"]);
    assert_says(&String::from_utf8(output.stdout).expect("text"), &["put 3 tensors"]);
    check(&daemon, &[("a", 1), ("b", 2), ("c", 2)]);
    // The metadata of the shards come with their tensors.
    let out = daemon.dir().join("out.safetensors");
    daemon.run_ok(&["get", "--all", "-o", out.to_str().expect("a path of the test")]);
    assert_eq!(files::read(&out).1, Metadata::from([("format".to_owned(), "pt".to_owned())]));
    // From its own folder, by its name alone.
    let mut command = daemon.command();
    let status =
        command.args(["put", "model.safetensors.index.json", "--overwrite"]).current_dir(daemon.dir());
    assert!(status.output().expect("run the program").status.success());
}

#[test]
fn shards_are_put_together_or_not_at_all() {
    let daemon = start();
    let (first, second) = (shard(&daemon, FIRST, &["a", "b"], 1), shard(&daemon, SECOND, &["c"], 2));
    let array = daemon.file("d.npy", &files::npy("|u1", &[2, 4], &[3; 8]));
    let twice = shard(&daemon, "again.safetensors", &["b", "c"], 4);
    refuses(
        &daemon,
        &[&first, &second, &twice],
        &["2 tensors are in more than one file", "\"b\"", "\"c\"", FIRST],
    );
    refuses(&daemon, &[&first, &first], &["\"a\"", "more than one file"]);
    refuses(&daemon, &[&first, "/nowhere.safetensors", &second], &["/nowhere.safetensors", "No such file"]);
    refuses(&daemon, &[&first, &second, "--name", "x"], &["--name needs", "2 files has 3"]);
    assert_says(&daemon.run_ok(&["put", &first, &second, &array]), &["put 4 tensors"]);
    check(&daemon, &[("a", 1), ("b", 1), ("c", 2), ("d", 3)]);
    let error = error_line(&daemon.run(&["put", &first, &second]));
    assert_says(&error, &["has 3 of the 3 tensors in 2 files already", "--overwrite"]);
}

#[test]
fn an_index_that_does_not_fit_its_shards_is_refused_with_what_is_wrong() {
    let daemon = start();
    shard(&daemon, FIRST, &["a"], 1);
    let map = [("a", FIRST), ("b", SECOND), ("c", "model-3.safetensors")];
    let path = index(&daemon, &map);
    refuses(&daemon, &[&path], &["2 of the 3 shards", "index.json", SECOND, "\"model-3.safetensors\""]);
    shard(&daemon, SECOND, &["other"], 2);
    shard(&daemon, "model-3.safetensors", &["c"], 2);
    refuses(&daemon, &[&path], &["1 tensor is not where", "\"b\"", SECOND]);
    for outside in ["../x.safetensors", "/etc/hostname", "", ".", "a/../../x"] {
        let path = index(&daemon, &[("a", outside)]);
        refuses(&daemon, &[&path], &["\"a\"", "no file of its folder"]);
    }
    for (text, part) in [
        (r#"{"weight_map": {"a": "x", "a": "y"}}"#, "\"a\" appears twice in \"weight_map\""),
        (r#"{"weight_map": {}}"#, "is empty"),
        (r#"{"metadata": {}}"#, "no \"weight_map\""),
        (r#"{"weight_map": {"a": 1}}"#, "malformed"),
        (r#"{"weight_map""#, "malformed"),
    ] {
        fs::write(&path, text).expect("write a file of the test");
        refuses(&daemon, &[&path], &[part, "index of shards"]);
    }
    assert!(Path::new(&path).exists());
}
