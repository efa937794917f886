//! Files that change while they are imported, after they were, and while they are exported over.

use std::io::{Read, Seek};
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::program::{assert_says, error_line, has_open};
use tierpack_tests::{Daemon, data, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const MIB: usize = 1 << 20;

/// Tensors of these sizes, in MiB.
fn tensors(sizes: &[usize], version: u16) -> Tensors {
    let tensor = |(n, &mib): (u16, &usize)| {
        let mut bytes = vec![0; mib * MIB];
        data::fill(&mut bytes, n, version, 0);
        (format!("t{n}"), FileTensor::new("F32", &[mib as u64 * 256, 1024], bytes))
    };
    (0..).zip(sizes).map(tensor).collect()
}

fn file(sizes: &[usize], version: u16) -> Vec<u8> {
    files::safetensors(&tensors(sizes, version), &Metadata::new())
}

type Change = fn(&Path);

/// What somebody does to a file, and what the import says of it.
const CHANGES: [(&str, Change, &[&str]); 4] = [
    ("cut to nothing", |path| File::cut(path, 0), &["changed during the import", "to 0 bytes"]),
    ("cut in the middle", |path| File::cut(path, 3 * MIB as u64 + 5), &["changed", "to 3145733 bytes"]),
    ("grown", |path| File::cut(path, 100 * MIB as u64), &["changed", "to 104857600 bytes"]),
    ("overwritten in place", File::overwrite, &["was written during the import"]),
];

struct File;

impl File {
    fn cut(path: &Path, len: u64) {
        std::fs::File::options().write(true).open(path).expect("the file").set_len(len).expect("cut it");
    }

    fn overwrite(path: &Path) {
        use std::io::Write;
        let mut file = std::fs::File::options().write(true).open(path).expect("the file");
        file.seek(std::io::SeekFrom::Start(2 * MIB as u64)).expect("seek");
        file.write_all(&[0xEE; 4096]).expect("write");
    }
}

#[test]
fn a_file_that_changes_before_its_bytes_are_read_is_an_error() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "128MiB", "--lock", "off"]);
    for (name, change, parts) in CHANGES {
        let path = daemon.file("x.safetensors", &file(&[2, 4], 1));
        // The program reads the header first and then waits for the daemon, which does not answer.
        daemon.process().signal(Signal::SIGSTOP);
        let mut command = daemon.command();
        let child = command.args(["put", &path]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.stdin(Stdio::null()).spawn().expect("start the program");
        eventually("a program that waits for the daemon", || has_open(child.id(), "socket:").then_some(()));
        change(Path::new(&path));
        daemon.process().signal(Signal::SIGCONT);
        let error = error_line(&child.wait_with_output().expect("the end of the program"));
        assert_says(&error, parts);
        assert_says(&error, &["x.safetensors"]);
        check_empty(&daemon, name);
    }
}

#[test]
fn a_file_that_changes_while_its_bytes_are_read_is_an_error() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "512MiB", "--lock", "off"]);
    for (name, change, parts) in CHANGES {
        let path = daemon.file("x.safetensors", &file(&[4, 256], 1));
        let mut command = daemon.command();
        let child = command.args(["put", &path]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.stdin(Stdio::null()).spawn().expect("start the program");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        // In the middle of the large tensor.
        eventually("an import under way", || {
            (daemon.stats().pool.used_bytes > 16 * MIB as u64).then_some(())
        });
        nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("stop the program");
        change(Path::new(&path));
        nix::sys::signal::kill(pid, Signal::SIGCONT).expect("let the program go on");
        let error = error_line(&child.wait_with_output().expect("the end of the program"));
        assert_says(&error, parts);
        assert_says(&error, &["\"t1\"", "nothing of it is stored"]);
        check_empty(&daemon, name);
    }
}

/// Nothing of the file is there.
fn check_empty(daemon: &Daemon, after: &str) {
    assert!(daemon.ls(&[]).is_empty(), "{after}");
    let stats = daemon.quiet();
    assert_eq!((stats.pool.used_bytes, stats.pool.reserved_bytes, stats.transfers), (0, 0, 0), "{after}");
}

#[test]
fn a_file_that_another_is_renamed_over_is_imported_as_it_was_opened() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let path = daemon.file("x.safetensors", &file(&[2], 1));
    let other = daemon.file("y.safetensors", &file(&[3], 2));
    daemon.process().signal(Signal::SIGSTOP);
    let child =
        daemon.command().args(["put", &path]).stdout(Stdio::null()).spawn().expect("start the program");
    let mut child = child;
    eventually("a program that waits for the daemon", || has_open(child.id(), "socket:").then_some(()));
    std::fs::rename(other, path).expect("rename");
    daemon.process().signal(Signal::SIGCONT);
    assert!(child.wait().expect("the end of the program").success());
    assert_eq!(daemon.client().get("t0").unwrap().as_bytes(), tensors(&[2], 1)["t0"].bytes);
}

#[test]
fn an_imported_tensor_does_not_depend_on_its_file() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let path = daemon.file("x.safetensors", &file(&[1, 2], 1));
    daemon.run_ok(&["put", &path]);
    for (name, change, _) in CHANGES {
        change(Path::new(&path));
        for (tensor, expected) in tensors(&[1, 2], 1) {
            let found = daemon.client().get(&tensor).expect("the tensor is there");
            assert!(found.as_bytes() == expected.bytes, "{tensor} after the file was {name}");
        }
    }
}

#[test]
fn an_export_replaces_its_file_whole_or_not_at_all() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let old = file(&[1, 2], 1);
    let folder = daemon.dir().join("files");
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("x.safetensors");
    std::fs::write(&path, &old).expect("write a file of the test");
    let path_text = path.to_str().expect("a path of the test");
    daemon.run_ok(&["put", path_text]);
    daemon.run_ok(&["rm", "t1"]);
    let mut open = std::fs::File::open(&path).expect("the old file");

    // To the same path: who has the old file open goes on with it.
    error_line(&daemon.run(&["get", "t0", "t1", "-o", path_text]));
    assert!(std::fs::read(&path).expect("the file") == old, "a failed export changed the file");
    daemon.run_ok(&["get", "--all", "-o", path_text]);
    let mut seen = Vec::new();
    open.read_to_end(&mut seen).expect("read the old file");
    assert!(seen == old, "the open file changed");
    assert_eq!(files::read(&path), (tensors(&[1], 1), Metadata::new()));
    let names: Vec<_> =
        std::fs::read_dir(&folder).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["x.safetensors"], "nothing temporary is left");

    // Where nothing can be written, the error names the place.
    let error = error_line(&daemon.run(&["get", "--all", "-o", "/proc/x.safetensors"]));
    assert_says(&error, &["/proc"]);
}

/// C03: the data of a file starts wherever its header ends.
#[test]
fn data_at_any_offset_is_imported_bit_for_bit() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    for offset in [0, 1, 2, 3, 5, 7] {
        let tensors = tensors(&[1], 40 + offset);
        let file = files::safetensors(&tensors, &Metadata::new());
        let header_len = usize::from(file[0]);
        let (text, data) = file[8..].split_at(header_len);
        // Spaces after the JSON, as the format allows.
        let pad = (8 + usize::from(offset) - header_len % 8) % 8;
        let text = [text, &b"       "[..pad]].concat();
        assert_eq!(text.len() % 8, usize::from(offset));
        let path = daemon.file("x.safetensors", &files::with_header(&text, data));
        daemon.run_ok(&["put", &path, "--overwrite"]);
        assert!(daemon.client().get("t0").expect("the tensor").as_bytes() == data, "offset {offset}");
    }
    let big_endian = [&64_u64.to_be_bytes()[..], &[b' '; 64]].concat();
    let path = daemon.file("big-endian.safetensors", &big_endian);
    assert_says(&error_line(&daemon.run(&["put", &path])), &["malformed", "big-endian", "64"]);
}
