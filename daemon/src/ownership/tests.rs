//! Ownership under races, leftovers and foreign files, all inside one process.

use std::ffi::OsStr;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Barrier;

use nix::errno::Errno;
use nix::sys::socket::{accept, getsockopt, sockopt};
use tempfile::TempDir;

use super::listener::{connect_name, new_socket, temporary_name};
use super::*;

fn control_in(directory: &TempDir) -> PathBuf {
    directory.path().join("control.sock")
}

fn names_in(directory: &TempDir) -> Vec<String> {
    let names = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn connects(path: &Path, kind: SocketKind) -> bool {
    connect_name(&new_socket(kind).unwrap(), path).is_ok()
}

/// A socket file that nobody listens on, as a killed daemon leaves it.
fn leave_stale_socket(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
    assert!(fs::symlink_metadata(path).unwrap().file_type().is_socket());
}

#[test]
fn second_owner_is_refused_with_the_name_of_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let first = Ownership::acquire(&control).unwrap();
    let error = Ownership::acquire(&control).unwrap_err().to_string();
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    assert!(error.contains("started 2") && error.contains("control.sock"), "{error}");
    drop(first);
    Ownership::acquire(&control).unwrap();
    assert_eq!(names_in(&directory), ["control.sock.lock"]);
}

#[test]
fn of_twenty_at_once_one_wins() {
    for _ in 0..50 {
        let directory = tempfile::tempdir().unwrap();
        let control = control_in(&directory);
        let (start, end) = (Barrier::new(20), Barrier::new(20));
        let n_owners: usize = std::thread::scope(|scope| {
            let race = || {
                start.wait();
                let result = Ownership::acquire(&control);
                // Nobody lets go before all have tried.
                end.wait();
                match result {
                    Ok(_) => 1,
                    Err(Error::Owned { .. }) => 0,
                    Err(error) => panic!("{error}"),
                }
            };
            let racers: Vec<_> = (0..20).map(|_| scope.spawn(race)).collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).sum()
        });
        assert_eq!(n_owners, 1);
    }
}

#[test]
fn removal_of_the_lock_file_at_any_time_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let lock = lock_path(&control);
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| {
            for _ in 0..2000 {
                drop(fs::remove_file(&lock));
            }
        });
        while !remover.is_finished() {
            match Ownership::acquire(&control) {
                Ok(_) | Err(Error::Owned { .. } | Error::LockFileUnusable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let owner = Ownership::acquire(&control).unwrap();
    assert!(owner.is_intact());
}

#[test]
fn content_of_a_leftover_lock_file_decides_nothing() {
    let own = format!("pid {}\n", std::process::id());
    let contents: [&[u8]; 6] = [
        b"",
        b"pid 1, a live stranger\n",
        own.as_bytes(),
        b"\0\xff\x1b[2J garbage",
        b"\n\n",
        &[b'x'; 100_000],
    ];
    for content in contents {
        let directory = tempfile::tempdir().unwrap();
        let control = control_in(&directory);
        fs::write(lock_path(&control), content).unwrap();
        let _owner = Ownership::acquire(&control).unwrap();
        let written = fs::read_to_string(lock_path(&control)).unwrap();
        assert!(written.starts_with(&format!("pid {}, tierpack ", std::process::id())), "{written}");
        assert!(written.ends_with("Z\n"), "{written}");
    }
}

#[test]
fn a_huge_leftover_lock_file_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    File::create(lock_path(&control)).unwrap().set_len(4 << 30).unwrap();
    let _owner = Ownership::acquire(&control).unwrap();
    assert!(fs::metadata(lock_path(&control)).unwrap().len() < 256);
}

#[test]
fn garbage_of_the_holder_is_not_printed() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let owner = Ownership::acquire(&control).unwrap();
    for content in ["\x1b[2Jevil\n", "", "\n"] {
        owner.lock.set_len(0).unwrap();
        owner.lock.write_all_at(content.as_bytes(), 0).unwrap();
        let error = Ownership::acquire(&control).unwrap_err().to_string();
        assert!(error.contains("not said who it is"), "{error}");
    }
    owner.lock.write_all_at(&[b'y'; 10_000], 0).unwrap();
    assert!(Ownership::acquire(&control).unwrap_err().to_string().len() < 700);
}

#[test]
fn refuses_what_is_no_lock_file() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let lock = lock_path(&control);
    let victim = directory.path().join("victim");
    fs::write(&victim, "precious").unwrap();

    std::os::unix::fs::symlink(&victim, &lock).unwrap();
    assert!(matches!(Ownership::acquire(&control), Err(Error::LockFile { .. })));
    fs::remove_file(&lock).unwrap();
    fs::hard_link(&victim, &lock).unwrap();
    assert!(matches!(Ownership::acquire(&control), Err(Error::LockFileUnusable { .. })));
    fs::remove_file(&lock).unwrap();
    nix::unistd::mkfifo(&lock, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(Ownership::acquire(&control), Err(Error::LockFileUnusable { .. })));
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    assert!(matches!(Ownership::acquire(&control), Err(Error::LockFile { .. })));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn missing_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = Ownership::acquire(&directory.path().join("missing/control.sock")).unwrap_err();
    assert!(matches!(error, Error::LockFile { .. }));
    assert!(error.to_string().contains("missing/control.sock.lock"), "{error}");
}

#[test]
fn binds_listens_and_cleans_up() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let owner = Ownership::acquire(&control).unwrap();
    for (kind, mode) in [(SocketKind::SeqPacket, 0o600), (SocketKind::Stream, 0o666)] {
        let listener = owner.bind(&control, kind, mode).unwrap();
        assert_eq!(listener.path(), control);
        assert!(listener.is_still_there());
        assert_eq!(fs::metadata(&control).unwrap().mode() & 0o7777, mode);
        assert!(getsockopt(&listener, sockopt::AcceptConn).unwrap());
        assert_eq!(accept(&listener).unwrap_err(), Errno::EAGAIN);
        assert!(connects(&control, kind));
        accept(&listener).unwrap();
        assert_eq!(names_in(&directory), ["control.sock", "control.sock.lock"]);
        listener.close().unwrap();
        assert_eq!(names_in(&directory), ["control.sock.lock"]);
    }
}

#[test]
fn replaces_leftovers_of_the_dead() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    leave_stale_socket(&control);
    leave_stale_socket(&directory.path().join(temporary_name(OsStr::new("control.sock"))));
    let owner = Ownership::acquire(&control).unwrap();
    let listener = owner.bind(&control, SocketKind::SeqPacket, 0o600).unwrap();
    assert!(connects(&control, SocketKind::SeqPacket));
    assert_eq!(names_in(&directory), ["control.sock", "control.sock.lock"]);
    drop(listener);
    assert_eq!(names_in(&directory), ["control.sock.lock"]);
}

#[test]
fn leaves_alone_what_is_no_leftover() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let owner = Ownership::acquire(&control).unwrap();
    let refused = |reason: &str| {
        let error = owner.bind(&control, SocketKind::SeqPacket, 0o600).unwrap_err();
        assert!(matches!(error, Error::SocketTaken { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!directory.path().join(temporary_name(OsStr::new("control.sock"))).exists());
    };
    fs::write(&control, "a file").unwrap();
    refused("not a socket");
    assert_eq!(fs::read_to_string(&control).unwrap(), "a file");
    fs::remove_file(&control).unwrap();
    std::os::unix::fs::symlink("nowhere", &control).unwrap();
    refused("symbolic link");
    fs::remove_file(&control).unwrap();
    fs::create_dir(&control).unwrap();
    refused("not a socket");
    fs::remove_dir(&control).unwrap();
    // A live socket of another program, of another kind and of the same.
    let stranger = UnixListener::bind(&control).unwrap();
    refused("live listener");
    let error = owner.bind(&control, SocketKind::Stream, 0o600).unwrap_err();
    assert!(matches!(error, Error::SocketTaken { .. }), "{error}");
    drop(UnixStream::connect(&control).unwrap());
    drop(stranger);
    owner.bind(&control, SocketKind::SeqPacket, 0o600).unwrap();
}

#[test]
fn never_removes_a_name_that_leads_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let owner = Ownership::acquire(&control).unwrap();
    let listener = owner.bind(&control, SocketKind::SeqPacket, 0o600).unwrap();
    fs::remove_file(&control).unwrap();
    assert!(!listener.is_still_there());
    let stranger = UnixListener::bind(&control).unwrap();
    assert!(!listener.is_still_there());
    listener.close().unwrap();
    assert!(control.exists());
    drop(stranger);
}

#[test]
fn binds_again_when_the_name_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let mut owner = Ownership::acquire(&control).unwrap();
    let lost = owner.bind(&control, SocketKind::SeqPacket, 0o600).unwrap();
    for name in names_in(&directory) {
        fs::remove_file(directory.path().join(name)).unwrap();
    }
    assert!(!owner.is_intact() && !lost.is_still_there());
    owner.restore().unwrap();
    let found = owner.bind(&control, SocketKind::SeqPacket, 0o600).unwrap();
    drop(lost);
    assert!(owner.is_intact() && found.is_still_there() && connects(&control, SocketKind::SeqPacket));
    assert!(matches!(Ownership::acquire(&control), Err(Error::Owned { .. })));
}

#[test]
fn a_live_socket_is_not_taken_over_when_its_lock_file_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let control = control_in(&directory);
    let mut first = Ownership::acquire(&control).unwrap();
    let listener = first.bind(&control, SocketKind::SeqPacket, 0o600).unwrap();
    fs::remove_file(lock_path(&control)).unwrap();
    let second = Ownership::acquire(&control).unwrap();
    assert!(matches!(second.bind(&control, SocketKind::SeqPacket, 0o600), Err(Error::SocketTaken { .. })));
    assert!(listener.is_still_there());
    assert!(matches!(first.restore(), Err(Error::Owned { .. })));
    drop(second);
    first.restore().unwrap();
}

#[test]
fn the_longest_control_path_works_with_a_longer_stats_path() {
    let directory = tempfile::tempdir().unwrap();
    let control = |len: usize| {
        let base = directory.path().as_os_str().len() + 1;
        directory.path().join("x".repeat(len - base))
    };
    for len in [106, 107] {
        let control = control(len);
        assert_eq!(control.as_os_str().len(), len);
        let owner = Ownership::acquire(&control).unwrap();
        let stats_path = crate::address::stats_path(&control);
        assert_eq!(stats_path.as_os_str().len(), len + 6);
        for _ in 0..2 {
            let messages = owner.bind(&control, SocketKind::SeqPacket, 0o600).unwrap();
            let stats = owner.bind(&stats_path, SocketKind::Stream, 0o600).unwrap();
            assert!(connects(&control, SocketKind::SeqPacket));
            assert!(connects(&stats_path, SocketKind::Stream));
            assert!(matches!(
                owner.bind(&stats_path, SocketKind::Stream, 0o600),
                Err(Error::SocketTaken { .. })
            ));
            assert!(messages.is_still_there() && stats.is_still_there());
        }
        assert!(!stats_path.exists() && !control.exists());
        leave_stale_socket(&directory.path().join("s"));
        fs::rename(directory.path().join("s"), &stats_path).unwrap();
        owner.bind(&stats_path, SocketKind::Stream, 0o600).unwrap();
    }
}
