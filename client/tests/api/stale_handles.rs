//! Handles and views whose tensor was replaced or removed, or whose daemon is gone.

use std::time::Duration;

use tierpack_client::{Client, Dtype, Error, PutOptions};
use tierpack_daemon::Embedded;

use crate::fixture::{Fixture, pattern};

const MIB: u64 = 1 << 20;

fn overwrite(client: &Client, name: &str, shape: &[u64], bytes: &[u8]) {
    let options = PutOptions::new().overwrite(true);
    client.put_with(name, Dtype::U8, shape, &mut &*bytes, &options).unwrap();
}

#[test]
fn a_replacement_of_the_same_shape_is_read_through_the_old_handle() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    overwrite(&client, "t", &[10, 4], &[1; 40]);
    let handle = client.open("t").unwrap();
    let view = handle.view().unwrap();
    for version in 2..50 {
        overwrite(&client, "t", &[10, 4], &[version; 40]);
        assert_eq!(handle.get().unwrap().as_bytes(), [version; 40]);
        assert_eq!(handle.gather(&[9]).unwrap().as_bytes(), [version; 4]);
        assert_eq!(view.block(0).unwrap(), [1; 40], "a view keeps what it was taken over");
    }
    assert!(client.stats().unwrap().sessions[0].counts.retries >= 48);
}

#[test]
fn a_replacement_of_another_shape_is_an_error_that_names_both() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    overwrite(&client, "t", &[10, 4], &[1; 40]);
    let handle = client.open("t").unwrap();
    overwrite(&client, "t", &[20, 2], &[2; 40]);
    let error = handle.get().unwrap_err();
    assert!(matches!(error, Error::Replaced { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("[10, 4]") && text.contains("[20, 2]") && text.contains("open it again"), "{text}");
    assert_eq!(client.open("t").unwrap().gather(&[19]).unwrap().as_bytes(), [2, 2]);
    // The old shape again: the old handle is good again.
    overwrite(&client, "t", &[10, 4], &[3; 40]);
    assert_eq!(handle.get().unwrap().as_bytes(), [3; 40]);
}

#[test]
fn another_row_length_is_another_tensor() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    overwrite(&client, "t", &[12], &[1; 12]);
    let handle = client.open("t").unwrap();
    let options = PutOptions::new().overwrite(true).row_elems(3);
    client.put_with("t", Dtype::U8, &[12], &mut &[2; 12][..], &options).unwrap();
    let gathered = handle.gather(&[0]);
    assert!(matches!(gathered, Err(Error::Replaced { .. })), "{gathered:?}");
}

#[test]
fn a_removed_tensor_is_not_found_and_a_view_of_it_reads_on() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    let bytes = pattern(5 * MIB, 1);
    client.put("t", Dtype::U8, &[5, MIB], &bytes).unwrap();
    let handle = client.open("t").unwrap();
    let view = handle.view().unwrap();
    client.remove("t").unwrap();
    for result in [handle.get().map(drop), handle.gather(&[0]).map(drop), handle.view().map(drop)] {
        assert!(matches!(result, Err(Error::NotFound { .. })), "{result:?}");
    }
    // The view holds its memory: new tensors go elsewhere, or are refused.
    for n in 0..20 {
        let put = client.put(&format!("other{n}"), Dtype::U8, &[MIB], &vec![0xFF; MIB.try_into().unwrap()]);
        assert!(matches!(put, Ok(_) | Err(Error::PoolFull { .. })), "{put:?}");
    }
    let blocks: Vec<&[u8]> = (0..view.n_blocks()).map(|idx| view.block(idx).unwrap()).collect();
    assert!(blocks.concat() == bytes);
}

#[test]
fn a_view_outlives_every_handle_and_client() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    client.put("t", Dtype::U8, &[4], &[1, 2, 3, 4]).unwrap();
    let view = client.open("t").unwrap().view().unwrap();
    drop(client);
    let other = fixture.client();
    assert_eq!(other.stats().unwrap().sessions.len(), 2, "the view keeps its session");
    other.remove("t").unwrap();
    for n in 0..100 {
        other.put(&n.to_string(), Dtype::U8, &[4], &[9; 4]).unwrap();
    }
    assert_eq!(view.block(0).unwrap(), [1, 2, 3, 4]);
    drop(view);
    while other.stats().unwrap().sessions.len() > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn a_restarted_daemon_is_found_and_what_it_lost_is_named() {
    let mut fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    client.put("t", Dtype::U8, &[10, 4], &[1; 40]).unwrap();
    let (handle, other) = (client.open("t").unwrap(), client.open("t").unwrap());
    let view = handle.view().unwrap();

    drop(fixture.daemon.take());
    let stopped = client.list();
    assert!(matches!(stopped, Err(Error::NoDaemon { .. })), "{stopped:?}");
    // The session thread notices on its own.
    while handle.get().is_ok() {
        std::thread::yield_now();
    }
    let stopped = handle.gather(&[1]);
    assert!(matches!(stopped, Err(Error::NoDaemon { .. })), "{stopped:?}");
    assert!(matches!(client.stats(), Err(Error::NoDaemon { .. })));

    fixture.daemon = Some(Embedded::start(&fixture.config).unwrap());
    for _ in 0..2 {
        let lost = handle.get();
        assert!(matches!(&lost, Err(Error::Lost { name, .. }) if name == "t"), "{lost:?}");
    }
    let new = client.open("t");
    assert!(matches!(new, Err(Error::NotFound { .. })), "{new:?}");
    client.put("t", Dtype::U8, &[10, 4], &[2; 40]).unwrap();
    assert_eq!(handle.get().unwrap().as_bytes(), [2; 40]);
    assert_eq!(other.gather(&[0]).unwrap().as_bytes(), [2; 4]);
    assert_eq!(view.block(0).unwrap(), [1; 40], "a view reads the old daemon's memory");
}

#[test]
fn after_a_restart_the_same_name_with_another_shape_is_replaced() {
    let mut fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    client.put("t", Dtype::U8, &[10, 4], &[1; 40]).unwrap();
    let handle = client.open("t").unwrap();
    drop(fixture.daemon.take());
    fixture.daemon = Some(Embedded::start(&fixture.config).unwrap());
    client.put("u", Dtype::U8, &[10, 4], &[7; 40]).unwrap();
    client.put("t", Dtype::U8, &[4, 10], &[2; 40]).unwrap();
    // What the old daemon held may be read until the hang-up is noticed, but never anything else.
    let result = loop {
        match handle.get() {
            Ok(tensor) => assert_eq!(tensor.as_bytes(), [1; 40]),
            Err(error) => break error,
        }
    };
    assert!(matches!(result, Error::Replaced { .. }), "{result}");
}

#[test]
fn many_threads_live_through_restarts() {
    let mut fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    client.put("t", Dtype::U8, &[1000, 8], &[0; 8000]).unwrap();
    let handle = client.open("t").unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..4_u64 {
            let (handle, stop) = (&handle, &stop);
            scope.spawn(move || {
                let mut out = [0; 8];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    match handle.gather_into(&[seed * 200], &mut out) {
                        Ok(()) => assert!(out.iter().all(|&byte| byte == out[0]), "{out:?}"),
                        Err(Error::NoDaemon { .. } | Error::Lost { .. } | Error::Disconnected { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for version in 1..=5 {
            std::thread::sleep(Duration::from_millis(20));
            drop(fixture.daemon.take());
            fixture.daemon = Some(Embedded::start(&fixture.config).unwrap());
            client.put("t", Dtype::U8, &[1000, 8], &[version; 8000]).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let mut out = [0; 8];
    while handle.gather_into(&[0], &mut out).is_err() || out != [5; 8] {
        std::thread::yield_now();
    }
}
