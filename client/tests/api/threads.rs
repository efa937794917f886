//! One client, many threads.

use std::sync::atomic::{AtomicBool, Ordering};

use tierpack_client::{CodecChoice, CodecId, Dtype, Error, PutOptions};

use crate::fixture::{Fixture, pattern};

const MIB: u64 = 1 << 20;

#[test]
fn readers_never_see_a_mixture_while_a_tensor_is_replaced() {
    let fixture = Fixture::new(64 * MIB);
    let client = fixture.client();
    let shape = [500, 1024];
    let put = |version: u8| {
        let options = PutOptions::new().overwrite(true);
        let bytes = vec![version; 500 * 1024];
        client.put_with("t", Dtype::U8, &shape, &mut &bytes[..], &options).unwrap();
    };
    put(0);
    let handle = client.open("t").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..6_u64 {
            let (handle, stop) = (&handle, &stop);
            scope.spawn(move || {
                let rows: Vec<u64> = (0..64).map(|n| (n * 131 + seed * 7) % 500).collect();
                while !stop.load(Ordering::Relaxed) {
                    let gathered = handle.gather(&rows).unwrap();
                    let first = gathered.as_bytes()[0];
                    assert!(gathered.as_bytes().iter().all(|&byte| byte == first));
                    let whole = handle.get().unwrap();
                    let first = whole.as_bytes()[0];
                    assert!(whole.as_bytes().iter().all(|&byte| byte == first));
                }
            });
        }
        for version in 1..=60 {
            put(version);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(handle.gather(&[499]).unwrap().as_bytes(), [60; 1024]);
    assert_eq!(client.stats().unwrap().sessions[0].leases, 0);
}

#[test]
fn mixed_calls_of_many_threads() {
    let fixture = Fixture::new(64 * MIB);
    let client = fixture.client();
    let bytes = pattern(1000 * 24, 9);
    client.put("shared", Dtype::U8, &[1000, 24], &bytes).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16_usize {
            let (client, bytes) = (client.clone(), &bytes);
            scope.spawn(move || {
                let client = client.namespace(&format!("ns{}", thread % 3)).unwrap();
                let shared = client.namespace("default").unwrap().open("shared").unwrap();
                let name = format!("own{thread}");
                for round in 0..20_usize {
                    let fill = u8::try_from(thread * 10 + round % 10).unwrap();
                    // Raw, so that there is something to view.
                    let raw = PutOptions::new().codec(CodecChoice::Only(CodecId::Raw));
                    client.put_with(&name, Dtype::U8, &[64, 64], &mut &[fill; 4096][..], &raw).unwrap();
                    let own = client.open(&name).unwrap();
                    assert_eq!(own.get().unwrap().as_bytes(), [fill; 4096]);
                    let row = (thread * 61 + round * 17) % 1000;
                    assert_eq!(shared.gather(&[row]).unwrap().as_bytes(), &bytes[row * 24..][..24]);
                    let view = own.view().unwrap();
                    client.remove(&name).unwrap();
                    assert_eq!(view.block(0).unwrap(), [fill; 4096]);
                    assert!(matches!(own.get(), Err(Error::NotFound { .. })));
                    assert!(client.list().unwrap().iter().all(|entry| entry.name != name));
                }
            });
        }
    });
    let stats = client.stats().unwrap();
    assert_eq!((stats.sessions.len(), stats.sessions[0].leases, stats.transfers), (1, 0, 0));
}

#[test]
fn clients_come_and_go() {
    let fixture = Fixture::new(16 * MIB);
    let keeper = fixture.client();
    keeper.put("t", Dtype::U8, &[4], &[1, 2, 3, 4]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let fixture = &fixture;
            scope.spawn(move || {
                for _ in 0..25 {
                    assert_eq!(fixture.client().get("t").unwrap().as_bytes(), [1, 2, 3, 4]);
                }
            });
        }
    });
    while keeper.stats().unwrap().sessions.len() > 1 {
        std::thread::yield_now();
    }
}
