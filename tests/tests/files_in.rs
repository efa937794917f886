//! Inputs as users have them: any name, npy headers of any writer, types that npy does not know.

use tierpack_tests::Daemon;
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::program::{assert_says, error_line};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "32MiB", "--lock", "off"])
}

#[track_caller]
fn check(daemon: &Daemon, name: &str, dtype: &str, bytes: &[u8]) {
    let tensor = daemon.client().get(name).expect("it is there");
    assert_eq!((tensor.dtype().name(), tensor.as_bytes()), (dtype, bytes));
}

#[test]
fn a_file_is_known_by_its_first_bytes_whatever_its_name() {
    let daemon = start();
    let array = files::npy("<f4", &[2, 2], &[7; 16]);
    let tensors = Tensors::from([("t".to_owned(), FileTensor::new("U8", &[4], [1, 2, 3, 4]))]);
    let checkpoint = files::safetensors(&tensors, &Metadata::new());
    for (idx, name) in ["array", "array.bin", "array.safetensors"].into_iter().enumerate() {
        daemon.run_ok(&["put", &daemon.file(name, &array), "--name", &format!("a{idx}")]);
        check(&daemon, &format!("a{idx}"), "F32", &[7; 16]);
    }
    for name in ["pytorch_model", "model.npy", "sha256.3f9a"] {
        daemon.run_ok(&["put", &daemon.file(name, &checkpoint), "--overwrite"]);
        check(&daemon, "t", "U8", &[1, 2, 3, 4]);
    }
    // In updates too: values, and rows.
    let values = daemon.file("values", &files::npy("<f4", &[1, 2], &[9; 8]));
    let rows = daemon.file("rows", &files::npy("<i8", &[1], &1_i64.to_le_bytes()));
    daemon.run_ok(&["update", "a0", "--rows", &rows, "--from", &values]);
    check(&daemon, "a0", "F32", &[[7; 8], [9; 8]].concat());

    let zip = daemon.file("weights.npy", b"PK\x03\x04rest of an archive");
    assert_says(&error_line(&daemon.run(&["put", &zip])), &["weights.npy", "zip archive", "numpy.save"]);
    let text = daemon.file("notes", b"some words");
    assert_says(&error_line(&daemon.run(&["put", &text])), &["notes", "text", "--format"]);
    // A user who says so has it read as that.
    let error = error_line(&daemon.run(&["put", &text, "--format", "npy"]));
    assert_says(&error, &["notes as npy", "10 bytes"]);
}

#[test]
fn elements_that_npy_has_no_type_for_are_what_the_user_says() {
    let daemon = start();
    let words: Vec<u8> = (0..24).collect();
    let cases =
        [("<V2", "bf16", "BF16", 12), ("|V1", "f8_e4m3", "F8_E4M3", 24), ("|V1", "F8_E5M2", "F8_E5M2", 24)];
    for (idx, (descr, asked, dtype, n)) in cases.into_iter().enumerate() {
        let (name, file) = (format!("v{idx}"), files::npy(descr, &[n], &words));
        let file = daemon.file(&format!("{name}.npy"), &file);
        assert_says(&error_line(&daemon.run(&["put", &file])), &["--dtype", &name, "ml_dtypes"]);
        daemon.run_ok(&["put", &file, "--dtype", asked]);
        check(&daemon, &name, dtype, &words);
        // And back over itself.
        daemon.run_ok(&["update", &name, "--from", &file, "--dtype", asked]);
    }
    let plain = daemon.file("plain.npy", &files::npy("<f4", &[6], &words));
    let error = error_line(&daemon.run(&["put", &plain, "--dtype", "bf16"]));
    assert_says(&error, &["F32", "--dtype BF16", "leave --dtype out"]);
    let checkpoint = daemon.file("x", &files::safetensors(&Tensors::new(), &Metadata::new()));
    assert_says(
        &error_line(&daemon.run(&["put", &checkpoint, "--dtype", "bf16"])),
        &["safetensors", "leave it out"],
    );
    assert_eq!(daemon.run(&["put", &plain, "--dtype", "f99"]).status.code(), Some(2));
}
