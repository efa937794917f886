//! Where a socket can be: long, relative, strange, linked and read-only paths.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tierpack_client::{Client, Dtype, Error, stats_socket};
use tierpack_tests::program::{Served, assert_says, error_line};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

/// The program with this `--socket`, run in `folder`.
fn command(folder: &Path, socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).env_remove("TIERPACK_SOCKET");
    command.args(args).arg("--socket").arg(socket);
    command
}

fn serve(folder: &Path, socket: &Path) -> Served {
    let args = ["serve", "--pool-size", "8MiB", "--lock", "off"];
    Served::start(&mut command(folder, socket, &args), &folder.join("log"))
}

fn run(folder: &Path, socket: &Path, args: &[&str]) -> Output {
    command(folder, socket, args).output().expect("run the program")
}

/// A path in `folder` of exactly so many bytes: directories that exist, then a name.
fn path_of(folder: &Path, len: usize) -> PathBuf {
    let mut path = folder.to_owned();
    while len - path.as_os_str().len() > 100 {
        path.push("d".repeat(60));
        std::fs::create_dir_all(&path).expect("a directory");
    }
    path.push("s".repeat(len - path.as_os_str().len() - 1));
    assert_eq!(path.as_os_str().len(), len);
    path
}

/// Serves at `socket`, and a client, the command line and the stats all find it as `shown`.
fn works(folder: &Path, socket: &Path, shown: &Path) {
    let mut daemon = serve(folder, socket);
    daemon.ready();
    let client = Client::builder().socket(shown).connect().expect("connect");
    client.put("a", Dtype::U8, &[3], &[1, 2, 3]).expect("put");
    assert_eq!(client.get("a").expect("get").as_bytes(), [1, 2, 3]);
    assert!(client.stats().expect("stats").pool.used_bytes > 0);
    assert!(stats_socket::path_beside(shown).exists());
    let listed = run(folder, socket, &["ls", "--json"]);
    assert_says(&String::from_utf8_lossy(&listed.stdout), &["\"a\""]);
    let stats = run(folder, socket, &["stats", "--json"]);
    assert!(stats.status.success(), "{}", String::from_utf8_lossy(&stats.stderr));
    // The second is refused here too.
    let error = error_line(&run(folder, socket, &["serve", "--pool-size", "8MiB"]));
    assert_says(&error, &["owned by another daemon"]);
}

#[test]
fn a_path_of_107_bytes_works_and_its_stats_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_of(folder.path(), 107);
    works(folder.path(), &path, &path);
}

#[test]
fn a_longer_path_is_refused_with_length_and_limit_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    for len in [108, 109, 300] {
        let path = path_of(folder.path(), len);
        let (len, limit) = (len.to_string(), "107");
        let refusal = serve(folder.path(), &path).refusal();
        assert_says(&refusal, &[&len, limit, "--socket"]);
        assert!(!path.exists() && !path.with_extension("lock").exists());
        assert_says(&error_line(&run(folder.path(), &path, &["ls"])), &[&len, limit]);
        assert_says(&error_line(&run(folder.path(), &path, &["put", "x.npy"])), &[]);
        let error = Client::builder().socket(&path).connect().unwrap_err();
        assert!(matches!(error, Error::SocketPathTooLong { .. }), "{error}");
    }
}

#[test]
fn the_file_name_may_hold_any_byte() {
    let folder = tempfile::tempdir().unwrap();
    for name in [&b"\xff\xfe.sock"[..], "é 中 😀.sock".as_bytes(), b"-x\n y", b"control.sock"] {
        let path = folder.path().join(OsStr::from_bytes(name));
        works(folder.path(), &path, &path);
    }
    let strange = OsString::from_vec(b"d\xff".to_vec());
    let inner = folder.path().join(strange);
    std::fs::create_dir(&inner).unwrap();
    works(folder.path(), &inner.join("s"), &inner.join("s"));
}

#[test]
fn a_relative_path_is_that_of_the_directory_it_was_given_in() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("inner")).unwrap();
    works(folder.path(), Path::new("x.sock"), &folder.path().join("x.sock"));
    works(folder.path(), Path::new("inner/../y.sock"), &folder.path().join("y.sock"));
    works(&folder.path().join("inner"), Path::new("../z.sock"), &folder.path().join("z.sock"));
}

#[test]
fn a_link_to_a_directory_works_and_a_link_as_the_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    works(folder.path(), &link.join("s"), &real.join("s"));

    let target = folder.path().join("target");
    std::fs::write(&target, "somebody's").unwrap();
    std::os::unix::fs::symlink(&target, folder.path().join("t.sock")).unwrap();
    let refusal = serve(folder.path(), &folder.path().join("t.sock")).refusal();
    assert_says(&refusal, &["t.sock", "symbolic link"]);
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "somebody's");
    // Nor is a linked lock file written through.
    std::os::unix::fs::symlink(&target, folder.path().join("u.sock.lock")).unwrap();
    assert_says(&serve(folder.path(), &folder.path().join("u.sock")).refusal(), &["u.sock.lock"]);
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "somebody's");
}

#[test]
fn a_directory_that_is_missing_or_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/control.sock");
    assert_says(&serve(folder.path(), &missing).refusal(), &["missing/control.sock", "--socket"]);
    // Not even root can write there.
    let read_only = Path::new("/proc/control.sock");
    assert_says(&serve(folder.path(), read_only).refusal(), &["/proc/control.sock", "--socket"]);
    for path in ["/", "inner/"] {
        let refusal = serve(folder.path(), Path::new(path)).refusal();
        assert_says(&refusal, &["--socket"]);
    }
}

#[test]
fn default_places_are_found_by_both_sides_in_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let default = |args: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(args).env_remove("TIERPACK_SOCKET").env("XDG_RUNTIME_DIR", &runtime);
        command
    };
    // What a client tried is in its error.
    let error = error_line(&default(&["ls"]).output().unwrap());
    assert_says(&error, &["runtime/tierpack/control.sock", "/run/tierpack/control.sock", "tierpack serve"]);
    let mut serving = default(&["serve", "--pool-size", "8MiB", "--lock", "off"]);
    let mut daemon = Served::start(&mut serving, &folder.path().join("log"));
    daemon.ready();
    assert!(runtime.join("tierpack/control.sock").exists());
    assert_eq!(default(&["ls", "--json"]).output().unwrap().stdout, b"[]\n");
}
