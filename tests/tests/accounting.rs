//! What the stats say about memory is what the kernel says, within the budget and a fixed cost.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use tierpack_client::{Client, Dtype, Error, Tensors};
use tierpack_tests::{Daemon, Process, data, eventually, full, memory, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");
const MIB: u64 = 1 << 20;

/// What the daemon may take next to its pool: program, threads, buffers, tables.
const FIXED_BYTES: u64 = 32 * MIB;
/// What a client may add: program, thread, page tables.
const CLIENT_BYTES: u64 = 20 * MIB;
/// Odd sizes, so that segments have remainders.
const SIZES: [u64; 4] = [129 * MIB, 65 * MIB, 33 * MIB + 1, 1];

/// A line of `/proc/PID/status`, in bytes.
fn status(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is alive");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let line = line.expect("the kernel has that field");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

/// Pages of the pool's memory files that are allocated, whoever maps them.
fn allocated(pid: u32) -> u64 {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the daemon is alive");
    let is_segment = |path: &PathBuf| {
        let link = std::fs::read_link(path);
        link.is_ok_and(|link| link.to_string_lossy().contains("memfd:tierpack-segment"))
    };
    let segments = folder.flatten().map(|entry| entry.path()).filter(is_segment);
    segments.filter_map(|path| std::fs::metadata(path).ok()).map(|found| found.blocks() * 512).sum()
}

/// Puts until the pool is full; returns how many bytes it put.
fn fill(client: &Client, id: usize) -> u64 {
    let mut put = 0;
    for (n, size) in SIZES.iter().cycle().enumerate() {
        let mut sevens = std::io::repeat(7);
        let name = format!("{id}.{n}");
        match client.put_with(&name, Dtype::U8, &[*size], &mut sevens, &raw()) {
            Err(Error::PoolFull { .. }) => return put,
            done => put += done.expect("a put into a pool with room").raw_bytes,
        }
    }
    unreachable!("a cycle has no end")
}

/// C70.
#[test]
fn the_kernel_and_the_stats_agree_and_the_budget_holds() {
    let budget = if full() { 3072 * MIB } else { 512 * MIB };
    let args = ["--pool-size", &budget.to_string(), "--lock", "off"];
    let mut daemon = Daemon::start(PROGRAM, &args);
    let pid = daemon.process().pid();
    for n_clients in [1, 2, 4] {
        let clients: Vec<Client> = (0..n_clients).map(|_| daemon.client()).collect();
        let put: u64 = thread::scope(|scope| {
            let fills: Vec<_> = clients
                .iter()
                .enumerate()
                .map(|(id, client)| scope.spawn(move || fill(client, id)))
                .collect();
            fills.into_iter().map(|fill| fill.join().expect("no panic")).sum()
        });
        let stats = daemon.quiet();
        let pool = &stats.pool;
        println!("{n_clients} clients put {} MiB of {} MiB: {pool:?}", put / MIB, budget / MIB);
        assert_eq!(pool.raw_bytes, put);
        assert_eq!((pool.reserved_bytes, stats.transfers), (0, 0));
        assert_eq!(pool.used_bytes, pool.stored_bytes);
        assert!(pool.segment_bytes <= budget);
        // Every page of a segment is there from the start; what was written is mapped, and nothing else.
        assert_eq!(allocated(pid), pool.segment_bytes);
        let mapped = status(pid, "RssShmem");
        assert!(
            mapped >= pool.used_bytes && mapped <= pool.segment_bytes + budget / 50,
            "{mapped} in {pool:?}"
        );
        let own = status(pid, "RssAnon") + status(pid, "RssFile");
        assert!(own < FIXED_BYTES, "the daemon has {own} bytes of its own");
        daemon.run_ok(&["rm", "--all"]);
        assert_eq!(daemon.quiet().pool.used_bytes, 0);
        eventually("the return of segments", || {
            let segments = daemon.stats().pool.segment_bytes;
            (segments <= 80 * MIB && allocated(pid) == segments).then_some(())
        });
    }
}

/// C70: the pool counts once, however many clients read it.
#[test]
fn a_client_adds_little_to_what_all_take_together() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "256MiB", "--lock", "off"]);
    let mut source = data::Source::new(1, 1);
    let shape = [128 * MIB / 512, 64];
    let client = daemon.client();
    client.put_with("a", Dtype::U64, &shape, &mut source, &raw()).unwrap();
    drop(client);
    let mut pids = vec![daemon.process().pid()];
    let hold = || {
        let mut command = Command::new(CLIENT);
        command.arg("--socket").arg(daemon.socket());
        command.args(["hold", "--tensor", "a", "--tensor-id", "1", "--version", "1"]);
        Process::start(command.stdin(Stdio::piped()).stdout(Stdio::null()))
    };
    let holders: Vec<Process> = (0..8).map(|_| hold()).collect();
    pids.extend(holders.iter().map(Process::pid));
    let leases = || daemon.stats().sessions.iter().map(|session| session.leases).sum::<u64>();
    eventually("a lease of each", || (leases() == 8).then_some(()));
    let all: u64 = pids.iter().map(|&pid| memory::rollup(pid, "Pss")).sum();
    let segments = daemon.stats().pool.segment_bytes;
    println!("{} MiB of segments, {} MiB in all processes", segments / MIB, all / MIB);
    assert!(all <= segments + FIXED_BYTES + 8 * CLIENT_BYTES, "{all} of {segments}");
    for &pid in &pids[1..] {
        let own = memory::private(pid);
        assert!(own < CLIENT_BYTES, "a client has {own} bytes of its own");
    }
}

/// C70: very small tensors.
#[test]
fn a_tensor_of_one_byte_costs_little() {
    const N: u64 = 2000;
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    client.put("first", Dtype::U8, &[1], &[0]).unwrap();
    let pid = daemon.process().pid();
    let taken = || {
        let stats = daemon.stats();
        stats.pool.used_bytes + stats.namespaces[0].directory_bytes
    };
    let (before, anonymous) = (taken(), status(pid, "RssAnon"));
    for n in 0..N {
        client.put(&n.to_string(), Dtype::U8, &[1], &[1]).unwrap();
    }
    let (pool, own) = ((taken() - before) / N, status(pid, "RssAnon").saturating_sub(anonymous) / N);
    println!("a tensor of one byte takes {pool} bytes of the pool and {own} of the daemon's own memory");
    assert!(pool + own < 4096, "{pool} and {own}");
}

/// A namespace goes while one of its segments is being emptied: the budget gets every byte back, and once.
#[test]
fn a_namespace_that_is_removed_in_the_middle_of_a_compaction_gives_its_memory_back_once() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "128MiB", "--lock", "off"]);
    let client = daemon.client();
    let rounds = if full() { 40 } else { 8 };
    for round in 0..rounds {
        let names = client.namespace(&format!("short-lived {round}")).expect("a short name");
        let put = |n: u64, len: u64| {
            let mut sevens = std::io::repeat(7);
            let done = names.put_with(&n.to_string(), Dtype::U8, &[len / 512, 512], &mut sevens, &raw());
            done.expect("room");
        };
        (0..40).for_each(|n| put(n, MIB));
        // Every second one goes: each segment is half empty, and worth emptying.
        (0..40).step_by(2).for_each(|n| names.remove(&n.to_string()).expect("it is there"));
        // Looks for room come once a second: a round ends a little later in it than the last one did.
        thread::sleep(std::time::Duration::from_millis(900 + 50 * (round % 8)));
        names.remove_namespace(Tensors::Remove).expect("it is ours");
        eventually("an empty pool", || {
            let pool = daemon.stats().pool;
            (pool.used_bytes == 0 && pool.segment_bytes == 0 && pool.returning_bytes == 0).then_some(())
        });
    }
    assert!(daemon.process().is_running());
}
