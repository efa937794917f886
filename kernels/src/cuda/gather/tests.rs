//! Tensors, caches and launches without a GPU: addresses are numbers here.

use tierpack_shm::types::{Access, CodecId, Dtype};

use super::*;
use crate::block::Block;
use crate::codec::{self, Encoding};
use crate::geometry::Geometry;
use crate::{Coder, Error, fit};

fn geometry(shape: &[u64], access: Access) -> Geometry {
    Geometry::new(Dtype::Bf16, shape, access, None).expect("a valid shape")
}

/// Rows of bf16 with few exponents, now and then another, and a coder for them.
fn fitted(codec: CodecId, geometry: &Geometry) -> (Coder, Vec<u8>) {
    let exponent = |i: u64| if i % 97 == 5 { 0x11 } else { 0x3F };
    let raw: Vec<u8> =
        (0..geometry.raw_bytes() / 2).flat_map(|i| [(i * 7 % 251) as u8, exponent(i)]).collect();
    let first = usize::try_from(geometry.block(0).raw_bytes).expect("at most 1 MiB");
    let metadata = fit::fit(codec, geometry, &[(fit::Piece::block(geometry, 0), &raw[..first])])
        .expect("a fit")
        .metadata
        .expect("metadata");
    (Coder::new(&metadata.with_generation(1), geometry).expect("a coder"), raw)
}

fn form(coder: &Coder) -> DeviceForm<'_> {
    DeviceForm { generation_idx: 3, coder, address: 1 << 40 }
}

#[test]
fn a_tensor_says_how_rows_are_found() {
    let geometry = geometry(&[300, 1500], Access::Rows);
    let (coder, _) = fitted(CodecId::Planes4, &geometry);
    let tensor = describe(&geometry, &[form(&coder)], &Addresses::default()).expect("a tensor");
    assert_eq!((tensor.n_blocks, tensor.n_rows, tensor.row_bytes), (5, 300, 3000));
    assert_eq!((tensor.block_rows, tensor.block_shift, tensor.pieces, tensor.lanes), (64, 6, 1, 32));
    let [usual, last] = tensor.grids;
    assert_eq!((usual.rows, usual.runs, usual.records, usual.tail_elems), (64, 64, 2, 476));
    assert_eq!((last.rows, last.row_bytes), (44, 3000));
    let found = tensor.forms[3];
    assert_eq!((found.codec, found.record_stride, found.tail_stride), (4, 1536, [716, 716]));
    assert_eq!(tensor.forms[0].codec, 0);
    assert_eq!((tensor.blocks_of(63), tensor.blocks_of(64), tensor.blocks_of(299)), (0..1, 1..2, 4..5));
    assert!(tensor.window_bytes >= 3000 + 15 && tensor.window_bytes.is_multiple_of(16));
}

#[test]
fn rows_of_several_blocks_and_parts_of_records_are_not_cached() {
    let cache = CacheLayout::with_line(1 << 20, 1000).at(1 << 30);
    let addresses = Addresses { cache, ..Addresses::default() };
    let long = describe(&geometry(&[3, 300_000], Access::Rows), &[], &addresses).expect("a tensor");
    assert_eq!((long.pieces, long.piece_bytes, long.cache.n_sets), (3, 256 << 10, 0));
    assert_eq!((long.blocks_of(2), long.grids[1].row_bytes), (6..9, 2 * (300_000 - 2 * (128 << 10))));
    let whole = geometry(&[1000, 300], Access::Whole);
    let (coder, _) = fitted(CodecId::Ibp, &whole);
    let whole = describe(&whole, &[form(&coder)], &addresses).expect("a tensor");
    assert_eq!((whole.block_shift, whole.block_rows, whole.cache.n_sets), (32, 436, 0));
    assert_eq!(whole.scratch_bytes, 2048 + 32);
    let short = describe(&geometry(&[10, 100], Access::Rows), &[], &addresses).expect("a tensor");
    assert_eq!((short.lanes, short.cache), (8, cache));
}

#[test]
fn what_no_kernel_can_gather_is_refused() {
    let odd = Geometry::new(Dtype::F4, &[2, 3], Access::Rows, None).expect("a valid shape");
    let no_form = Addresses::default();
    assert_eq!(describe(&odd, &[], &no_form), Err(Error::NotGatherable { row_bytes: 3 }));
    let good = geometry(&[4, 8], Access::Rows);
    let (coder, _) = fitted(CodecId::Ibp, &good);
    let index = DeviceForm { generation_idx: 16, ..form(&coder) };
    assert_eq!(describe(&good, &[index], &no_form), Err(Error::GenerationIndex { idx: 16 }));
    let address = DeviceForm { address: 8, ..form(&coder) };
    assert_eq!(
        describe(&good, &[address], &no_form),
        Err(Error::Address { of: "the metadata", address: 8, unit: 16 })
    );
    let other = geometry(&[4, 9], Access::Rows);
    assert!(matches!(describe(&other, &[form(&coder)], &no_form), Err(Error::MetadataField { .. })));
    let empty = describe(&geometry(&[5, 0], Access::Rows), &[], &no_form).expect("rows without bytes");
    assert_eq!((empty.n_blocks, empty.n_rows, empty.row_bytes), (0, 5, 0));
}

#[test]
fn a_cache_takes_no_more_than_it_is_given() {
    for bytes in [0, 1, 4096, 100_000, 1 << 30] {
        for line in [1, 16, 100, 1500, MAX_LINE_BYTES] {
            let layout = CacheLayout::with_line(bytes, line);
            assert!(layout.bytes() <= bytes, "{layout:?}");
            assert_eq!(
                layout.n_lines() > 0,
                bytes >= 208 + 8 * u64::from(line.next_multiple_of(16)),
                "{layout:?}"
            );
            assert!(layout.n_lines() == 0 || layout.line_bytes() >= line);
        }
    }
    assert_eq!(CacheLayout::with_line(1 << 30, MAX_LINE_BYTES + 1), CacheLayout::NONE);
    assert_eq!(CacheLayout::with_line(1 << 30, u32::MAX), CacheLayout::NONE);
    assert_eq!(CacheLayout::new(1 << 30, &mut []), CacheLayout::NONE);
    let cache = CacheLayout::with_line(1 << 20, 100).at(1 << 40);
    assert_eq!((cache.lines - cache.sets) % 16, 0);
    assert_eq!(cache.line_bytes, 112);
}

#[test]
fn one_row_in_a_hundred_may_be_longer_than_a_line() {
    let mut sizes: Vec<u32> = (0..1000).map(|i| if i % 100 == 7 { 9000 } else { 500 + i % 3 }).collect();
    assert_eq!(CacheLayout::new(1 << 20, &mut sizes).line_bytes(), (502_u32 + 15).next_multiple_of(16));
    assert_eq!(CacheLayout::new(1 << 20, &mut [10]).line_bytes(), 32);
}

#[test]
fn sizes_of_rows_add_up_to_the_block() {
    let geometry = geometry(&[64, 1100], Access::Rows);
    for codec in [CodecId::Ibp, CodecId::Planes4, CodecId::Planes3] {
        let (coder, raw) = fitted(codec, &geometry);
        let mut bytes = Vec::new();
        codec::encode_block(Encoding::Coded(&coder), &geometry, 0, &raw, &mut bytes).expect("a block");
        let block = Block::parse(&bytes).expect("a block");
        let sizes = row_sizes(Some(&coder), &geometry, &block).expect("sizes");
        assert_eq!(sizes.len(), 64);
        let total: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
        if block.codec() == CodecId::Raw {
            assert_eq!(total, block.raw_bytes());
        } else {
            assert_eq!(total, bytes.len() as u64 - 64, "{codec}");
            assert!(row_sizes(None, &geometry, &block).is_err());
        }
    }
}

#[test]
fn launches_stay_within_what_the_caller_can_spare() {
    let short =
        describe(&geometry(&[1000, 100], Access::Rows), &[], &Addresses::default()).expect("a tensor");
    let long =
        describe(&geometry(&[3, 300_000], Access::Rows), &[], &Addresses::default()).expect("a tensor");
    let call = |n_ids| GatherCall { n_ids, ..GatherCall::default() };
    let (mut a, mut b) = (call(100), call(3));
    let launch = plan(&mut [(&short, &mut a), (&long, &mut b)], 100, 0).expect("a launch");
    // 16 rows at a time in a thread block; three rows of three pieces, 4 at a time.
    assert_eq!(launch.grid, [7 + 3, 1, 1]);
    assert_eq!((a.first_block, b.first_block), (0, 7));
    assert_eq!((launch.block, launch.scratch_rows), ([128, 1, 1], 160));
    assert!(launch.shared_bytes <= 46 << 10);
    let launch = plan(&mut [(&short, &mut a), (&long, &mut b)], 100, 4).expect("a launch");
    assert_eq!((launch.grid, b.first_block), ([4, 1, 1], 3));
    let mut many = call(GatherCall::MAX_IDS);
    assert_eq!(plan(&mut [(&short, &mut many)], 100, 0).map(|launch| launch.grid), Some([800, 1, 1]));
    assert_eq!(plan(&mut [(&short, &mut call(0))], 100, 0), None);
    assert_eq!(plan(&mut [], 100, 0), None);
}

#[test]
fn long_lines_take_fewer_threads() {
    let grid = |line| {
        let cache = CacheLayout::with_line(1 << 30, line).at(0);
        let addresses = Addresses { cache, ..Addresses::default() };
        let tensor = describe(&geometry(&[30, 30_000], Access::Rows), &[], &addresses).expect("a tensor");
        let launch = plan(&mut [(&tensor, &mut GatherCall { n_ids: 1, ..GatherCall::default() })], 1, 0);
        launch.map(|launch| (launch.block[0], launch.shared_bytes <= 46 << 10))
    };
    let cache = CacheLayout::with_line(1 << 30, MAX_LINE_BYTES).at(0);
    let addresses = Addresses { cache, ..Addresses::default() };
    let short = describe(&geometry(&[30, 10], Access::Rows), &[], &addresses).expect("a tensor");
    assert_eq!((short.lanes, short.shared_bytes(32) <= 46 << 10), (32, true));
    assert_eq!([8000, 20_000, MAX_LINE_BYTES].map(grid), [128, 64, 32].map(|threads| Some((threads, true))));
}

#[test]
fn a_sweep_looks_at_every_line() {
    let addresses = |bytes| {
        let cache = CacheLayout::with_line(bytes, 100).at(0);
        Addresses { cache, ..Addresses::default() }
    };
    let tensor =
        |bytes| describe(&geometry(&[10, 10], Access::Rows), &[], &addresses(bytes)).expect("a tensor");
    assert_eq!(sweep(&tensor(0), 100), None);
    assert_eq!(sweep(&tensor(2000), 100).map(|launch| launch.grid), Some([1, 1, 1]));
    assert_eq!(
        sweep(&tensor(1 << 30), 100).map(|launch| (launch.kernel, launch.grid)),
        Some(("sweep_cache", [800, 1, 1]))
    );
}
