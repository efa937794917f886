//! A launch that has not run yet reads the tensor as it was at the call, whatever happens to the tensor meanwhile.
//!
//! The stand-in runs a stream when somebody waits for it, and not before: between the call and the wait the bytes must
//! stay where they are, because the launch holds the lease, and their segments must stay registered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Gpu, GpuConfig, Handle, PutOptions, RefitMode};
use tierpack_tests::device::{Needs, in_child, in_child_that, put_with, words_for};
use tierpack_tests::{Daemon, eventually, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const ROWS: u64 = 1024;
const ROW_BYTES: u64 = 4096;
const LEN: usize = 4 << 20;

/// A pool of four such tensors.
fn start() -> Daemon {
    let size = ["--pool-size", "18MiB", "--lock", "off", "--refit", "manual", "--max-held-percent", "95"];
    Daemon::start(PROGRAM, &size)
}

fn open() -> Gpu {
    Gpu::open(&GpuConfig::new()).expect("a GPU")
}

/// Puts tensors until the pool is full, and removes them, so that all memory that is free has been written.
fn overwrite_what_is_free(client: &Client) {
    let bytes = vec![0x5A; LEN / 4];
    let name = |n: usize| format!("filler-{n}");
    let n = (0..)
        .find(|&n| client.put_with(&name(n), Dtype::U8, &[LEN as u64 / 4], &mut &bytes[..], &raw()).is_err());
    let n = n.expect("a pool gets full");
    assert!(n > 1, "only {n} fillers fit: nothing was overwritten");
    (0..n).for_each(|n| client.remove(&name(n)).expect("it was put"));
}

fn update(handle: &Handle, round: u64) {
    let rows: Vec<u64> = (0..40).map(|n| (n * 23 + round) % ROWS).collect();
    let values = vec![u8::try_from(round).expect("few rounds"); rows.len() * LEN / 1024];
    handle.update(&rows, &values).expect("room for an update");
}

type Change = fn(&Client, &Handle);

/// What happens to the tensor while its launch is pending.
const CHANGES: &[(&str, Change)] = &[
    ("removed", |client, _| client.remove("t").expect("it is there")),
    ("replaced", |client, _| drop(put_with(client, "t", CodecId::Raw, ROWS / 4, ROW_BYTES))),
    ("updated until it is folded", |_, handle| (0..12).for_each(|round| update(handle, round))),
    ("refitted", |client, handle| {
        update(handle, 1);
        drop(client.refit("t", RefitMode::Force, |_, _| ()).expect("a refit"));
    }),
];

#[test]
fn a_launch_that_is_pending_keeps_what_it_reads() {
    if !in_child("a_launch_that_is_pending_keeps_what_it_reads", &[&[]]) {
        return;
    }
    for &codec in &[CodecId::Raw, CodecId::Ibp] {
        for (what, change) in CHANGES {
            let daemon = start();
            let (client, gpu) = (daemon.client(), open());
            let (handle, bytes) = put_with(&client, "t", codec, ROWS, ROW_BYTES);
            let tensor = handle.get_to_device(&gpu).expect("it fits");
            change(&client, &handle);
            overwrite_what_is_free(&client);
            assert!(
                tensor.to_host().expect("it is whole") == bytes,
                "{codec}, {what}: other bytes than at the call"
            );
            assert!(tensor.is_ready());
            drop((tensor, handle, gpu));
            daemon.quiet();
        }
    }
}

#[test]
fn a_staged_read_holds_no_lease_once_its_bytes_are_copied() {
    if !in_child(
        "a_staged_read_holds_no_lease_once_its_bytes_are_copied",
        &[&[("TIERPACK_DEVICE_ACCESS", "staged")]],
    ) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    let (handle, bytes) = put_with(&client, "t", CodecId::Ibp, ROWS, ROW_BYTES);
    let tensor = handle.get_to_device(&gpu).expect("it fits");
    client.remove("t").expect("it is there");
    daemon.quiet();
    overwrite_what_is_free(&client);
    assert!(tensor.to_host().expect("it is whole") == bytes);
}

#[test]
fn a_lease_ends_although_nobody_waits() {
    if !in_child("a_lease_ends_although_nobody_waits", &[&[("FAKE_CUDA_MODE", "worker")]]) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    let (handle, bytes) = put_with(&client, "t", CodecId::Ibp, ROWS, ROW_BYTES);
    let tensor = handle.get_to_device(&gpu).expect("it fits");
    drop(handle.get_to_device(&gpu).expect("it fits"));
    daemon.quiet();
    assert!(tensor.to_host().expect("it is whole") == bytes);
}

#[test]
fn segments_are_unregistered_before_they_are_unmapped() {
    if !in_child_that(Needs::Registered, "segments_are_unregistered_before_they_are_unmapped", &[&[]]) {
        return;
    }
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "256MiB", "--lock", "off"]);
    let (client, gpu) = (daemon.client(), open());
    for round in 0..3 {
        // Three segments; when it is removed, the daemon returns their memory, and the client unmaps them.
        let (handle, bytes) = put_with(&client, "t", CodecId::Raw, 140, 1 << 20);
        let tensor = handle.get_to_device(&gpu).expect("it fits");
        let registered = gpu.access().registered_segments;
        assert!(registered >= 3, "{registered} segments in round {round}");
        assert!(tensor.to_host().expect("it is whole") == bytes);
        client.remove("t").expect("it is there");
        eventually("the end of all registrations but one", || {
            (gpu.access().registered_segments <= 1).then_some(())
        });
    }
    // An attachment that ends, with its segments still registered.
    let (handle, _) = put_with(&client, "t", CodecId::Raw, 10, 1 << 20);
    handle.get_to_device(&gpu).expect("it fits").wait().expect("it is whole");
    assert!(gpu.access().registered_segments > 0);
    drop((handle, client));
    eventually("the end of the session's registrations", || {
        (gpu.access().registered_segments == 0).then_some(())
    });
    // And a GPU that ends before its attachments.
    let client = daemon.client();
    client.open("t").expect("it is there").get_to_device(&gpu).expect("it fits").wait().expect("it is whole");
    assert!(gpu.access().registered_segments > 0);
    drop(gpu);
    client.remove("t").expect("it is there");
    daemon.quiet();
}

#[test]
fn readers_beside_updates_refits_and_replacements_see_one_version_at_a_time() {
    let settings: &[_] = &[&[][..], &[("FAKE_CUDA_MODE", "worker")], &[("TIERPACK_DEVICE_ACCESS", "staged")]];
    if !in_child("readers_beside_updates_refits_and_replacements_see_one_version_at_a_time", settings) {
        return;
    }
    let daemon = Daemon::start(
        PROGRAM,
        &["--pool-size", "64MiB", "--lock", "off", "--refit", "manual", "--max-held-percent", "90"],
    );
    let (client, gpu) = (daemon.client(), open());
    let put = |codec, version| {
        let (dtype, bytes) = words_for(codec, 512 << 10, version);
        let options = PutOptions::new().codec(CodecChoice::Only(codec)).overwrite(true);
        client.put_with("t", dtype, &[256, 256], &mut &bytes[..], &options).expect("room");
        bytes
    };
    // Every version that is ever there: each word of a read must be that of one of them, at its place.
    let versions: Vec<Vec<u8>> =
        [CodecId::Ibp, CodecId::Raw].iter().zip(1..).map(|(&codec, n)| put(codec, n)).collect();
    let handle = client.open("t").expect("it was put");
    let (stop, reads) = (AtomicBool::new(false), &std::sync::atomic::AtomicU64::new(0));
    let read = || {
        let mut kept = handle.get_to_device(&gpu).expect("it fits");
        while !stop.load(Ordering::Relaxed) {
            handle.get_to_device_into(&gpu, &mut kept).expect("it fits");
            let bytes = kept.to_host().expect("it is whole");
            let mut blocks = bytes.chunks(8).enumerate();
            let wrong =
                blocks.find(|(n, word)| versions.iter().all(|version| version[n * 8..][..8] != **word));
            assert_eq!(wrong, None, "a word of no version");
            reads.fetch_add(1, Ordering::Relaxed);
        }
    };
    let read = &read;
    thread::scope(|scope| {
        let readers = [0, 1].map(|_| scope.spawn(read));
        for round in 0..12_usize {
            let version = &versions[round % 2];
            put([CodecId::Ibp, CodecId::Raw][round % 2], u16::try_from(round % 2 + 1).expect("few versions"));
            let rows = [3_u64, 200, 255];
            let values: Vec<u8> = rows
                .iter()
                .flat_map(|row| &version[usize::try_from(row * 2048).expect("short")..][..2048])
                .copied()
                .collect();
            handle.update(&rows, &values).expect("room for an update");
            client.refit("t", RefitMode::Force, |_, _| ()).expect("a refit");
            let before = reads.load(Ordering::Relaxed);
            eventually("a read", || {
                let is_over = readers.iter().any(|reader| reader.is_finished());
                (is_over || reads.load(Ordering::Relaxed) > before).then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(gpu);
    daemon.quiet();
}
