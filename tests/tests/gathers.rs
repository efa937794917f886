//! Gathers: which rows, in which integer type, how often, into which buffer, and never a neighbor's.

use std::thread;

use tierpack_client::{Access, Client, CodecChoice, CodecId, Dtype, Error, Handle, PutOptions, RowId};
use tierpack_tests::data::{self, Random};
use tierpack_tests::{Daemon, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const GUARD: usize = 64;

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"])
}

/// A table whose row `i` is full of the words `i`.
fn table(client: &Client, name: &str, n_rows: u64, row_words: u64) -> Handle {
    let bytes: Vec<u8> = (0..n_rows)
        .flat_map(|row| row.to_le_bytes().repeat(usize::try_from(row_words).expect("a size of the test")))
        .collect();
    client.put_with(name, Dtype::U64, &[n_rows, row_words], &mut &bytes[..], &raw()).expect("room");
    client.open(name).expect("the tensor is there")
}

/// The rows that a gather gave, by their first words.
fn found<I: RowId>(handle: &Handle, rows: &[I]) -> Vec<u64> {
    let tensor = handle.gather(rows).expect("rows in range");
    let row_words = usize::try_from(handle.row_bytes() / 8).expect("a size of the test");
    let words = tensor.as_slice::<u64>().expect("words");
    assert!(words.chunks(row_words).all(|row| row.iter().all(|word| *word == row[0])), "a mixed row");
    words.iter().step_by(row_words).copied().collect()
}

/// C17.
#[test]
fn a_row_past_the_end_is_an_error_and_never_a_neighbor() {
    let daemon = start();
    let client = daemon.client();
    // Neighbors in the pool, so that one row too far is a 2.
    let handles: Vec<Handle> = [1_u8, 2, 3]
        .iter()
        .map(|&n| {
            let name = n.to_string();
            client.put_with(&name, Dtype::U8, &[100, 64], &mut std::io::repeat(n), &raw()).unwrap();
            client.open(&name).unwrap()
        })
        .collect();
    let t1 = &handles[0];
    assert_eq!(t1.gather(&[99_u64]).unwrap().as_bytes(), [1; 64]);
    let bad = [100, 101, 127, 128, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX];
    let mut out = vec![0xA5; 4096 * 64];
    for value in bad {
        for position in [0, 2048, 4095] {
            let mut rows: Vec<u64> = (0..4096).map(|n| n % 100).collect();
            rows[position] = value;
            let error = t1.gather_into(&rows, &mut out).unwrap_err();
            let Error::RowOutOfRange { position: named, row, n_rows: 100 } = error else { panic!("{error}") };
            assert_eq!((named, row), (position, i128::from(value)));
            assert!(out.iter().all(|byte| *byte == 0xA5), "a failed gather wrote something");
            assert!(t1.gather(&rows).is_err());
        }
        assert!(matches!(t1.gather(&[value]), Err(Error::RowOutOfRange { position: 0, .. })));
        // The next call in the same process is right, cold and warm.
        assert_eq!(t1.gather(&[99_u64, 0]).unwrap().as_bytes(), [1; 128]);
    }
    let first_of_two = t1.gather(&[100_u64, 101]).unwrap_err();
    assert!(matches!(first_of_two, Error::RowOutOfRange { position: 0, row: 100, .. }), "{first_of_two}");
}

/// C21.
#[test]
fn every_integer_type_names_the_same_rows() {
    let daemon = start();
    let client = daemon.client();
    let handle = table(&client, "t", 1000, 8);
    let small = [2_u8, 3, 5, 7, 11, 101, 127, 0];
    let expected: Vec<u64> = small.iter().map(|&row| u64::from(row)).collect();

    fn each<I: RowId + TryFrom<u8> + std::fmt::Debug>(handle: &Handle, small: &[u8], expected: &[u64])
    where
        I::Error: std::fmt::Debug,
    {
        let rows: Vec<I> = small.iter().map(|&row| I::try_from(row).unwrap()).collect();
        assert_eq!(found(handle, &rows), expected, "{rows:?}");
        let mut out = vec![0; rows.len() * 64];
        handle.gather_into(&rows, &mut out).unwrap();
        assert_eq!(out, handle.gather(expected).unwrap().as_bytes());
    }
    each::<u8>(&handle, &small, &expected);
    each::<i8>(&handle, &small, &expected);
    each::<u16>(&handle, &small, &expected);
    each::<i16>(&handle, &small, &expected);
    each::<u32>(&handle, &small, &expected);
    each::<i32>(&handle, &small, &expected);
    each::<u64>(&handle, &small, &expected);
    each::<i64>(&handle, &small, &expected);
    each::<usize>(&handle, &small, &expected);

    // The ends of each type, where a cast would wrap into the table.
    fn refused<I: RowId>(handle: &Handle, row: I, value: i128) {
        let error = handle.gather(&[row]).unwrap_err();
        assert!(matches!(error, Error::RowOutOfRange { row, .. } if row == value), "{value}: {error}");
    }
    assert_eq!(found(&handle, &[255_u8]), [255]);
    refused(&handle, -1_i8, -1);
    refused(&handle, i16::MIN, -32_768);
    refused(&handle, 65_535_u16, 65_535);
    refused(&handle, -1_i32, -1);
    refused(&handle, u32::MAX, 4_294_967_295);
    refused(&handle, i64::MIN, -(1 << 63));
    refused(&handle, -999_i64, -999);
    refused(&handle, u64::MAX, (1 << 64) - 1);
    refused(&handle, usize::MAX, (1 << 64) - 1);
}

/// C23.
#[test]
fn any_number_of_rows_in_any_order_and_no_lease_is_left() {
    let daemon = start();
    let client = daemon.client();
    let handle = table(&client, "t", 1000, 8);
    assert_eq!(handle.gather::<u32>(&[]).unwrap().shape(), [0, 8]);
    assert_eq!(found(&handle, &vec![7_u64; 100_000]), vec![7; 100_000]);
    let mut twice: Vec<u64> = (0..1000).chain(0..1000).collect();
    let mut random = Random::new(23);
    for n in (1..twice.len()).rev() {
        twice.swap(n, usize::try_from(random.below(n as u64 + 1)).unwrap());
    }
    assert_eq!(found(&handle, &twice), twice);
    let n = if full() { 10_000_000 } else { 1_000_000 };
    let many: Vec<u64> = (0..n).map(|_| random.below(1000)).collect();
    assert_eq!(found(&handle, &many), many);
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                assert!(handle.gather::<i64>(&[]).unwrap().as_bytes().is_empty());
                assert_eq!(found(&handle, &[7_u8; 1000]), vec![7; 1000]);
                assert_eq!(found(&handle, &twice), twice);
            });
        }
    });
    drop(client.remove("t"));
    let stats = daemon.quiet();
    assert_eq!((stats.pool.used_bytes, stats.pool.held_bytes), (0, 0));
    assert!(stats.sessions.iter().all(|session| session.leases == 0));
}

/// C29: whatever way a read ends, its lease ends with it.
#[test]
fn failed_overlapping_and_forgotten_reads_leave_no_lease() {
    let daemon = start();
    let client = daemon.client();
    let handle = table(&client, "t", 1000, 8);
    let leases = || daemon.stats().sessions.iter().map(|session| session.leases).sum::<u64>();
    for round in 0..if full() { 10_000 } else { 500 } {
        // Opened and never read; failed for a row, a buffer, a name.
        drop(client.open("t").unwrap());
        assert!(handle.gather(&[round % 1000, 1000]).is_err());
        assert!(handle.get_into(&mut [0; 3]).is_err());
        assert!(client.get("missing").is_err());
        // Two views of one tensor at a time, and now and then a panic under a third.
        let (first, second) = (handle.view().unwrap(), handle.view().unwrap());
        if round % 100 == 0 {
            let panicked = thread::scope(|scope| {
                let reading = scope.spawn(|| {
                    let view = handle.view().unwrap();
                    assert_eq!(view.block(0).unwrap().len(), 0, "a planned panic");
                });
                reading.join().is_err()
            });
            assert!(panicked);
        }
        if round % 100 == 0 {
            assert_eq!(leases(), 2, "round {round}");
        }
        drop((second, first));
    }
    assert_eq!(leases(), 0);
    // And so nothing keeps the memory of what comes and goes.
    for n in 0..100 {
        let name = n.to_string();
        client.put_with(&name, Dtype::U8, &[4, 1 << 20], &mut std::io::repeat(1), &raw()).unwrap();
        drop(client.open(&name).unwrap().view().unwrap());
        client.remove(&name).unwrap();
    }
    client.remove("t").unwrap();
    assert_eq!(daemon.quiet().pool.used_bytes, 0);
}

/// Fills a fenced buffer by `read`, and gives what is between the fences.
fn fenced(len: usize, read: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut buf = vec![0xA5; GUARD + len + GUARD];
    read(&mut buf[GUARD..GUARD + len]);
    let is_intact = |fence: &[u8]| fence.iter().all(|byte| *byte == 0xA5);
    assert!(is_intact(&buf[..GUARD]) && is_intact(&buf[GUARD + len..]), "{len} bytes: a fence is broken");
    buf[GUARD..GUARD + len].to_vec()
}

/// C05: blocks end at 256 KiB of rows or at 128 Ki elements of a row.
#[test]
fn ragged_ends_write_their_bytes_and_no_more() {
    let daemon = start();
    let client = daemon.client();
    let mut lens = vec![0, 1, 2, 3, 31, 32, 33, 34, 63, 64, 65];
    for block in [128 << 10, 256 << 10] {
        lens.extend([block - 1, block, block + 1, 2 * block - 1, 2 * block + 1]);
    }
    let mut random = Random::new(5);
    for len in lens {
        let size = usize::try_from(len).unwrap();
        let contents = [
            vec![0x5A; size],
            (0..size).map(|n| n.to_le_bytes()[0]).collect(),
            (0..size).map(|_| random.next_u64().to_le_bytes()[0]).collect::<Vec<u8>>(),
        ];
        let accesses = [Access::Rows, Access::Whole, Access::Rows];
        let forms = contents
            .iter()
            .zip(accesses)
            .flat_map(|form| CodecId::ALL.iter().map(move |&codec| (form, codec)))
            .filter(|(_, codec)| full() || *codec == CodecId::Raw || size < 300 << 10);
        for ((content, access), codec) in forms {
            let options = PutOptions::new().access(access).codec(CodecChoice::Only(codec)).overwrite(true);
            client.put_with("one row", Dtype::U8, &[len], &mut &content[..], &options).unwrap();
            check_ragged(&client.open("one row").unwrap(), content);
            // Rows of one byte.
            client.put_with("rows", Dtype::U8, &[len, 1], &mut &content[..], &options).unwrap();
            check_ragged(&client.open("rows").unwrap(), content);
            // The same length as its rows' length, three times.
            let three = content.repeat(3);
            client.put_with("three", Dtype::U8, &[3, len], &mut &three[..], &options).unwrap();
            check_ragged(&client.open("three").unwrap(), &three);
        }
    }
}

fn check_ragged(handle: &Handle, content: &[u8]) {
    assert!(
        fenced(content.len(), |out| handle.get_into(out).expect("a fitting buffer")) == content,
        "{}",
        handle.name()
    );
    let n_rows = handle.n_rows();
    if n_rows == 0 {
        return;
    }
    let row_bytes = usize::try_from(handle.row_bytes()).expect("a size of the test");
    let rows: Vec<u64> = [0, n_rows / 2, n_rows - 1].into();
    let expected: Vec<u8> = rows
        .iter()
        .flat_map(|&row| {
            &content[usize::try_from(row).expect("a size of the test") * row_bytes..][..row_bytes]
        })
        .copied()
        .collect();
    let gathered = fenced(expected.len(), |out| handle.gather_into(&rows, out).expect("rows in range"));
    assert!(gathered == expected, "{} of {} bytes", handle.name(), content.len());
    // A buffer of another length is refused, and stays as it is.
    for wrong in [expected.len() + 1, expected.len().wrapping_sub(1)] {
        if let Some(mut buf) = (wrong < 1 << 30).then(|| vec![0xA5; wrong]) {
            assert!(matches!(handle.gather_into(&rows, &mut buf), Err(Error::BufferLength { .. })));
            assert!(buf.iter().all(|byte| *byte == 0xA5));
        }
    }
}

/// Rows of any width, so that they start at any offset; and rows longer than a block.
#[test]
fn rows_of_every_width_and_alignment_are_right() {
    let daemon = start();
    let client = daemon.client();
    for width in (1..=33).chain([127, 129, 4095, 300_001]) {
        let n_rows: u64 = if width > 100_000 { 3 } else { 77 };
        let mut bytes = vec![0; usize::try_from(n_rows * width).unwrap().next_multiple_of(8)];
        data::fill(&mut bytes, 9, 1, 0);
        bytes.truncate(usize::try_from(n_rows * width).unwrap());
        let options = PutOptions::new().row_elems(width);
        let name = format!("w{width}");
        client.put_with(&name, Dtype::U8, &[n_rows * width], &mut &bytes[..], &options).unwrap();
        let handle = client.open(&name).unwrap();
        assert_eq!((handle.n_rows(), handle.row_bytes()), (n_rows, width));
        for row in 0..n_rows {
            let expected = &bytes[usize::try_from(row * width).unwrap()..][..usize::try_from(width).unwrap()];
            assert_eq!(fenced(expected.len(), |out| handle.gather_into(&[row], out).unwrap()), expected);
        }
    }
}
