//! Tensors go to files and come from them in steps: the program needs little memory, however large they are.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use tierpack_client::{Client, Dtype, Parts};
use tierpack_tests::data::Source;
use tierpack_tests::faults::is_stopped;
use tierpack_tests::files;
use tierpack_tests::{Daemon, eventually, raw, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const SERVE: [&str; 4] = ["--pool-size", "512MiB", "--lock", "off"];
const MIB: usize = 1 << 20;
/// What a command may have of private memory.
const LIMIT: &str = "--data=67108864";
/// Within the second part of 8 MiB of an export of blocks of 256 KiB.
const POINT: &str = "client.get.between_blocks=40*off->1*return(stop)";

/// Runs a command of the program with at most 64 MiB of private memory.
fn run_small(daemon: &Daemon, args: &[&str]) -> Output {
    let whole = daemon.command();
    let mut command = Command::new("prlimit");
    command.arg(LIMIT).arg(whole.get_program()).args(whole.get_args()).args(args);
    command.env_remove("TIERPACK_SOCKET").stdin(Stdio::null());
    command.output().expect("prlimit runs")
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn put(client: &Client, name: &str, shape: &[u64], version: u16) {
    let options = raw().overwrite(true);
    client.put_with(name, Dtype::U8, shape, &mut Source::new(1, version), &options).expect("room");
}

/// The end of a file is these bytes.
fn check_file(path: &Path, versions: &[u16], len: usize) {
    let mut file = File::open(path).expect("the output");
    let end = i64::try_from(len * versions.len()).expect("a length of the test");
    file.seek(SeekFrom::End(-end)).expect("the file is that long");
    let (mut found, mut expected) = (vec![0; MIB], vec![0; MIB]);
    for version in versions {
        let mut words = Source::new(1, *version);
        for at in (0..len).step_by(MIB) {
            file.read_exact(&mut found).expect("the file");
            words.read_exact(&mut expected).expect("words without end");
            assert!(found == expected, "version {version}, byte {at}");
        }
    }
}

/// One tensor is a single row, the other has many: both are twice the memory that there is.
#[test]
fn a_tensor_larger_than_the_memory_goes_out_and_in() {
    if !tools::can("limiting memory", &["prlimit", LIMIT, "true"]) {
        return;
    }
    let (daemon, len) = (Daemon::start(PROGRAM, &SERVE), 128 * MIB);
    let client = daemon.client();
    put(&client, "a row", &[len as u64], 1);
    put(&client, "rows", &[len as u64 / 4096, 4096], 2);
    let out = daemon.dir().join("out.safetensors");
    let path = out.to_str().expect("a path of the test");
    succeeds(&run_small(&daemon, &["get", "--all", "-o", path]));
    check_file(&out, &[1, 2], len);

    // What is in the file comes back over other values.
    put(&client, "a row", &[len as u64], 3);
    put(&client, "rows", &[len as u64 / 4096, 4096], 3);
    for name in ["a row", "rows"] {
        succeeds(&run_small(&daemon, &["update", name, "--from", path]));
    }
    let (mut buf, mut expected) = (vec![0; Parts::MIN_BUFFER_BYTES], vec![0; Parts::MIN_BUFFER_BYTES]);
    for (name, version) in [("a row", 1), ("rows", 2)] {
        let mut parts = client.open(name).expect("it is there").parts().expect("it is there");
        let (mut words, mut read) = (Source::new(1, version), 0);
        loop {
            let part = parts.read(&mut buf).expect("it is there");
            if part == 0 {
                break;
            }
            words.read_exact(&mut expected[..part]).expect("words without end");
            assert!(buf[..part] == expected[..part], "{name}, byte {read}");
            read += part;
        }
        assert_eq!(read, len, "{name}");
    }
}

/// The numbers of the rows alone would fill half of the memory.
#[test]
fn row_numbers_are_read_as_they_are_needed() {
    if !tools::can("limiting memory", &["prlimit", LIMIT, "true"]) {
        return;
    }
    const ROWS: u32 = 4 << 20;
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    client.put_with("t", Dtype::U8, &[ROWS.into(), 4], &mut std::io::repeat(0), &raw()).expect("room");
    let write = |name: &str, bytes: Vec<u8>| {
        let path = daemon.dir().join(name);
        std::fs::write(&path, bytes).expect("room");
        path.to_str().expect("a path of the test").to_owned()
    };
    // The last row gets the first values.
    let numbers = (0..ROWS).rev().flat_map(|row| u64::from(row).to_le_bytes()).collect::<Vec<_>>();
    let values = (0..ROWS).flat_map(u32::to_le_bytes).collect::<Vec<_>>();
    let numbers = write("rows.npy", files::npy("<u8", &[ROWS.into()], &numbers));
    let values = write("values.npy", files::npy("|u1", &[ROWS.into(), 4], &values));
    succeeds(&run_small(&daemon, &["update", "t", "--rows", &numbers, "--from", &values]));
    let found = client.get("t").expect("it is there");
    let expected = (0..ROWS).rev().flat_map(u32::to_le_bytes);
    assert!(found.as_bytes().iter().copied().eq(expected));
}

/// The export stops within its second part, and the tensor is put again.
fn stopped_export(daemon: &Daemon, client: &Client, out: &Path) -> Child {
    put(client, "rows", &[8192, 4096], 1);
    let mut command = daemon.command();
    command.args(["get", "rows", "-o"]).arg(out).env("FAILPOINTS", POINT);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start the program")
}

/// Goes on with an export, once it has stopped and the tensor was put again; what comes of it.
fn go_on(client: &Client, export: Child) -> Output {
    eventually("an export that stops in the middle", || is_stopped(export.id()).then_some(()));
    put(client, "rows", &[8192, 4096], 2);
    let pid = Pid::from_raw(i32::try_from(export.id()).expect("a process id"));
    kill(pid, Signal::SIGCONT).expect("it is stopped");
    export.wait_with_output().expect("the end of the program")
}

#[test]
fn a_tensor_that_is_put_again_meanwhile_is_written_as_it_was() {
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let (client, out) = (daemon.client(), daemon.dir().join("out.safetensors"));
    let export = stopped_export(&daemon, &client, &out);
    succeeds(&go_on(&client, export));
    check_file(&out, &[1], 32 * MIB);

    // A pipe too: nothing has to be taken back.
    let pipe = daemon.dir().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    let export = stopped_export(&daemon, &client, &pipe);
    let reader = std::thread::spawn(move || {
        let (mut from, mut to) = (File::open(pipe).expect("a pipe"), File::create(&out).expect("room"));
        std::io::copy(&mut from, &mut to).expect("what comes by the pipe");
        out
    });
    succeeds(&go_on(&client, export));
    check_file(&reader.join().expect("the reader"), &[1], 32 * MIB);
}
