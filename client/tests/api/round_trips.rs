//! What is put comes back bit by bit: whole, by rows, and in place.

use std::collections::BTreeMap;

use tierpack_client::{Access, Client, Dtype, Error, Handle, PutOptions};

use crate::fixture::{Fixture, pattern};

const MIB: u64 = 1 << 20;

fn usize(value: u64) -> usize {
    value.try_into().unwrap()
}

/// Reads `handle` in every way and compares with `bytes`.
fn check(handle: &Handle, bytes: &[u8], shape: &[u64], gatherable: bool) {
    let tensor = handle.get().unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (handle.dtype(), shape));
    assert!(tensor.as_bytes() == bytes, "{shape:?}");
    let mut out = vec![0xA5; bytes.len()];
    handle.get_into(&mut out).unwrap();
    assert!(out == bytes, "{shape:?}");
    let view = handle.view().unwrap();
    let blocks: Vec<&[u8]> = (0..view.n_blocks()).map(|idx| view.block(idx).unwrap()).collect();
    assert!(blocks.concat() == bytes, "{shape:?}");
    assert_eq!((view.dtype(), view.shape(), view.raw_bytes()), (handle.dtype(), shape, bytes.len() as u64));
    let no_block = view.block(view.n_blocks());
    assert!(matches!(no_block, Err(Error::BlockOutOfRange { .. })), "{no_block:?}");
    if gatherable {
        check_gather(handle, bytes, shape);
    } else {
        let result = handle.gather(&[0_u8]);
        assert!(matches!(result, Err(Error::NotGatherable { .. })), "{result:?}");
    }
}

/// All rows backwards, then each twice.
fn check_gather(handle: &Handle, bytes: &[u8], shape: &[u64]) {
    let (n_rows, row_bytes) = (handle.n_rows(), usize(handle.row_bytes()));
    let backwards: Vec<u64> = (0..n_rows.min(3000)).rev().collect();
    let twice: Vec<u64> = backwards.iter().flat_map(|&row| [row, row]).collect();
    for rows in [&backwards, &twice, &Vec::new()] {
        let gathered = handle.gather(rows).unwrap();
        let inner = if shape.len() > 1 { shape[1..].to_vec() } else { gathered.shape()[1..].to_vec() };
        assert_eq!(gathered.shape(), [&[rows.len() as u64], &inner[..]].concat());
        assert_eq!(gathered.as_bytes().len(), rows.len() * row_bytes);
        for (idx, &row) in rows.iter().enumerate() {
            let expected = &bytes[usize(row) * row_bytes..][..row_bytes];
            assert!(&gathered.as_bytes()[idx * row_bytes..][..row_bytes] == expected, "{shape:?} row {row}");
        }
    }
    for row in [n_rows, n_rows + 1, u64::MAX] {
        let result = handle.gather(&[row]);
        assert!(matches!(result, Err(Error::RowOutOfRange { position: 0, .. })), "{shape:?} row {row}");
    }
}

fn put(client: &Client, name: &str, dtype: Dtype, shape: &[u64], options: &PutOptions) -> Vec<u8> {
    let bits = shape.iter().product::<u64>() * u64::from(dtype.bits());
    let bytes = pattern(bits / 8, bits + u64::from(dtype as u8));
    let entry = client.put_with(name, dtype, shape, &mut &bytes[..], options).unwrap();
    assert_eq!((&*entry.name, entry.dtype, &*entry.shape), (name, dtype, shape));
    assert_eq!((entry.raw_bytes, entry.revision), (bits / 8, 0));
    assert!(entry.stored_bytes >= entry.raw_bytes && entry.stored_bytes.is_multiple_of(64));
    bytes
}

#[test]
fn every_dtype_in_odd_shapes() {
    let fixture = Fixture::new(256 * MIB);
    let client = fixture.client();
    let shapes: [&[u64]; 12] = [
        &[],
        &[8],
        &[1, 8],
        &[3, 40],
        &[0],
        &[0, 128],
        &[128, 0],
        &[2, 3, 8],
        &[5000, 8],
        &[77, 1, 24],
        &[1, 1, 1, 8, 1],
        &[3, 300_000],
    ];
    for &dtype in Dtype::ALL {
        for shape in shapes.iter().filter(|shape| !shape.is_empty() || dtype.bits() % 8 == 0) {
            for access in [Access::Rows, Access::Whole] {
                let options = PutOptions::new().overwrite(true).access(access);
                let bytes = put(&client, "tensor", dtype, shape, &options);
                check(&client.open("tensor").unwrap(), &bytes, shape, true);
            }
        }
    }
}

#[test]
fn rows_of_half_bytes_are_got_whole() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    for dtype in [Dtype::F4, Dtype::F6E2m3] {
        let options = PutOptions::new().overwrite(true);
        let bytes = put(&client, "odd", dtype, &[8, 3], &options);
        check(&client.open("odd").unwrap(), &bytes, &[8, 3], false);
    }
}

#[test]
fn a_vector_is_one_row_or_rows_of_a_given_length() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    let bytes = put(&client, "one", Dtype::F32, &[12], &PutOptions::new());
    let one = client.open("one").unwrap();
    assert_eq!((one.n_rows(), one.row_bytes()), (1, 48));
    assert_eq!(one.gather(&[0, 0]).unwrap().shape(), [2, 12]);
    check(&one, &bytes, &[12], true);
    let bytes = put(&client, "four", Dtype::F32, &[12], &PutOptions::new().row_elems(3));
    let four = client.open("four").unwrap();
    assert_eq!((four.n_rows(), four.row_bytes()), (4, 12));
    assert_eq!(four.gather(&[3]).unwrap().as_bytes(), &bytes[36..]);
    check(&four, &bytes, &[12], true);
}

#[test]
fn row_numbers_may_have_any_integer_type() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    let bytes = put(&client, "t", Dtype::I16, &[100, 4], &PutOptions::new());
    let handle = client.open("t").unwrap();
    let expected: Vec<u8> = [2, 3, 5, 7].iter().flat_map(|row| bytes[row * 8..][..8].to_vec()).collect();
    macro_rules! check {
        ($($integer:ty)*) => {$(
            let rows: [$integer; 4] = [2, 3, 5, 7];
            assert_eq!(handle.gather(&rows).unwrap().as_bytes(), expected, stringify!($integer));
        )*};
    }
    check! { u8 u16 u32 u64 usize i8 i16 i32 i64 }
}

#[test]
fn a_tensor_of_many_chunks_and_segments() {
    let fixture = Fixture::new(400 * MIB);
    let client = fixture.client();
    // Attached before the segments exist: they arrive while others read.
    put(&client, "first", Dtype::U8, &[10, 10], &PutOptions::new());
    let first = client.open("first").unwrap();
    let shape = [1 << 17, 1027];
    let bytes = put(&client, "big", Dtype::U8, &shape, &PutOptions::new());
    let big = client.open("big").unwrap();
    check(&big, &bytes, &shape, true);
    let last = big.gather(&[(1_u64 << 17) - 1]).unwrap();
    assert_eq!(last.as_bytes(), &bytes[bytes.len() - 1027..]);
    assert_eq!(first.get().unwrap().shape(), [10, 10]);
}

#[test]
fn results_keep_their_bytes_while_buffers_are_used_again() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    let one = put(&client, "one", Dtype::U8, &[1000, 8], &PutOptions::new());
    let two = put(&client, "two", Dtype::U8, &[1001, 8], &PutOptions::new());
    let (a, b) = (client.open("one").unwrap(), client.open("two").unwrap());
    let kept = a.get().unwrap();
    for _ in 0..100 {
        let tensor = b.get().unwrap();
        assert_eq!(tensor.as_bytes(), two);
        drop(tensor);
        assert_eq!(b.gather(&[1000, 0]).unwrap().as_bytes(), [&two[8000..], &two[..8]].concat());
    }
    assert_eq!(kept.as_bytes(), one);
}

#[test]
fn elements_are_typed() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    let values = [1.5_f32, -0.0, f32::NAN, f32::MIN_POSITIVE / 2.0];
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    client.put("f", Dtype::F32, &[2, 2], &bytes).unwrap();
    let tensor = client.get("f").unwrap();
    let got: Vec<u32> = tensor.as_slice::<f32>().unwrap().iter().map(|value| value.to_bits()).collect();
    assert_eq!(got, values.map(f32::to_bits));
    assert!(matches!(tensor.as_slice::<u16>(), Err(Error::DtypeMismatch { .. })));
    assert_eq!(tensor.to_vec(), bytes);
}

#[test]
fn file_metadata_is_kept_whatever_its_length() {
    let fixture = Fixture::new(64 * MIB);
    let client = fixture.client();
    let map = |len: usize| {
        BTreeMap::from([("format".to_owned(), "pt".to_owned()), ("x".to_owned(), "ü".repeat(len))])
    };
    for (name, metadata) in [("none", BTreeMap::new()), ("small", map(10)), ("large", map(100_000))] {
        let options = PutOptions::new().file_metadata(metadata.clone());
        client.put_with(name, Dtype::U8, &[3], &mut &[1, 2, 3][..], &options).unwrap();
        assert_eq!(client.file_metadata(name).unwrap(), metadata, "{name}");
    }
}

#[test]
fn the_list_has_every_tensor_in_order_over_many_pages() {
    let fixture = Fixture::new(64 * MIB);
    let client = fixture.client();
    assert!(client.list().unwrap().is_empty());
    let mut names: Vec<String> = (0..300).map(|n| format!("{n:0>1000}\n\u{1b}[31m \"quoted\"")).collect();
    names.push(String::new());
    for name in names.iter().rev() {
        client.put(name, Dtype::U8, &[1], &[7]).unwrap();
    }
    let other = client.namespace("other").unwrap();
    other.put("z", Dtype::U8, &[1], &[8]).unwrap();
    assert!(client.namespace("nowhere").unwrap().list().unwrap().is_empty());
    names.sort();
    let listed: Vec<String> = client.list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(listed == names);
    let all = client.list_all().unwrap();
    assert_eq!(all.len(), names.len() + 1);
    assert!(all.is_sorted_by_key(|entry| (entry.namespace.clone(), entry.name.clone())));
    assert_eq!(client.get(&names[17]).unwrap().as_bytes(), [7]);
}

#[test]
fn namespaces_do_not_see_each_other() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    let (a, b) = (client.namespace("a").unwrap(), client.namespace("b").unwrap());
    a.put("t", Dtype::U8, &[1], &[1]).unwrap();
    assert!(matches!(b.open("t"), Err(Error::NotFound { .. })));
    b.put("t", Dtype::U8, &[1], &[2]).unwrap();
    assert_eq!((a.get("t").unwrap().as_bytes(), b.get("t").unwrap().as_bytes()), (&[1][..], &[2][..]));
    b.remove("t").unwrap();
    assert_eq!(a.get("t").unwrap().as_bytes(), [1]);
    assert_eq!((a.namespace_name(), b.list().unwrap().len()), ("a", 0));
}

#[test]
fn the_counters_reach_the_stats() {
    let fixture = Fixture::new(16 * MIB);
    let client = fixture.client();
    put(&client, "t", Dtype::U8, &[100, 4], &PutOptions::new());
    let handle = client.open("t").unwrap();
    handle.get().unwrap();
    handle.gather(&[1, 2, 3]).unwrap();
    let _view = handle.view().unwrap();
    let stats = client.stats().unwrap();
    let counts = stats.sessions[0].counts;
    assert_eq!((counts.gets, counts.gathers, counts.rows, counts.bytes), (1, 1, 3, 412));
    assert_eq!((counts.views, stats.sessions[0].leases), (1, 1));
    assert_eq!(stats.namespaces[0].tensors, 1);
}
