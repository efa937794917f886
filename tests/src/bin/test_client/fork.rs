//! Forks: what a child may do with what its parent has opened, and what the parent keeps.
//!
//! A child must get `Error::Forked` at once from every call, must not disturb its parent however it ends, and can
//! connect again. Each child has an alarm, so that one that waits for a lock of a thread that it does not have is seen.

#![expect(unsafe_code, reason = "calls fork and _exit, which is what is tested")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, alarm, fork};
use tierpack_client::{Client, Dtype, Error, Handle, Tensor, View};
use tierpack_daemon::{Config, Embedded, LockMode};
use tierpack_tests::data::{Random, mismatches};
use tierpack_tests::reports::ReadReport;

use crate::{connect, say, told, until_closed};

/// A child that takes longer waits for something that will not come.
const CHILD_S: u32 = 20;
const N_WORKERS: usize = 8;
/// Rows of the large gather: enough for any library to use several threads.
const MANY_ROWS: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Scenario {
    /// Eight children that end in every way, while the parent reads on.
    Workers,
    /// Children of a parent whose other threads are busy.
    Busy,
    /// A child that outlives its parent.
    Orphan,
    /// Children and the memory of their parent.
    Memory,
    /// A child that outlives its parent, in which the daemon is.
    Daemon,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long, value_enum)]
    scenario: Scenario,
    /// A tensor with rows of 512 bytes.
    #[arg(long)]
    tensor: String,
    /// The id in its words.
    #[arg(long)]
    tensor_id: u16,
    /// The version in its words.
    #[arg(long)]
    version: u16,
    /// Gathers per process, or forks.
    #[arg(long, default_value_t = 100)]
    count: u64,
}

/// What a parent has open when it forks.
struct Opened {
    client: Client,
    handle: Handle,
    tensor: Tensor,
    view: View,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    match args.scenario {
        Scenario::Workers => workers(socket, args),
        Scenario::Busy => busy(socket, args),
        Scenario::Orphan => orphan(socket, args),
        Scenario::Memory => memory(socket, args),
        Scenario::Daemon => daemon(socket, args),
    }
}

impl Opened {
    fn new(socket: &Path, args: &Args) -> Result<Self> {
        let client = connect(socket)?;
        let handle = client.open(&args.tensor)?;
        Ok(Self { tensor: handle.gather(&[0])?, view: handle.view()?, client, handle })
    }

    /// Every call of a child with what its parent opened: each must say so.
    fn check_forked(&self) -> Result<()> {
        let Self { client, handle, view, .. } = self;
        let mut row = [0; 512];
        let name = handle.name();
        let results = [
            ("open", client.open(name).map(drop)),
            ("get by name", client.get(name).map(drop)),
            ("put", client.put("forked", Dtype::U8, &[1], &[1]).map(drop)),
            ("remove", client.remove(name)),
            ("list", client.list().map(drop)),
            ("list_all", client.list_all().map(drop)),
            ("file_metadata", client.file_metadata(name).map(drop)),
            ("stats", client.stats().map(drop)),
            ("get", handle.get().map(drop)),
            ("get_into", handle.get_into(&mut vec![0; usize::try_from(handle.raw_bytes())?])),
            ("gather", handle.gather(&[0]).map(drop)),
            ("gather of many", handle.gather(&vec![0; usize::try_from(MANY_ROWS)?]).map(drop)),
            ("gather_into", handle.gather_into(&[0], &mut row)),
            ("view", handle.view().map(drop)),
            ("block of a view", view.block(0).map(drop)),
            ("get of a clone", handle.clone().get().map(drop)),
        ];
        for (call, result) in results {
            ensure!(matches!(result, Err(Error::Forked)), "{call} in a fork: {result:?}");
        }
        Ok(())
    }
}

/// Forks; the child runs `child` and ends by its result, with status 3 when that is an error.
fn forked(child: impl FnOnce() -> Result<()>) -> Result<Option<Pid>> {
    // SAFETY: the child allocates and makes threads, which glibc allows after a fork although POSIX does not promise it.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => {
            alarm::set(CHILD_S);
            if let Err(error) = child() {
                // The test shows what its client writes there.
                let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{error:#}\n").as_bytes())
                    .is_ok();
                exit_now(3);
            }
            Ok(None)
        }
    }
}

fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process at once, which every thread and destructor has to stand.
    unsafe { nix::libc::_exit(status) }
}

/// Gathers random rows one by one, then many at once.
fn read(handle: &Handle, args: &Args, count: u64, many: u64) -> Result<ReadReport> {
    let mut random = Random::new(u64::from(std::process::id()));
    let mut report = ReadReport::default();
    for n in 0..count + u64::from(many > 0) {
        let rows = if n < count { 1 } else { many };
        let rows: Vec<u64> = (0..rows).map(|_| random.below(handle.n_rows())).collect();
        let got = handle.gather(&rows)?;
        report.reads += 1;
        for (row, bytes) in rows.iter().zip(got.as_bytes().chunks_exact(512)) {
            report.mismatches += mismatches(bytes, args.tensor_id, args.version, row * 64);
        }
        report.rows += rows.len() as u64;
    }
    Ok(report)
}

/// A child connects for itself and reads.
fn read_anew(socket: &Path, args: &Args, count: u64, many: u64) -> Result<()> {
    let handle = connect(socket)?.open(&args.tensor)?;
    let report = read(&handle, args, count, many)?;
    ensure!(report.mismatches == 0, "{} wrong words in a fork", report.mismatches);
    Ok(())
}

fn workers(socket: &Path, args: &Args) -> Result<()> {
    let opened = Opened::new(socket, args)?;
    let mut children = Vec::new();
    for n in 0..N_WORKERS {
        let child = forked(|| {
            opened.check_forked()?;
            read_anew(socket, args, args.count, 0)?;
            opened.check_forked()
        })?;
        match child {
            Some(child) => children.push((n, child)),
            // The four ways in which a child ends, with all that it inherited.
            None => match n % 4 {
                0 => exit_now(0),
                1 => exit_by_library(),
                2 => panic_quietly(),
                _ => return Ok(()),
            },
        }
    }
    let mut report = read(&opened.handle, args, args.count, MANY_ROWS)?;
    for (n, child) in children {
        let status = waitpid(child, None)?;
        let expected = WaitStatus::Exited(child, if n % 4 == 2 { 101 } else { 0 });
        ensure!(status == expected, "child {n} ended with {status:?}");
    }
    let after = read(&opened.handle, args, args.count, MANY_ROWS)?;
    report.reads += after.reads;
    report.rows += after.rows;
    report.mismatches +=
        after.mismatches + mismatches(opened.view.block(0)?, args.tensor_id, args.version, 0);
    report.mismatches += mismatches(opened.tensor.as_bytes(), args.tensor_id, args.version, 0);
    opened.client.list()?;
    say(&serde_json::to_string(&report)?)?;
    // The test looks at the stats while the view is held.
    told()?;
    drop(opened);
    Ok(())
}

#[expect(clippy::exit, reason = "one of the ways in which a child ends")]
fn exit_by_library() -> ! {
    std::process::exit(0)
}

#[expect(clippy::panic, reason = "one of the ways in which a child ends")]
fn panic_quietly() -> ! {
    std::panic::set_hook(Box::new(|_| {}));
    panic!("a child ends")
}

fn busy(socket: &Path, args: &Args) -> Result<()> {
    let opened = Arc::new(Opened::new(socket, args)?);
    let stop = Arc::new(AtomicBool::new(false));
    let threads = busy_threads(&opened, args, &stop);
    let mut report = ReadReport::default();
    for n in 0..args.count {
        let child = forked(|| {
            opened.check_forked()?;
            read_anew(socket, args, 1, MANY_ROWS)?;
            exit_now(0)
        })?;
        let child = child.context("a child that did not end")?;
        let status = waitpid(child, None)?;
        ensure!(status == WaitStatus::Exited(child, 0), "child {n} ended with {status:?}");
        report.reads += 1;
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let Ok(wrong) = thread.join() else { bail!("a thread of the parent panicked") };
        report.mismatches += wrong?;
    }
    say(&serde_json::to_string(&report)?)?;
    until_closed()
}

/// Threads that are inside the allocator, the buffers, the session's locks and the socket when the fork comes.
fn busy_threads(opened: &Arc<Opened>, args: &Args, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<Result<u64>>> {
    let looped = |work: fn(&Opened, &str) -> Result<()>| {
        let (opened, stop, name) = (Arc::clone(opened), Arc::clone(stop), args.tensor.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                work(&opened, &name)?;
            }
            Ok(0)
        })
    };
    let gather = {
        let (opened, stop) = (Arc::clone(opened), Arc::clone(stop));
        let (tensor_id, version) = (args.tensor_id, args.version);
        thread::spawn(move || {
            let rows: Vec<u64> = (0..MANY_ROWS).map(|n| n % opened.handle.n_rows()).collect();
            let mut wrong = 0;
            while !stop.load(Ordering::Relaxed) {
                let got = opened.handle.gather(&rows)?;
                wrong += mismatches(&got.as_bytes()[..512], tensor_id, version, 0);
            }
            Ok(wrong)
        })
    };
    let requests = looped(|opened, name| {
        opened.client.list()?;
        opened.client.open(name)?;
        Ok(())
    });
    let puts = looped(|opened, _| {
        opened.client.put("busy", Dtype::U8, &[1000], &[7; 1000])?;
        Ok(opened.client.remove("busy")?)
    });
    vec![gather, requests, puts]
}

/// Forks a child that lives until its input ends; the test kills this process before.
fn outlived_by_child(begin: impl FnOnce() -> Result<()>) -> Result<()> {
    let child = forked(|| {
        begin()?;
        alarm::set(crate::WATCHDOG_S);
        say(&format!("child {}", std::process::id()))?;
        until_closed()?;
        exit_now(0)
    })?;
    waitpid(child.context("a child that did not end")?, None).context("wait for the child")?;
    Ok(())
}

fn orphan(socket: &Path, args: &Args) -> Result<()> {
    let opened = Opened::new(socket, args)?;
    say(&format!("holding {}", std::process::id()))?;
    told()?;
    outlived_by_child(|| opened.check_forked())
}

fn memory(socket: &Path, args: &Args) -> Result<()> {
    let opened = Opened::new(socket, args)?;
    let block = opened.view.block(0)?;
    let child = forked(|| {
        // A slice from before the fork.
        std::hint::black_box(block[0]);
        exit_now(0)
    })?;
    let child = child.context("a child that did not end")?;
    let status = waitpid(child, None)?;
    ensure!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _)), "the child ended with {status:?}");
    let sleeping = forked(|| {
        alarm::set(crate::WATCHDOG_S);
        until_closed()?;
        exit_now(0)
    })?;
    drop(opened);
    let sleeping = sleeping.context("a child that did not end")?;
    say(&format!("child {sleeping}"))?;
    waitpid(sleeping, None).context("wait for the child")?;
    Ok(())
}

fn daemon(socket: &Path, args: &Args) -> Result<()> {
    let config = Config::embedded(socket.to_owned(), 16 << 20)?.with_lock(LockMode::Off);
    let mut daemon = Some(Embedded::start(&config)?);
    let client = connect(socket)?;
    client.put(&args.tensor, Dtype::U8, &[3], &[1, 2, 3])?;
    say("serving")?;
    told()?;
    outlived_by_child(|| {
        // What a child inherits does nothing when it is dropped.
        drop(daemon.take());
        Ok(())
    })
}
