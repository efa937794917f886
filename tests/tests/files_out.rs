//! Outputs of `get` as users have them: links, modes, pipes, mounts, limits, full disks and signals.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Pid, Uid, chown, geteuid, mkfifo};
use tierpack_client::Dtype;
use tierpack_tests::data::Source;
use tierpack_tests::faults::is_stopped;
use tierpack_tests::program::{assert_says, error_line};
use tierpack_tests::{Daemon, eventually, files, heeded, raw, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const LEN: u64 = 4 << 20;

/// A daemon with one tensor of 4 MiB, and a folder for outputs.
struct Stage {
    daemon: Daemon,
    folder: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let daemon = Daemon::start(PROGRAM, &["--pool-size", "32MiB", "--lock", "off"]);
        let (shape, mut source) = ([LEN / 4096, 4096], Source::new(1, 1));
        daemon.client().put_with("a", Dtype::U8, &shape, &mut source, &raw()).expect("room");
        let folder = daemon.dir().join("outputs");
        fs::create_dir(&folder).expect("a folder");
        Self { daemon, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn get(&self, out: &Path) -> Output {
        let mut command = self.daemon.command();
        command.args(["get", "a", "-o"]).arg(out).stdin(Stdio::null()).output().expect("run the program")
    }

    /// Runs `get` behind `PREFIX…`, which runs what follows it.
    fn get_behind(&self, prefix: &[&str], out: &Path) -> Output {
        let whole = self.daemon.command();
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg(whole.get_program()).args(whole.get_args());
        command.args(["get", "a", "-o"]).arg(out).env_remove("TIERPACK_SOCKET");
        command.stdin(Stdio::null()).output().expect("run a command")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).expect("a folder").flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().expect("a name of the test")).collect();
        names.sort();
        names
    }
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The bytes are a whole file of the tensor.
#[track_caller]
fn check(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.safetensors");
    fs::write(&path, bytes).expect("write a file of the test");
    let (tensors, _) = files::read(&path);
    let data = &tensors["a"].bytes;
    assert_eq!(data.len() as u64, LEN);
    assert_eq!(tierpack_tests::data::mismatches(data, 1, 1, 0), 0);
}

#[test]
fn a_file_that_is_replaced_keeps_its_mode_and_owner() {
    let (stage, is_root) = (Stage::new(), geteuid().is_root());
    for mode in [0o640, 0o444, 0o2755] {
        let path = stage.path("out");
        fs::write(&path, b"old").expect("write a file of the test");
        if is_root {
            chown(&path, Some(Uid::from_raw(4321)), Some(Gid::from_raw(1234))).expect("root gives files");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        let old = fs::metadata(&path).expect("it is there");
        succeeds(&stage.get(&path));
        let new = fs::metadata(&path).expect("it is there");
        assert_eq!((new.mode() & 0o7777, new.uid(), new.gid()), (mode, old.uid(), old.gid()), "{mode:o}");
        check(&fs::read(&path).expect("the output"));
        fs::remove_file(path).expect("it is there");
    }
    // A new one has what the umask leaves.
    let (new, plain) = (stage.path("new"), stage.path("plain"));
    succeeds(&stage.get(&new));
    fs::write(&plain, b"").expect("write a file of the test");
    assert_eq!(fs::metadata(new).unwrap().mode(), fs::metadata(plain).unwrap().mode());
}

#[test]
fn links_are_followed_to_files_and_to_where_files_will_be() {
    let stage = Stage::new();
    fs::create_dir(stage.path("sub")).expect("a folder");
    std::os::unix::fs::symlink("sub/middle", stage.path("link")).expect("a link");
    std::os::unix::fs::symlink("real", stage.path("sub/middle")).expect("a link");
    // The file is made, and then replaced.
    for _ in 0..2 {
        succeeds(&stage.get(&stage.path("link")));
        for link in ["link", "sub/middle"] {
            assert!(fs::symlink_metadata(stage.path(link)).unwrap().is_symlink(), "{link}");
        }
        check(&fs::read(stage.path("sub/real")).expect("the output"));
    }
    std::os::unix::fs::symlink("loop", stage.path("loop")).expect("a link");
    assert_says(&error_line(&stage.get(&stage.path("loop"))), &["loop"]);
}

#[test]
fn pipes_and_devices_are_written_as_they_are() {
    let stage = Stage::new();
    let pipe = stage.path("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).expect("a pipe")
    });
    succeeds(&stage.get(&pipe));
    check(&reader.join().expect("the reader"));
    assert_eq!(stage.names(), ["pipe"]);

    // Nothing but the file goes to standard output: a pipe, or behind what a file holds.
    let output = stage.get(Path::new("/dev/stdout"));
    succeeds(&output);
    check(&output.stdout);
    let path = stage.path("appended");
    fs::write(&path, b"old").expect("write a file of the test");
    let file = OpenOptions::new().append(true).open(&path).expect("it is there");
    let mut command = stage.daemon.command();
    let status = command.args(["get", "a", "-o", "/dev/stdout"]).stdout(file).status();
    assert!(status.expect("run the program").success());
    let bytes = fs::read(&path).expect("it is there");
    check(bytes.strip_prefix(b"old").expect("what was there is there"));

    assert_says(&error_line(&stage.get(Path::new("/dev/full"))), &["/dev/full", "No space left"]);
    assert_says(&error_line(&stage.get(&stage.folder)), &["is a folder", "choose another output"]);
    assert_says(&error_line(&stage.get(&stage.daemon.socket())), &["is a socket"]);
}

#[test]
fn a_mount_point_is_refused_before_anything_is_done() {
    let stage = Stage::new();
    let (real, mounted) = (stage.path("real"), stage.path("mounted"));
    for path in [&real, &mounted] {
        fs::write(path, b"old").expect("write a file of the test");
    }
    let mount = format!("mount --bind {real:?} {mounted:?} && exec \"$0\" \"$@\"");
    let prefix = ["unshare", "-m", "sh", "-c", mount.as_str()];
    if !tools::can("a mounted file", &[&prefix[..], &["true"]].concat()) {
        return;
    }
    let error = error_line(&stage.get_behind(&prefix, &mounted));
    assert_says(&error, &["mounted is a mount point", "choose another output", "-o /dev/stdout"]);
    assert_eq!((fs::read(real).unwrap(), fs::read(mounted).unwrap()), (b"old".to_vec(), b"old".to_vec()));
    assert_eq!(stage.names(), ["mounted", "real"]);
}

#[test]
fn a_limit_on_file_sizes_is_an_error_that_leaves_the_old_file() {
    let stage = Stage::new();
    let limit = ["prlimit", "--fsize=1048576"];
    if !tools::can("limiting file sizes", &[&limit[..], &["true"]].concat()) {
        return;
    }
    let path = stage.path("out");
    fs::write(&path, b"old").expect("write a file of the test");
    let error = error_line(&stage.get_behind(&limit, &path));
    assert_says(&error, &["File too large", "ulimit -f"]);
    assert_eq!((fs::read(&path).unwrap(), stage.names()), (b"old".to_vec(), vec!["out".to_owned()]));
}

#[test]
fn a_full_disk_is_an_error_that_leaves_the_old_file() {
    let stage = Stage::new();
    // A disk of 1 MiB for the command alone; what is on it afterwards comes behind the error.
    let script = format!(
        "mount -t tmpfs -o size=1m none {0:?} && printf old > {0:?}/out && \"$0\" \"$@\"; code=$?; \
         (ls -A {0:?}; cat {0:?}/out) > {1:?}; exit $code",
        stage.folder,
        stage.daemon.dir().join("after")
    );
    let prefix = ["unshare", "-m", "sh", "-c", script.as_str()];
    if !tools::can("a small disk", &[&prefix[..], &["true"]].concat()) {
        return;
    }
    let error = error_line(&stage.get_behind(&prefix, &stage.path("out")));
    assert_says(&error, &["out", "No space left"]);
    assert_eq!(fs::read_to_string(stage.daemon.dir().join("after")).expect("the script's"), "out\nold");
}

#[test]
fn no_signal_leaves_a_file_behind() {
    let stage = Stage::new();
    let probe =
        OpenOptions::new().write(true).custom_flags(OFlag::O_TMPFILE.bits()).open(&stage.folder).is_ok();
    if !probe {
        tools::skip("files without a name, which this file system does not have");
        return;
    }
    for old in [false, true] {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGKILL].map(heeded) {
            if old {
                fs::write(stage.path("out"), b"old").expect("write a file of the test");
            }
            let mut command = stage.daemon.command();
            command.args(["get", "a", "-o"]).arg(stage.path("out"));
            command.env("FAILPOINTS", "client.get.between_blocks=2*off->1*return(stop)");
            let mut child = command.stdout(Stdio::null()).spawn().expect("start the program");
            eventually("an export in the middle", || is_stopped(child.id()).then_some(()));
            let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
            kill(pid, signal).expect("it is stopped");
            // Another than SIGKILL takes effect when it goes on.
            let _ = kill(pid, Signal::SIGCONT).is_ok();
            assert!(!child.wait().expect("its end").success(), "{signal}");
            let expected: &[&str] = if old { &["out"] } else { &[] };
            assert_eq!(stage.names(), expected, "{signal}");
            assert!(!old || fs::read(stage.path("out")).unwrap() == b"old", "{signal}");
        }
    }
}
