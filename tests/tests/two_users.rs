//! Several users of one daemon: each gets what owner, group and mode of a namespace say, and no memory besides.
//!
//! Other users are played by the real program under another uid, which only root can start.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::unistd::geteuid;
use serde_json::Value;
use tierpack_tests::files::{self, FileTensor, Metadata, Tensors};
use tierpack_tests::program::{assert_says, error_line};
use tierpack_tests::reports::DemandReport;
use tierpack_tests::{Daemon, TestClient, data, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

/// A user who owns nothing yet, with no group but the own one.
const USER: User = User(1234, 1234, &[]);

/// Uid, gid and supplementary groups.
#[derive(Clone, Copy)]
struct User(u32, u32, &'static [u32]);

/// A daemon, and copies of the programs that every user can run.
struct Machine {
    daemon: Daemon,
    /// Where everybody can write.
    open: PathBuf,
}

impl Machine {
    /// `None`, said aloud, where this process may not become other users.
    fn start(args: &[&str]) -> Option<Self> {
        if !geteuid().is_root() {
            tools::skip("becoming other users needs root");
            return None;
        }
        let probe = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", "true"];
        if !tools::can("becoming other users", &probe) {
            return None;
        }
        let daemon = Daemon::start(PROGRAM, &[&["--pool-size", "64MiB", "--lock", "off"], args].concat());
        let open = daemon.dir().join("open");
        std::fs::create_dir(&open).expect("a directory of the test");
        set_mode(daemon.dir(), 0o755);
        set_mode(&open, 0o777);
        // Copied by another process: a file that this one has open for writing cannot be run.
        let copied = Command::new("cp").args([PROGRAM, CLIENT]).arg(daemon.dir()).status();
        assert!(copied.expect("run cp").success(), "copy the programs");
        Some(Self { daemon, open })
    }

    /// A program as another user, with `--socket` set.
    fn command(&self, program: &str, user: User) -> Command {
        let User(uid, gid, groups) = user;
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string()]);
        if groups.is_empty() {
            command.arg("--clear-groups");
        } else {
            command.args(["--groups", &groups.join(",")]);
        }
        let name = Path::new(program).file_name().expect("a file");
        command.arg(self.daemon.dir().join(name)).arg("--socket").arg(self.daemon.socket());
        command.env_remove("TIERPACK_SOCKET").env("TIERPACK_CASES", "");
        command
    }

    /// Runs a command of the program as another user.
    fn run(&self, user: User, args: &[&str]) -> Output {
        self.command(PROGRAM, user).args(args).stdin(Stdio::null()).output().expect("run the program")
    }

    /// As [`Machine::run`], for a command that must succeed.
    fn run_ok(&self, user: User, args: &[&str]) -> String {
        let output = self.run(user, args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }

    /// Runs a command that must be refused with these words.
    fn refused(&self, user: User, args: &[&str], says: &[&str]) {
        assert_says(&error_line(&self.run(user, args)), says);
    }

    fn json(&self, user: User, args: &[&str]) -> Vec<Value> {
        serde_json::from_str(&self.run_ok(user, args)).expect("a JSON array")
    }

    /// The one tensor of the test, in a file that everybody can read.
    fn tensor_file(&self, rows: u64) -> (String, FileTensor) {
        let len = usize::try_from(rows * 512).expect("a small tensor");
        let mut bytes = vec![0; len];
        data::fill(&mut bytes, 1, 1, 0);
        let tensor = FileTensor::new("I64", &[rows, 64], bytes);
        let tensors = Tensors::from([("t".to_owned(), tensor.clone())]);
        let path = self.daemon.file("t.safetensors", &files::safetensors(&tensors, &Metadata::new()));
        set_mode(Path::new(&path), 0o644);
        (path, tensor)
    }

    /// What a user gets of tensor `t`.
    fn get(&self, user: User, namespace: &str) -> FileTensor {
        let out = self.open.join("out.safetensors");
        let path = out.to_str().expect("a path of the test");
        self.run_ok(user, &["get", "t", "--namespace", namespace, "-o", path]);
        let found = files::read(&out).0.remove("t").expect("the tensor that was asked for");
        std::fs::remove_file(&out).expect("remove a file of the test");
        found
    }

    /// Asks for everything of a namespace by hand, and checks what the stats say while the connection lasts.
    fn demand(&self, user: User, namespace: &str, attached: &[&str]) -> DemandReport {
        let mut command = self.command(CLIENT, user);
        let mut peer = TestClient::run(command.args(["demand", "--namespace", namespace, "--tensor", "t"]));
        let line = peer.line().expect("a report");
        let sessions = self.daemon.stats().sessions;
        let session = sessions.iter().find(|session| session.uid == user.0).expect("the session of the peer");
        assert_eq!(session.namespaces, attached);
        peer.finish();
        serde_json::from_str(&line).expect("a report")
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("change a mode");
}

/// Every way to change what is in a namespace, or the namespace.
fn refuse_changes(machine: &Machine, file: &str, says: &[&str]) {
    machine.refused(USER, &["put", file, "--namespace", "private", "--name", "other"], says);
    machine.refused(USER, &["put", file, "--namespace", "private", "--overwrite"], says);
    machine.refused(USER, &["rm", "t", "--namespace", "private"], says);
    for change in [&["chmod", "private", "--mode", "0666"][..], &["rm", "private", "--force"]] {
        machine.refused(USER, &[&["ns"], change].concat(), &["\"private\"", "user 1234", "may not change"]);
    }
}

#[test]
fn a_private_namespace_gives_others_nothing() {
    let Some(machine) = Machine::start(&["--admit", "everyone"]) else { return };
    let (file, tensor) = machine.tensor_file(100);
    machine.daemon.run_ok(&["put", &file, "--namespace", "private"]);
    let used = machine.daemon.stats().pool.used_bytes;
    let says = ["\"private\"", "user 1234", "ns chmod"];
    let out = machine.open.join("never.safetensors");
    let out = out.to_str().expect("a path of the test");
    machine.refused(USER, &["get", "t", "--namespace", "private", "-o", out], &says);
    assert!(!Path::new(out).exists());
    machine.refused(USER, &["ls", "--namespace", "private"], &says);
    machine.refused(USER, &["verify", "--namespace", "private"], &says);
    machine.refused(USER, &["verify", "t", "--namespace", "private"], &says);
    refuse_changes(&machine, &file, &says);
    machine.refused(USER, &["ns", "create", "private"], &["namespace \"private\" exists"]);
    assert_eq!(machine.json(USER, &["ls", "--json"]), Vec::<Value>::new());
    assert_eq!(machine.json(USER, &["ns", "ls", "--json"]), Vec::<Value>::new());

    let report = machine.demand(USER, "private", &[]);
    assert_eq!((report.granted.len(), report.descriptors, report.segments), (0, 0, 0), "{report:?}");
    for refusal in &report.refusals {
        assert_says(refusal, &says);
        assert!(!refusal.contains("owner 0") && !refusal.contains("mode"), "it says whose it is: {refusal}");
    }
    assert_eq!((machine.get(User(0, 0, &[]), "private"), machine.daemon.ls(&[]).len()), (tensor, 1));
    assert_eq!(machine.daemon.quiet().pool.used_bytes, used);
}

#[test]
fn a_mode_opens_a_namespace_for_reading_and_no_more() {
    let Some(machine) = Machine::start(&["--admit", "everyone"]) else { return };
    let (file, tensor) = machine.tensor_file(1000);
    machine.daemon.run_ok(&["put", &file, "--namespace", "private"]);
    machine.daemon.run_ok(&["ns", "chmod", "private", "--mode", "0644"]);
    assert_eq!(machine.get(USER, "private"), tensor);
    machine.run_ok(USER, &["verify", "--namespace", "private"]);
    assert_eq!(machine.json(USER, &["ls", "--json"]), machine.daemon.ls(&[]));
    let listed = machine.json(USER, &["ns", "ls", "--json"]);
    assert_eq!((listed.len(), &listed[0]["mode"], &listed[0]["uid"]), (1, &"0644".into(), &0.into()));
    refuse_changes(&machine, &file, &["may not write", "\"private\"", "owner 0", "mode 0644"]);
    // That nothing came to the other user above is a finding: here it does.
    let report = machine.demand(USER, "private", &["private"]);
    assert_eq!((report.granted.len(), report.descriptors), (5, 2), "{report:?}");
    assert!(report.segments >= 2, "{report:?}");

    machine.daemon.run_ok(&["ns", "chmod", "private", "--mode", "0600"]);
    machine.refused(USER, &["verify", "t", "--namespace", "private"], &["may not read"]);
    assert_eq!(machine.demand(USER, "private", &[]).segments, 0);
    machine.daemon.run_ok(&["ns", "chmod", "private", "--mode", "0666"]);
    machine.run_ok(USER, &["put", &file, "--namespace", "private", "--name", "other"]);
    machine.run_ok(USER, &["rm", "t", "other", "--namespace", "private"]);
    let chmod = ["ns", "chmod", "private", "--mode", "0600"];
    machine.refused(USER, &chmod, &["\"private\"", "user 1234", "of user 0"]);
}

#[test]
fn a_group_gets_what_the_group_may() {
    let Some(machine) = Machine::start(&["--admit", "everyone"]) else { return };
    let (file, tensor) = machine.tensor_file(100);
    let ns = ["--namespace", "shared"];
    machine.daemon.run_ok(&[&["put", &file], &ns[..]].concat());
    machine.daemon.run_ok(&["ns", "chmod", "shared", "--group", "1235", "--mode", "0640"]);
    let members = [User(1234, 1235, &[]), User(1234, 1234, &[1235]), User(4321, 4321, &[7, 1235, 9])];
    for member in members {
        assert_eq!(machine.get(member, "shared"), tensor);
        let put = [&["put", &file, "--overwrite"], &ns[..]].concat();
        machine.refused(member, &put, &["may not write", "group 1235", "mode 0640"]);
    }
    for stranger in [USER, User(1235, 1234, &[7, 9])] {
        let verify = [&["verify"], &ns[..]].concat();
        machine.refused(stranger, &verify, &["may not read", "\"shared\""]);
        assert_eq!(machine.json(stranger, &["ls", "--json"]), Vec::<Value>::new());
    }
    machine.daemon.run_ok(&["ns", "chmod", "shared", "--mode", "0660"]);
    machine.run_ok(members[1], &[&["put", &file, "--overwrite"], &ns[..]].concat());
}

#[test]
fn users_have_namespaces_of_their_own_and_root_may_everything() {
    let Some(machine) = Machine::start(&["--admit", "everyone"]) else { return };
    let (file, tensor) = machine.tensor_file(100);
    let stranger = User(4321, 4321, &[]);
    // Made by name, or by the first put.
    machine.run_ok(USER, &["ns", "create", "made", "--mode", "0644"]);
    for (namespace, mode) in [("made", "0644"), ("put", "0600")] {
        machine.run_ok(USER, &["put", &file, "--namespace", namespace]);
        assert_eq!(machine.get(USER, namespace), tensor);
        let all = machine.json(USER, &["ns", "ls", "--json"]);
        let entry = all.iter().find(|entry| entry["namespace"] == namespace).expect("it was made");
        assert_eq!((&entry["uid"], &entry["mode"]), (&1234.into(), &mode.into()));
        machine.refused(stranger, &["rm", "t", "--namespace", namespace], &[namespace, "user 4321 may not"]);
    }
    assert_eq!(machine.get(stranger, "made"), tensor);
    assert_eq!(machine.json(stranger, &["ls", "--json"]).len(), 1);
    for gift in [["--owner", "0"], ["--group", "0"]] {
        let create = [&["ns", "create", "gift"], &gift[..]].concat();
        machine.refused(USER, &create, &["user 1234", "\"gift\""]);
        machine.refused(USER, &[&["ns", "chmod", "put"], &gift[..]].concat(), &["user 1234", "\"put\""]);
    }
    machine.refused(USER, &["ns", "rm", "put"], &["\"put\"", "holds 1 tensor", "--force"]);
    machine.run_ok(USER, &["ns", "rm", "made", "--force"]);

    machine.daemon.run_ok(&["put", &file, "--namespace", "put", "--overwrite"]);
    machine.daemon.run_ok(&["verify", "--namespace", "put"]);
    machine.daemon.run_ok(&["ns", "chmod", "put", "--owner", "4321", "--group", "4321"]);
    machine.refused(USER, &["verify", "--namespace", "put"], &["may not read"]);
    assert_eq!(machine.get(stranger, "put"), tensor);
    machine.daemon.run_ok(&["rm", "t", "--namespace", "put"]);
    machine.daemon.run_ok(&["ns", "rm", "put"]);
    let gone = error_line(&machine.daemon.run(&["ns", "rm", "put"]));
    assert_says(&gone, &["no namespace \"put\""]);
    assert_eq!(machine.daemon.quiet().pool.used_bytes, 0);
}

#[test]
fn a_quota_refuses_with_its_numbers() {
    let Some(machine) = Machine::start(&["--admit", "everyone"]) else { return };
    machine.daemon.run_ok(&["ns", "create", "small", "--owner", "1234", "--quota", "1MiB"]);
    let (file, _) = machine.tensor_file(1500);
    let put = |name| ["put", &file, "--namespace", "small", "--codec", "raw", "--name", name, "--overwrite"];
    machine.run_ok(USER, &put("a"));
    let used = machine.daemon.quiet().pool.used_bytes;
    let stored = machine.json(USER, &["ls", "--json"])[0]["stored_bytes"].as_u64().expect("a number");
    let says = ["quota", "\"small\"", "1 MiB", "\"b\"", &stored.to_string()];
    machine.refused(USER, &put("b"), &says);
    assert_eq!(machine.daemon.quiet().pool.used_bytes, used, "a refused put leaves nothing");
    // A tensor that is replaced does not count twice.
    machine.run_ok(USER, &put("a"));
    machine.daemon.run_ok(&["ns", "chmod", "small", "--quota", "2MiB"]);
    machine.run_ok(USER, &put("b"));
    machine.refused(USER, &put("c"), &["quota", "2 MiB"]);
    machine.daemon.run_ok(&["ns", "chmod", "small", "--quota", "none"]);
    machine.run_ok(USER, &put("c"));
}

#[test]
fn the_namespace_default_is_the_daemons_whoever_asks_first() {
    let Some(machine) = Machine::start(&["--admit", "everyone"]) else { return };
    let (file, _) = machine.tensor_file(10);
    machine.refused(USER, &["put", &file], &["\"default\"", "user 1234", "may not"]);
    machine.refused(USER, &["ns", "create", "default"], &["\"default\"", "user 1234"]);
    assert_eq!(machine.json(USER, &["ns", "ls", "--json"]), Vec::<Value>::new());
    machine.daemon.run_ok(&["put", &file]);
    let uid = &machine.json(User(0, 0, &[]), &["ns", "ls", "--json"])[0]["uid"];
    assert_eq!(uid, &Value::from(0));
}

#[test]
fn a_daemon_that_admits_its_owner_only_says_so() {
    let Some(machine) = Machine::start(&[]) else { return };
    let socket = machine.daemon.socket();
    machine.refused(USER, &["ls"], &["ermission denied", socket.to_str().expect("a path of the test")]);
    // Who can reach the socket all the same is told by the daemon.
    chown(&socket, Some(1234), None).expect("give the socket away");
    machine.refused(USER, &["ls"], &["user 1234 may not use the daemon of user 0", "admits only"]);
    machine.daemon.run_ok(&["ls"]);
}

#[test]
fn a_lock_file_of_another_user_is_named() {
    let Some(machine) = Machine::start(&[]) else { return };
    let line = error_line(&machine.run(USER, &["serve", "--pool-size", "16MiB"]));
    assert_says(&line, &["lock", "belongs to user 0", "this process is of user 1234", "--socket"]);
}
