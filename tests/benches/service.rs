//! `open` of an honest client next to idle, busy and hostile peers, and an echo between two threads under the same load.
//!
//! `cargo bench -p tierpack-tests --bench service [-- --tensors N --samples N]`
//!
//! One open and one echo alternate, so that both see the same machine: the ratio of the two is what others cost.
//! An echo is two messages over a socket pair; an open is the same two: the caller receives its reply itself.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark prints, and ends where something fails"
)]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tierpack_client::{Client, Dtype, stats_socket};
use tierpack_shm::message::{ClientMessage, Request, SegmentId, encode};
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::socket::{recv, send};
use tierpack_tests::peer::Peer;
use tierpack_tests::{DEADLINE, Daemon, option, percentile, raw};

/// What others do until the load ends.
type Work = fn(&Path, &Load);

/// Time between two samples: an honest client does not spin.
const PAUSE: Duration = Duration::from_millis(1);
/// Requests that a flooding session keeps under way.
const IN_FLIGHT: usize = 32;
/// Bytes of the tensor that is verified and of those that are put.
const LARGE_SHAPE: [u64; 2] = [64 << 10, 1 << 10];
const LARGE_BYTES: usize = 64 << 20;

fn main() {
    let (tensors, samples) = (option("--tensors", 100_000), option("--samples", 2_000));
    let daemon = Daemon::start(env!("CARGO_BIN_EXE_tierpack-under-test"), &["--pool-size", "2GiB"]);
    let socket = daemon.socket();
    let client = daemon.client();
    client.put("t", Dtype::U8, &[8], &[1; 8]).unwrap();
    let loads: [(&str, Work); 7] = [
        ("alone", |_, _| {}),
        ("1,000 idle sessions", idle),
        ("one session floods verify", verify),
        ("one session puts 64 MiB", put),
        ("one session floods Unmapped", unmapped),
        ("junk and hang-ups", junk),
        ("stats are read in a loop", scrape),
    ];
    println!(
        "{:<32} {:>10} {:>10} {:>10} {:>10} {:>8} {:>9}",
        "", "open p50", "open p99", "echo p50", "echo p99", "p99/p99", "load/s"
    );
    let floods = client.namespace("floods").unwrap();
    floods.put_with("large", Dtype::U8, &LARGE_SHAPE, &mut &vec![7; LARGE_BYTES][..], &raw()).unwrap();
    for (name, load) in loads {
        let is_scrape = name.starts_with("stats");
        if is_scrape {
            fill(&client.namespace("many").unwrap(), tensors);
        }
        let running = Load::start(&socket, load);
        let (mut opens, mut echoes) = (Vec::new(), Vec::new());
        let echo = Echo::start();
        let started = Instant::now();
        for _ in 0..samples {
            opens.push(time(|| drop(client.open("t").unwrap())));
            echoes.push(time(|| echo.once()));
            std::thread::sleep(PAUSE);
        }
        let rate = running.stop() as f64 / started.elapsed().as_secs_f64();
        let [open, echo] =
            [&mut opens, &mut echoes].map(|times| (percentile(times, 50), percentile(times, 99)));
        let name = if is_scrape { format!("{name}, {tensors} tensors") } else { name.to_owned() };
        println!(
            "{name:<32} {:>8.1}us {:>8.1}us {:>8.1}us {:>8.1}us {:>8.2} {rate:>9.0}",
            open.0,
            open.1,
            echo.0,
            echo.1,
            open.1 / echo.1
        );
    }
}

fn time(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64() * 1e6
}

/// Tiny tensors, put by several threads.
fn fill(client: &Client, tensors: usize) {
    const THREADS: usize = 4;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for n in (thread..tensors).step_by(THREADS) {
                    client.put(&format!("layer.{n:07}.weight"), Dtype::U8, &[8], &[1; 8]).unwrap();
                }
            });
        }
    });
}

/// What others do meanwhile, in a thread that counts how often.
struct Load {
    stop: AtomicBool,
    count: AtomicU64,
}

struct Running {
    load: Arc<Load>,
    thread: JoinHandle<()>,
}

impl Load {
    fn start(socket: &Path, work: Work) -> Running {
        let load = Arc::new(Self { stop: AtomicBool::new(false), count: AtomicU64::new(0) });
        let (shared, socket): (_, PathBuf) = (Arc::clone(&load), socket.to_owned());
        let thread = std::thread::spawn(move || work(&socket, &shared));
        std::thread::sleep(Duration::from_millis(500));
        Running { load, thread }
    }

    fn goes_on(&self) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }
}

impl Running {
    fn stop(self) -> u64 {
        self.load.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.load.count.load(Ordering::Relaxed)
    }
}

fn idle(socket: &Path, load: &Load) {
    let _sessions: Vec<Peer> = (0..1000).map(|_| Peer::greeted(socket)).collect();
    while load.goes_on() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn verify(socket: &Path, load: &Load) {
    let mut peer = Peer::greeted(socket);
    let request =
        || Request::Verify { namespace: "floods".to_owned(), name: "large".to_owned(), first_block: 0 };
    for _ in 0..IN_FLIGHT {
        peer.ask(request(), &[]).unwrap();
    }
    while load.goes_on() {
        peer.receive().unwrap();
        peer.ask(request(), &[]).unwrap();
    }
}

fn put(socket: &Path, load: &Load) {
    let client = Client::builder().socket(socket).namespace("floods").connect().unwrap();
    let bytes: Vec<u8> =
        (0..LARGE_BYTES as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
    while load.goes_on() {
        client.put_with("put", Dtype::U8, &LARGE_SHAPE, &mut &bytes[..], &raw().overwrite(true)).unwrap();
    }
}

fn unmapped(socket: &Path, load: &Load) {
    let segments =
        |from: u32| (from..from + 5_000).map(|index| SegmentId { kind: SegmentKind::Data, index, serial: 1 });
    let message = ClientMessage::Unmapped { namespace: 0, segments: segments(0).collect() };
    let bytes = encode(&message).unwrap();
    while load.goes_on() {
        let mut peer = Peer::greeted(socket);
        peer.attach("default");
        // The daemon ends a session that names what it was not asked to unmap, and hardly reads it then.
        let _ = peer.send_bytes(&bytes, &[]).is_ok();
    }
}

fn junk(socket: &Path, load: &Load) {
    while load.goes_on() {
        let peer = Peer::connect(socket);
        // It may be turned away before it has said anything.
        let _ = peer.send_bytes(&[0xFF; 100], &[]).is_ok();
    }
}

fn scrape(socket: &Path, load: &Load) {
    let socket = stats_socket::path_beside(socket);
    while load.goes_on() {
        stats_socket::read(&socket, DEADLINE).unwrap();
    }
}

/// A thread that sends back what it receives.
struct Echo(OwnedFd);

impl Echo {
    fn start() -> Self {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        std::thread::spawn(move || {
            let mut buf = [0; 64];
            while let Ok(received) = recv(&theirs, &mut buf) {
                send(&theirs, &buf[..received.len], &[]).unwrap();
            }
        });
        Self(ours)
    }

    fn once(&self) {
        send(&self.0, &[1; 48], &[]).unwrap();
        recv(&self.0, &mut [0; 64]).unwrap();
    }
}
