//! Calls that fail say why, and leave nothing behind.

use std::io::{self, Read};

use tierpack_client::{Client, Dtype, Error, PutOptions};

use crate::fixture::{Fixture, pattern};

const MIB: u64 = 1 << 20;

fn fixture() -> (Fixture, Client) {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    (fixture, client)
}

#[test]
fn a_name_that_is_not_there() {
    let (_fixture, client) = fixture();
    let check = |error: Error| {
        assert!(
            matches!(&error, Error::NotFound { namespace, name } if namespace == "default" && name == "x")
        );
        assert_eq!(error.to_string(), "no tensor \"x\" in namespace \"default\"");
    };
    // First without the namespace, then with it.
    for _ in 0..2 {
        check(client.open("x").unwrap_err());
        check(client.get("x").unwrap_err());
        check(client.remove("x").unwrap_err());
        check(client.file_metadata("x").unwrap_err());
        client.put("y", Dtype::U8, &[1], &[1]).unwrap();
        client.remove("y").unwrap();
    }
}

#[test]
fn a_name_that_exists_is_only_overwritten_when_asked() {
    let (_fixture, client) = fixture();
    client.put("t", Dtype::U8, &[1], &[1]).unwrap();
    let again = client.put("t", Dtype::U8, &[1], &[2]);
    assert!(matches!(again, Err(Error::Exists { .. })), "{again:?}");
    assert_eq!(client.get("t").unwrap().as_bytes(), [1]);
    let options = PutOptions::new().overwrite(true);
    client.put_with("t", Dtype::U8, &[1], &mut &[2][..], &options).unwrap();
    assert_eq!(client.get("t").unwrap().as_bytes(), [2]);
}

#[test]
fn a_row_out_of_range_names_its_position_and_touches_nothing() {
    let (_fixture, client) = fixture();
    for (name, fill) in [("ones", 1), ("twos", 2)] {
        client.put(name, Dtype::U8, &[100, 4], &[fill; 400]).unwrap();
    }
    let handle = client.open("ones").unwrap();
    assert_eq!(handle.gather(&[99]).unwrap().as_bytes(), [1; 4]);
    for row in [100, 101, i64::from(i32::MAX), 1 << 31, i64::MAX, -1, i64::MIN] {
        for (len, position) in [(1, 0), (4096, 0), (4096, 4095), (4096, 2000)] {
            let mut rows = vec![99; len];
            rows[position] = row;
            let mut out = vec![0xA5; len * 4];
            let error = handle.gather_into(&rows, &mut out).unwrap_err();
            let text = format!("row {row} at position {position} is out of range: the tensor has 100 rows");
            assert_eq!(error.to_string(), text);
            assert!(out.iter().all(|&byte| byte == 0xA5));
            assert!(handle.gather(&rows).is_err());
        }
    }
    let error = handle.gather(&[0, u64::MAX]).unwrap_err().to_string();
    assert!(error.contains("row 18446744073709551615 at position 1"), "{error}");
}

#[test]
fn a_buffer_of_another_length() {
    let (_fixture, client) = fixture();
    client.put("t", Dtype::U8, &[10, 4], &[1; 40]).unwrap();
    let handle = client.open("t").unwrap();
    for len in [0, 39, 41] {
        let result = handle.get_into(&mut vec![0; len]);
        assert!(matches!(result, Err(Error::BufferLength { needed: 40, .. })), "{result:?}");
    }
    let result = handle.gather_into(&[1, 2], &mut [0; 4]);
    assert!(matches!(result, Err(Error::BufferLength { needed: 8, got: 4 })), "{result:?}");
    let result = client.put("u", Dtype::U8, &[10, 4], &[1; 41]);
    assert!(matches!(result, Err(Error::BufferLength { needed: 40, got: 41 })), "{result:?}");
}

/// Returns some bytes, then an error.
struct Broken(u64);

impl Read for Broken {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = buf.len().min(self.0.try_into().unwrap()).min(1 << 16);
        if n == 0 {
            return Err(io::Error::other("the disk is on fire"));
        }
        self.0 -= n as u64;
        Ok(n)
    }
}

#[test]
fn a_source_that_ends_early_leaves_nothing() {
    let fixture = Fixture::new(128 * MIB);
    let client = fixture.client();
    let options = PutOptions::new();
    for got in [0, 100, 17 * MIB, 40 * MIB - 1] {
        let result = client.put_with("t", Dtype::U8, &[40, MIB], &mut Broken(got), &options);
        let Err(Error::Source { got: came, needed, source }) = result else { panic!("{result:?}") };
        assert_eq!((came, needed, &*source.to_string()), (got, 40 * MIB, "the disk is on fire"));
    }
    let short = client.put_with("t", Dtype::U8, &[10], &mut &[1; 9][..], &options);
    let text = short.unwrap_err().to_string();
    assert_eq!(text, "read the tensor's bytes: 9 of 10 came");
    assert!(client.list().unwrap().is_empty());
    assert_eq!(client.stats().unwrap().transfers, 0);
    let bytes = pattern(40 * MIB, 1);
    client.put("t", Dtype::U8, &[40, MIB], &bytes).unwrap();
    assert!(client.get("t").unwrap().as_bytes() == bytes);
}

#[test]
fn a_reader_that_panics_leaves_nothing() {
    struct Panics;
    impl Read for Panics {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("as planned");
        }
    }
    let (_fixture, client) = fixture();
    let put = || client.put_with("t", Dtype::U8, &[10], &mut Panics, &PutOptions::new());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(put));
    assert!(caught.is_err());
    assert_eq!(client.stats().unwrap().transfers, 0);
    client.put("t", Dtype::U8, &[1], &[1]).unwrap();
}

#[test]
fn a_full_pool_names_the_numbers_and_has_room_after_a_removal() {
    let (_fixture, client) = fixture();
    let bytes = pattern(8 * MIB, 3);
    client.put("a", Dtype::U8, &[8, MIB], &bytes).unwrap();
    let full = client.put("b", Dtype::U8, &[8, MIB], &bytes);
    assert!(matches!(&full, Err(Error::PoolFull { text, .. }) if text.contains("16 MiB")), "{full:?}");
    client.remove("a").unwrap();
    client.put("b", Dtype::U8, &[8, MIB], &bytes).unwrap();
    assert!(client.get("b").unwrap().as_bytes() == bytes);
    let huge = client.put_with("c", Dtype::U8, &[1 << 50], &mut io::repeat(0), &PutOptions::new());
    assert!(matches!(huge, Err(Error::PoolFull { .. } | Error::Invalid { .. })), "{huge:?}");
}

#[test]
fn names_and_shapes_past_their_limits() {
    let (_fixture, client) = fixture();
    let long = "x".repeat(4097);
    assert!(matches!(client.open(&long), Err(Error::NameTooLong { len: 4097, limit: 4096, .. })));
    assert!(matches!(client.put(&long, Dtype::U8, &[0], &[]), Err(Error::NameTooLong { .. })));
    client.put(&long[1..], Dtype::U8, &[1], &[1]).unwrap();
    assert_eq!(client.get(&long[1..]).unwrap().as_bytes(), [1]);
    assert!(matches!(client.namespace(&long[..256]), Err(Error::NameTooLong { limit: 255, .. })));
    let unnamed = client.namespace("").unwrap().put("t", Dtype::U8, &[1], &[1]);
    assert!(matches!(unnamed, Err(Error::Invalid { .. })), "{unnamed:?}");
    for shape in [&[1; 65][..], &[u64::MAX, 2], &[1 << 32, 1 << 32]] {
        assert!(matches!(client.put("t", Dtype::F64, shape, &[]), Err(Error::Shape { .. })), "{shape:?}");
    }
    assert!(matches!(client.put("t", Dtype::F4, &[3], &[0; 2]), Err(Error::Shape { .. })));
    let options = PutOptions::new().row_elems(5);
    let uneven = client.put_with("t", Dtype::U8, &[12], &mut &[0; 12][..], &options);
    assert!(matches!(uneven, Err(Error::Shape { .. })), "{uneven:?}");
}

#[test]
fn every_lease_taken_is_an_error_until_one_is_dropped() {
    let (_fixture, client) = fixture();
    client.put("t", Dtype::U8, &[10, 4], &[3; 40]).unwrap();
    let handle = client.open("t").unwrap();
    let mut views: Vec<_> = (0..1024).map(|_| handle.view().unwrap()).collect();
    for result in [handle.view().map(drop), handle.get().map(drop), handle.gather(&[1]).map(drop)] {
        assert!(matches!(result, Err(Error::TooManyLeases { limit: 1024 })), "{result:?}");
    }
    views.pop();
    assert_eq!(handle.get().unwrap().as_bytes(), [3; 40]);
    drop(views);
    assert_eq!(client.stats().unwrap().sessions[0].leases, 0);
    // A failed call returns what it took.
    for _ in 0..3000 {
        assert!(handle.gather(&[10]).is_err());
        assert!(handle.get_into(&mut [0; 1]).is_err());
    }
    assert_eq!(client.stats().unwrap().sessions[0].leases, 0);
    handle.get().unwrap();
}
