//! Tensors past 2^31 elements and 2^32 bytes, with `TIERPACK_CASES=full`; smaller ones of the same form otherwise.

use std::io::Read;

use tierpack_client::{Client, Dtype, Handle, PutOptions, RowId};
use tierpack_tests::{Daemon, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

/// A table of zeros, except that some rows start with their number, cut to the row.
struct Sparse {
    row_bytes: u64,
    marked: Vec<u64>,
    at: u64,
}

impl Sparse {
    /// The row's first bytes.
    fn mark(&self, row: u64) -> Vec<u8> {
        let len = usize::try_from(self.row_bytes.min(8)).expect("at most 8");
        row.to_le_bytes()[..len].to_vec()
    }
}

impl Read for Sparse {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        buf.fill(0);
        let end = self.at + buf.len() as u64;
        for &row in &self.marked {
            for (byte, value) in (row * self.row_bytes..).zip(self.mark(row)) {
                if (self.at..end).contains(&byte) {
                    buf[usize::try_from(byte - self.at).expect("within a buffer")] = value;
                }
            }
        }
        self.at = end;
        Ok(buf.len())
    }
}

/// A table and the numbers of its first two and last three rows.
fn table(client: &Client, dtype: Dtype, n_rows: u64, columns: u64) -> (Handle, Sparse) {
    let row_bytes = columns * u64::from(dtype.bits()) / 8;
    let marked = vec![0, 1, n_rows - 3, n_rows - 2, n_rows - 1];
    let mut source = Sparse { row_bytes, marked, at: 0 };
    let options = raw();
    let entry = client.put_with("table", dtype, &[n_rows, columns], &mut source, &options).expect("room");
    assert_eq!((entry.raw_bytes, source.at), (n_rows * row_bytes, n_rows * row_bytes));
    (client.open("table").expect("the tensor is there"), source)
}

/// The rows, one by one and in one batch, each with its number.
fn check<I: RowId>(handle: &Handle, source: &Sparse, rows: &[I]) {
    let row_bytes = usize::try_from(source.row_bytes).expect("a size of the test");
    let batch = handle.gather(rows).expect("rows in range");
    let rows_of_batch = batch.as_bytes().chunks(row_bytes);
    for ((row, found), number) in rows.iter().zip(rows_of_batch).zip(&source.marked) {
        let alone = handle.gather(std::slice::from_ref(row)).expect("rows in range");
        assert_eq!(alone.as_bytes(), found);
        let mark = source.mark(*number);
        assert_eq!(&found[..mark.len()], mark, "row {number}");
        assert!(found[mark.len()..].iter().all(|byte| *byte == 0), "row {number}");
    }
}

fn check_table(dtype: Dtype, n_rows: u64, columns: u64) {
    let pool = n_rows * columns * u64::from(dtype.bits()) / 8 / (1 << 20) * 101 / 100 + 160;
    let daemon = Daemon::start(PROGRAM, &["--pool-size", &format!("{pool}MiB"), "--lock", "off"]);
    let client = daemon.client();
    let (handle, source) = table(&client, dtype, n_rows, columns);
    check(&handle, &source, &source.marked);
    let signed: Vec<i64> =
        source.marked.iter().map(|&row| i64::try_from(row).expect("a size of the test")).collect();
    check(&handle, &source, &signed);
    let short: Result<Vec<i32>, _> = source.marked.iter().map(|&row| i32::try_from(row)).collect();
    if let Ok(short) = short {
        check(&handle, &source, &short);
    }
    // Past the end, and where 32 bits would wrap into the table.
    for row in [n_rows, n_rows + (1 << 32), (1 << 32) + 1, (1 << 31) + n_rows] {
        assert!(row < n_rows || handle.gather(&[row]).is_err(), "{row}");
    }
    // The blocks of a view tile it.
    let view = handle.view().expect("a view");
    let total: u64 =
        (0..view.n_blocks()).map(|idx| view.block(idx).expect("a block of the view").len() as u64).sum();
    assert_eq!(total, n_rows * source.row_bytes);
    let last = view.block(view.n_blocks() - 1).expect("a block of the view");
    assert!(
        last[last.len() - usize::try_from(source.row_bytes).expect("a size of the test")..]
            .starts_with(&source.mark(n_rows - 1))
    );
}

/// C22: 2^31 + 1,024 elements.
#[test]
fn a_table_past_two_to_the_31_elements_has_its_rows() {
    check_table(Dtype::F8E4m3, if full() { 2_097_153 } else { 20_481 }, 1024);
}

/// C22: past 2^32 bytes.
#[test]
fn a_table_past_two_to_the_32_bytes_has_its_rows() {
    check_table(Dtype::Bf16, if full() { 2_100_000 } else { 21_000 }, 1024);
}

/// C22: 2^31 + 10 rows of one byte.
#[test]
fn more_rows_than_a_signed_32_bit_number_counts_are_told_apart() {
    check_table(Dtype::U8, if full() { (1 << 31) + 10 } else { (1 << 24) + 10 }, 1);
}

/// Bf16 weights without end: element `i` follows from `i` alone.
struct Weights {
    at: u64,
}

impl Weights {
    /// Four elements: noise, but for exponents that are geometric below 120, as those of weights are.
    fn word(i: u64) -> u64 {
        let noise = i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let noise = (noise ^ noise >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let noise = noise ^ noise >> 32;
        let element = |lane: u32| {
            let bits = noise >> (16 * lane) & 0xFFFF;
            let exponent = u64::from(120 - (bits >> 8 | 1 << 8).trailing_zeros());
            (bits & 0x80) << 8 | exponent << 7 | bits & 0x7F
        };
        (0..4).map(|lane| element(lane) << (16 * lane)).sum()
    }
}

impl Read for Weights {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut rest = &mut buf[..];
        while !rest.is_empty() {
            let word = Self::word(self.at / 8).to_le_bytes();
            let word = &word[usize::try_from(self.at % 8).expect("below 8")..];
            let len = word.len().min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&word[..len]);
            self.at += len as u64;
            rest = later;
        }
        Ok(buf.len())
    }
}

/// 5 GiB with `TIERPACK_CASES=full`, put by `auto` and read back by rows, every byte of it.
#[test]
fn a_large_tensor_goes_in_and_out_compressed() {
    let n_rows = if full() { 5 << 19 } else { 3 << 15 };
    let raw_bytes = n_rows * 2048;
    let pool = raw_bytes / (1 << 20) * 101 / 100 + 160;
    let daemon = Daemon::start(PROGRAM, &["--pool-size", &format!("{pool}MiB"), "--lock", "off"]);
    let client = daemon.client();
    let options = PutOptions::new();
    let entry = client
        .put_with("weights", Dtype::Bf16, &[n_rows, 1024], &mut Weights { at: 0 }, &options)
        .expect("room");
    println!("{} bytes stored by {} in {}", entry.raw_bytes, entry.codec, entry.stored_bytes);
    assert!(entry.stored_bytes * 100 < raw_bytes * 70, "{entry:?}");
    let handle = client.open("weights").expect("the tensor is there");
    let (mut source, mut expected, mut out) = (Weights { at: 0 }, vec![0; 8 << 20], vec![0; 8 << 20]);
    for first in (0..n_rows).step_by(4096) {
        let rows: Vec<u64> = (first..n_rows.min(first + 4096)).collect();
        let len = rows.len() * 2048;
        source.read_exact(&mut expected[..len]).expect("weights without end");
        handle.gather_into(&rows, &mut out[..len]).expect("rows in range");
        assert!(expected[..len] == out[..len], "rows from {first} on");
    }
    daemon.run_ok(&["verify"]);
}
