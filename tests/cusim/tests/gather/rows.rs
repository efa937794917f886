//! Every codec, dtype and row length, without a cache, into an empty one, and from it.

use cusim::Order;
use tierpack_shm::types::{Access, CodecId, Dtype};

use crate::make::geometry;
use crate::world::World;

/// Lengths of rows around those of groups, quarters of warps, records and lanes.
const COLUMNS: [u64; 14] = [1, 2, 7, 8, 33, 64, 100, 255, 256, 257, 1000, 1024, 1025, 2500];

/// All rows, twice, with duplicates: cold, then warm; and without a cache.
fn gathers(dtype: Dtype, rows: u64, columns: u64, access: Access, codec: CodecId) -> bool {
    let Some(geometry) = geometry(dtype, rows, columns, access) else { return false };
    let plain = World::new(geometry, codec, rows ^ columns << 20 ^ dtype as u64, 5);
    let cached = access == Access::Rows && geometry.pieces_per_row() == 1;
    let ids: Vec<u64> = (0..rows).chain([rows - 1, 0, rows / 2, 0]).map(|row| row * 7 % rows).collect();
    let mut world = plain;
    for order in Order::ALL {
        world.layout = tierpack_kernels::cuda::gather::CacheLayout::NONE;
        let none = world.gathers(&ids, order);
        assert_eq!((none.status.hits, none.status.inserts), (0, 0));
        // A set for each row: few are refused.
        world = world.cached(rows * 8 * (2 * geometry.row_bytes() + 300), None);
        let cold = world.gathers(&ids, order);
        // A row whose line another team was writing goes in the second time.
        world.gathers(&ids, order);
        let warm = world.gathers(&ids, order);
        let n = ids.len() as u64;
        for outcome in [&none, &cold, &warm] {
            // A row of several blocks counts once per block.
            let pieces = geometry.pieces_per_row();
            assert_eq!(outcome.status.hits + outcome.status.misses, n * pieces);
        }
        if cached {
            assert_eq!(cold.status.bypasses, 0, "{dtype} {codec} {columns}");
            assert!(cold.status.inserts > 0, "{dtype} {codec} {columns}");
            assert_eq!(warm.counts(), [n, 0, 0, 0, 0], "{dtype} {codec} {columns}: every row is cached");
        } else {
            assert_eq!(warm.counts(), [0, n * geometry.pieces_per_row(), 0, 0, 0]);
        }
    }
    world.words.iter().any(|word| !word.is_raw())
}

#[test]
fn every_codec_and_dtype() {
    for &codec in CodecId::ALL {
        let coded = Dtype::ALL.iter().filter(|&&dtype| gathers(dtype, 13, 72, Access::Rows, codec)).count();
        println!("{codec}: {coded} dtypes are encoded");
        assert!(codec == CodecId::Raw || coded >= 3, "{codec}: {coded} dtypes are encoded");
    }
}

#[test]
fn every_length_of_rows() {
    for &codec in CodecId::ALL {
        let mut coded = 0;
        for columns in COLUMNS {
            for dtype in [Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::F8E5m2] {
                let rows = if columns > 300 { 4 } else { 9 };
                coded += usize::from(gathers(dtype, rows, columns, Access::Rows, codec));
            }
        }
        println!("{codec}: {coded} of {} cases are encoded", 4 * COLUMNS.len());
        assert!(codec == CodecId::Raw || coded >= 20, "{codec}: {coded} cases are encoded");
    }
}

#[test]
fn rows_that_are_parts_of_records() {
    for &codec in CodecId::ALL {
        for (rows, columns) in [(40, 3), (40, 72), (7, 1500), (3, 2500), (300, 500)] {
            gathers(Dtype::Bf16, rows, columns, Access::Whole, codec);
        }
        gathers(Dtype::F64, 5, 700, Access::Whole, codec);
    }
}

#[test]
fn rows_of_several_blocks() {
    for &codec in CodecId::ALL {
        gathers(Dtype::Bf16, 2, 140_000, Access::Rows, codec);
    }
    gathers(Dtype::U8, 2, 300_000, Access::Whole, CodecId::Ibp);
}

#[test]
fn rows_that_no_window_holds() {
    for &codec in CodecId::ALL {
        let geometry = geometry(Dtype::F32, 3, 20_000, Access::Rows).expect("a valid shape");
        let world = World::new(geometry, codec, 77, 1).cached(1 << 20, Some(1000));
        for order in Order::ALL {
            assert_eq!(world.gathers(&[2, 0, 1, 1], order).counts(), [0, 4, 0, 0, 4]);
        }
    }
}
