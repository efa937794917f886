//! Limits read from fake trees: version 1, version 2, both, nested, with and without a namespace.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::size::KIB;

/// What version 1 says for "no limit".
const V1_NONE: &str = "9223372036854771712";

/// A machine with so much memory, and nothing else in its tree yet.
struct Machine {
    root: TempDir,
}

impl Machine {
    fn new(total_bytes: u64, available_bytes: u64) -> Machine {
        let machine = Machine { root: tempfile::tempdir().unwrap() };
        let text = format!(
            "MemTotal:       {} kB\nMemFree:  12 kB\nMemAvailable:   {} kB\n",
            total_bytes / KIB,
            available_bytes / KIB
        );
        machine.write("proc/meminfo", &text);
        machine
    }

    fn large() -> Machine {
        Machine::new(64 * GIB, 32 * GIB)
    }

    fn write(&self, path: &str, text: &str) -> &Machine {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn mounts(&self, lines: &[&str]) -> &Machine {
        let root_line = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n";
        self.write("proc/self/mountinfo", &format!("{root_line}{}\n", lines.join("\n")))
    }

    fn v2(&self, group: &str, limit: &str, used: u64) -> &Machine {
        self.write(&format!("sys/fs/cgroup{group}/memory.max"), &format!("{limit}\n"));
        self.write(&format!("sys/fs/cgroup{group}/memory.current"), &format!("{used}\n"))
    }

    fn v1(&self, group: &str, limit: &str, used: u64) -> &Machine {
        self.write(&format!("sys/fs/cgroup/memory{group}/memory.limit_in_bytes"), &format!("{limit}\n"));
        self.write(&format!("sys/fs/cgroup/memory{group}/memory.usage_in_bytes"), &format!("{used}\n"))
    }

    fn available(&self) -> Available {
        available(self.root.path()).unwrap().unwrap()
    }
}

const V2_MOUNT: &str = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
const V1_MOUNT: &str =
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:2 - cgroup cgroup rw,memory";
const V1_CPU_MOUNT: &str = "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct";

fn bytes(number: u64) -> String {
    number.to_string()
}

#[test]
fn without_groups_the_machine_decides() {
    let available = Machine::large().available();
    assert_eq!((available.bytes(), available.limit_bytes()), (32 * GIB, 64 * GIB));
    assert_eq!(available.used_bytes(), 32 * GIB);
    assert_eq!(available.origin(), Path::new("/proc/meminfo"));
}

#[test]
fn without_proc_nothing_is_known() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(available(root.path()).unwrap(), None);
    assert_eq!(check_pool_size(u64::MAX, root.path()).unwrap(), None);
    check_growth(u64::MAX, root.path()).unwrap();
    assert_eq!(default_pool_bytes(root.path()).unwrap(), GIB);
}

#[test]
fn version_2_counts_the_least_of_all_ancestors() {
    let machine = Machine::large();
    machine.mounts(&[V2_MOUNT]).write("proc/self/cgroup", "0::/user.slice/app/job\n");
    machine.v2("/user.slice/app/job", "max", 5 * MIB).v2("/user.slice/app", &bytes(2 * GIB), 10 * MIB);
    machine.v2("/user.slice", &bytes(GIB), 900 * MIB);
    let available = machine.available();
    assert_eq!(available.bytes(), GIB - 900 * MIB);
    assert_eq!(available.origin(), Path::new("/sys/fs/cgroup/user.slice/memory.max"));
    // The least limit is not always the one that leaves least.
    machine.v2("/user.slice/app", &bytes(2 * GIB), 2 * GIB - 7 * MIB);
    assert_eq!(machine.available().bytes(), 7 * MIB);
    // The job's own limit.
    machine.v2("/user.slice/app/job", &bytes(6 * MIB), 5 * MIB);
    assert_eq!(machine.available().bytes(), MIB);
}

#[test]
fn version_1_counts_ancestors_too() {
    let machine = Machine::large();
    machine.mounts(&[V1_CPU_MOUNT, V1_MOUNT]);
    machine.write("proc/self/cgroup", "4:cpu:/other\n3:memory,hugetlb:/a/b\n1:name=systemd:/x\n");
    machine.v1("/a/b", V1_NONE, 0).v1("/a", &bytes(64 * MIB), 4 * MIB).v1("", V1_NONE, GIB);
    let available = machine.available();
    assert_eq!(available.bytes(), 60 * MIB);
    assert_eq!(available.origin(), Path::new("/sys/fs/cgroup/memory/a/memory.limit_in_bytes"));
}

#[test]
fn version_1_tells_ancestors_above_the_mount() {
    let machine = Machine::large();
    machine.mounts(&["35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"]);
    machine.write("proc/self/cgroup", "3:memory:/docker/abc\n").v1("", V1_NONE, MIB);
    machine.write("sys/fs/cgroup/memory/memory.stat", "cache 0\nhierarchical_memory_limit 33554432\n");
    let available = machine.available();
    assert_eq!(available.bytes(), 31 * MIB);
    assert_eq!(available.origin(), Path::new("/sys/fs/cgroup/memory/memory.stat"));
}

#[test]
fn both_versions_at_once() {
    let machine = Machine::large();
    let v2_mount = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
    machine.mounts(&[V1_MOUNT, v2_mount]).write("proc/self/cgroup", "4:memory:/t\n0::/\n");
    machine.v1("/t", &bytes(GIB), 0).write("sys/fs/cgroup/unified/cgroup.procs", "1\n");
    assert_eq!(machine.available().limit_bytes(), GIB);
    machine.v2("/unified", &bytes(GIB / 2), 0);
    assert_eq!(machine.available().limit_bytes(), GIB / 2);
}

#[test]
fn container_without_a_namespace_uses_the_top_of_the_mount() {
    // The host's name of the group, which does not exist below the mount of the container.
    for group in ["/kubepods/pod7/abc", "/../../kubepods/pod7", "/"] {
        for top in ["/", "/kubepods/pod7/abc", "/../.."] {
            let machine = Machine::large();
            machine.mounts(&[&format!("30 22 0:26 {top} /sys/fs/cgroup ro - cgroup2 cgroup rw")]);
            machine.write("proc/self/cgroup", &format!("0::{group}\n")).v2("", &bytes(512 * MIB), MIB);
            assert_eq!(machine.available().bytes(), 511 * MIB, "{group} {top}");
        }
    }
}

#[test]
fn names_may_hold_spaces_and_colons() {
    let machine = Machine::large();
    machine.mounts(&["30 22 0:26 / /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw"]);
    machine.write("proc/self/cgroup", "0::/a:b c\n");
    machine.write("sys/fs/my groups/a:b c/memory.max", "1048576\n");
    assert_eq!(machine.available().limit_bytes(), MIB);
}

#[test]
fn page_cache_is_not_in_use() {
    let machine = Machine::large();
    machine.mounts(&[V2_MOUNT]).write("proc/self/cgroup", "0::/c\n").v2("/c", &bytes(GIB), GIB);
    machine.write("sys/fs/cgroup/c/memory.stat", "anon 5\ninactive_file 734003200\nactive_file 104857600\n");
    assert_eq!(machine.available().bytes(), 750 * MIB);
    machine.write("sys/fs/cgroup/c/memory.stat", &format!("inactive_file {0}\nactive_file {0}\n", u64::MAX));
    assert_eq!(machine.available().bytes(), GIB);
}

#[test]
fn use_above_the_limit_leaves_nothing() {
    let machine = Machine::large();
    machine.mounts(&[V2_MOUNT]).write("proc/self/cgroup", "0::/c\n").v2("/c", "0", GIB);
    assert_eq!(machine.available().bytes(), 0);
    assert_eq!(machine.available().default_pool_bytes(), MIB);
}

#[test]
fn a_limit_that_cannot_be_read_is_an_error() {
    let machine = Machine::large();
    machine.mounts(&[V2_MOUNT]).write("proc/self/cgroup", "0::/c\n");
    for text in ["", "many", "-1", "1e9", "99999999999999999999999"] {
        machine.v2("/c", text, 0);
        let error = available(machine.root.path()).unwrap_err().to_string();
        assert!(error.contains("memory.max") && error.contains("neither"), "{error}");
    }
    machine.v2("/c", "max", 0).write("proc/meminfo", "MemTotal: many kB\n");
    assert!(matches!(available(machine.root.path()), Err(Error::LimitFile { .. })));
}

#[test]
fn garbage_in_proc_is_no_panic() {
    let machine = Machine::large();
    for text in ["", "\n\n", ":::", "0:", "a b c d - \n", " - - - cgroup2 \\777\\04", "1 2 3 / - cgroup2 x y"]
    {
        machine.write("proc/self/cgroup", text).write("proc/self/mountinfo", text);
        assert_eq!(machine.available().bytes(), 32 * GIB);
    }
}

#[test]
fn refuses_a_pool_with_all_the_numbers() {
    let machine = Machine::large();
    machine.mounts(&[V1_MOUNT]).write("proc/self/cgroup", "4:memory:/t\n").v1(
        "/t",
        &bytes(64 * MIB),
        4 * MIB,
    );
    let root = machine.root.path();
    let error = check_pool_size(256 * MIB, root).unwrap_err();
    assert!(matches!(error, Error::PoolTooLarge { .. }));
    let text = error.to_string();
    for part in ["256 MiB", "60 MiB", "64 MiB", "4 MiB", "/t/memory.limit_in_bytes", "--pool-size"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The daemon needs something next to the pool.
    assert!(check_pool_size(60 * MIB, root).is_err());
    check_pool_size(48 * MIB, root).unwrap();
    assert_eq!(default_pool_bytes(root).unwrap(), 30 * MIB);
    assert!(check_pool_size(u64::MAX, root).is_err());
}

#[test]
fn refuses_growth_when_others_took_the_rest() {
    let machine = Machine::large();
    machine.mounts(&[V2_MOUNT]).write("proc/self/cgroup", "0::/c\n").v2("/c", &bytes(GIB), 0);
    let root = machine.root.path();
    check_growth(64 * MIB, root).unwrap();
    machine.v2("/c", &bytes(GIB), 970 * MIB);
    let text = check_growth(64 * MIB, root).unwrap_err().to_string();
    for part in ["(72.5 MiB)", "54 MiB", "1 GiB", "970 MiB", "/c/memory.max"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_limit_that_is_lowered_later_is_noticed_at_every_level() {
    let machine = Machine::large();
    machine.mounts(&[V2_MOUNT]).write("proc/self/cgroup", "0::/a/b\n");
    // Others in the same slice count: what this group uses is the least of it.
    machine.v2("/a/b", "max", MIB).v2("/a", &bytes(GIB), 100 * MIB);
    let root = machine.root.path();
    check_rest(64 * MIB, root).unwrap();
    machine.v2("/a", &bytes(128 * MIB), 100 * MIB);
    for error in [check_growth(64 * MIB, root).unwrap_err(), check_rest(64 * MIB, root).unwrap_err()] {
        let text = error.to_string();
        assert!(
            text.contains("28 MiB") && text.contains("/a/memory.max") && text.contains("128 MiB"),
            "{text}"
        );
    }
    // Nothing more is wanted: nothing is wrong.
    check_rest(0, root).unwrap();
}

#[test]
fn one_thread_at_a_time_takes_the_room_that_it_was_promised() {
    let machine = Machine::large();
    machine.mounts(&[V2_MOUNT]).write("proc/self/cgroup", "0::/c\n").v2("/c", &bytes(GIB), 0);
    let room = check_growth(600 * MIB, machine.root.path()).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| check_growth(600 * MIB, machine.root.path()).map(drop));
        // The first allocates now, and then returns the guard.
        machine.v2("/c", &bytes(GIB), 600 * MIB);
        drop(room);
        assert!(matches!(second.join().unwrap(), Err(Error::MemoryShort { .. })));
    });
}

#[test]
fn reads_this_machine() {
    let available = available(Path::new("/")).unwrap().unwrap();
    assert!(available.limit_bytes() > 0);
}
