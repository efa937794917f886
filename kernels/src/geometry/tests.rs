//! The rules of FORMAT.md, section "Geometry", at their edges; `tests/geometry.rs` covers the room between.

use tierpack_shm::types::Access::{Rows, Whole};

use super::*;

fn cut(dtype: Dtype, shape: &[u64], access: Access) -> Geometry {
    Geometry::new(dtype, shape, access, None).expect("a valid shape")
}

/// Rows, bytes of a row, blocks, rows of a block, pieces of a row.
fn figures(geometry: &Geometry) -> (u64, u64, u64, u64, u64) {
    let Geometry { n_rows, row_bytes, n_blocks, .. } = *geometry;
    (n_rows, row_bytes, n_blocks, geometry.block_rows(), geometry.pieces_per_row())
}

#[test]
fn short_rows_share_a_block_by_powers_of_two() {
    let geometry = cut(Dtype::Bf16, &[1000, 384], Rows);
    // 768-byte rows: 341 fit 256 KiB, 256 is the power of two below.
    assert_eq!(figures(&geometry), (1000, 768, 4, 256, 1));
    assert_eq!(geometry.locate(999), (3, 231));
    let last = geometry.block(3);
    assert_eq!((last.rows, last.columns, last.first_row), (232, 384, 768));
    assert_eq!((last.raw_bytes, last.byte_offset), (232 * 768, 768 * 768));
}

#[test]
fn rows_around_256_kib_change_from_whole_rows_to_pieces() {
    assert_eq!(figures(&cut(Dtype::U8, &[3, 1 << 17], Rows)), (3, 1 << 17, 2, 2, 1));
    assert_eq!(figures(&cut(Dtype::U8, &[3, (1 << 17) + 1], Rows)), (3, (1 << 17) + 1, 3, 1, 1));
    assert_eq!(figures(&cut(Dtype::U8, &[3, 1 << 18], Rows)), (3, 1 << 18, 3, 1, 1));
    let geometry = cut(Dtype::U8, &[3, (1 << 18) + 1], Rows);
    assert_eq!(figures(&geometry), (3, (1 << 18) + 1, 9, 1, 3));
    assert_eq!(geometry.locate(2), (6, 0));
    let piece = geometry.block(8);
    assert_eq!((piece.rows, piece.columns, piece.raw_bytes, piece.first_row), (1, 1, 1, 2));
    assert_eq!(piece.byte_offset, geometry.raw_bytes() - 1);
    // 256 KiB + 8 bytes of f64 are one piece.
    assert_eq!(figures(&cut(Dtype::F64, &[5, 32_769], Rows)), (5, 262_152, 5, 1, 1));
}

#[test]
fn whole_access_cuts_at_row_ends_or_into_pieces() {
    let geometry = cut(Dtype::F32, &[5000, 100], Whole);
    assert_eq!(figures(&geometry), (5000, 400, 4, 1310, 1));
    assert_eq!(geometry.locate(1310), (1, 0));
    assert_eq!(figures(&cut(Dtype::F64, &[3, 1 << 17], Whole)), (3, 1 << 20, 3, 1, 1));
    assert_eq!(cut(Dtype::F64, &[3, 1 << 17], Whole).block(0).raw_bytes, MAX_BLOCK_RAW_BYTES);
    assert_eq!(figures(&cut(Dtype::F64, &[3, (1 << 17) + 1], Whole)), (3, (1 << 20) + 8, 6, 1, 2));
    assert_eq!(figures(&cut(Dtype::U8, &[1 << 18, 1], Whole)), (1 << 18, 1, 2, 1 << 17, 1));
}

#[test]
fn rank_0_and_1_are_one_row_unless_a_row_length_is_given() {
    assert_eq!(figures(&cut(Dtype::F32, &[], Rows)), (1, 4, 1, 65_536, 1));
    assert_eq!(figures(&cut(Dtype::F32, &[7], Rows)), (1, 28, 1, 8192, 1));
    let rows_of_3 = |shape: &[u64]| Geometry::new(Dtype::F32, shape, Rows, Some(3));
    assert_eq!(rows_of_3(&[9]).map(|geometry| (geometry.n_rows(), geometry.row_elems())), Ok((3, 3)));
    assert_eq!(rows_of_3(&[0]).map(|geometry| (geometry.n_rows(), geometry.row_elems())), Ok((0, 3)));
    assert_eq!(rows_of_3(&[7]), Err(Error::RowLength { row_elems: 3, n_elems: 7 }));
    assert_eq!(rows_of_3(&[]), Err(Error::RowLength { row_elems: 3, n_elems: 1 }));
    assert!(rows_of_3(&[2, 3]).is_ok(), "the shape's own row length may be repeated");
    let contradiction = Error::RowLengthFixed { row_elems: 3, own_elems: 6, shape: vec![2, 6] };
    assert_eq!(rows_of_3(&[2, 6]), Err(contradiction));
    for n_elems in [0, 7] {
        let result = Geometry::new(Dtype::F32, &[n_elems], Rows, Some(0));
        assert_eq!(result, Err(Error::RowLength { row_elems: 0, n_elems }));
    }
}

#[test]
fn a_zero_dimension_gives_zero_blocks() {
    for access in [Rows, Whole] {
        for (shape, n_rows) in [
            (&[0][..], 0),
            (&[0, 128], 0),
            (&[128, 0], 128),
            (&[0, 0], 0),
            (&[2, 1 << 63, 1 << 63, 0], 2),
            (&[1 << 63, 0], 1 << 63),
        ] {
            let geometry = cut(Dtype::F64, shape, access);
            assert_eq!((geometry.n_rows(), geometry.n_blocks(), geometry.raw_bytes()), (n_rows, 0, 0));
            assert_eq!(geometry.block(0), BlockShape::default());
        }
    }
}

#[test]
fn rows_of_partial_bytes_make_the_tensor_one_row() {
    let geometry = cut(Dtype::F4, &[4, 3], Rows);
    assert!(!geometry.is_gatherable());
    assert_eq!((geometry.n_rows(), geometry.row_elems(), geometry.row_bytes()), (1, 12, 6));
    assert_eq!((geometry.n_blocks(), geometry.block(0).raw_bytes), (1, 6));
    let geometry = cut(Dtype::F4, &[4, 2], Rows);
    assert!(geometry.is_gatherable());
    assert_eq!((geometry.n_rows(), geometry.row_bytes()), (4, 1));
    // Pieces of 128 Ki elements of 6 bits are 96 KiB.
    let geometry = cut(Dtype::F6E2m3, &[4, (1 << 20) + 1], Rows);
    assert!(!geometry.is_gatherable());
    assert_eq!((geometry.n_rows(), geometry.n_blocks()), (1, 33));
    assert_eq!((geometry.block(0).raw_bytes, geometry.block(32).raw_bytes), (96 << 10, 3));
    let geometry = cut(Dtype::F6E2m3, &[0, 3], Rows);
    assert_eq!((geometry.n_rows(), geometry.n_blocks()), (0, 0));
    for (shape, n_elems) in [(&[3, 3][..], 9), (&[], 1), (&[5], 5)] {
        let result = Geometry::new(Dtype::F4, shape, Rows, None);
        assert_eq!(result, Err(Error::PartialByte { dtype: Dtype::F4, n_elems }));
    }
}

#[test]
fn counts_past_32_bits_are_exact() {
    // 5 GiB of rank 1: 3 * 2^30 - 1 bf16 elements do not fit an i32, their bytes do not fit a u32.
    let n_elems = (5 << 29) - 1;
    let geometry = cut(Dtype::Bf16, &[n_elems], Rows);
    assert_eq!(geometry.raw_bytes(), 2 * n_elems);
    assert_eq!((geometry.n_blocks(), geometry.pieces_per_row()), (20_480, 20_480));
    let last = geometry.block(20_479);
    assert_eq!(last.columns, (1 << 17) - 1);
    assert_eq!(last.byte_offset + last.raw_bytes, geometry.raw_bytes());

    // A terabyte of features: 2^31 + 1 rows of 256 bf16.
    let geometry = cut(Dtype::Bf16, &[(1 << 31) + 1, 256], Rows);
    assert_eq!(geometry.raw_bytes(), ((1 << 31) + 1) * 512);
    assert_eq!(geometry.locate(1 << 31), (1 << 22, 0));
    assert_eq!(geometry.block(1 << 22).byte_offset, 1 << 40);

    let geometry = cut(Dtype::U8, &[1 << 31, 2], Whole);
    assert_eq!(geometry.locate((1 << 31) - 1), ((1 << 15) - 1, 65_535));
}

#[test]
fn what_does_not_fit_64_bits_is_refused_with_its_shape() {
    for shape in [
        &[1 << 32, 1 << 32][..],
        &[u64::MAX, 2],
        &[1 << 61],
        &[1 << 31, 1 << 30],
        &[u64::MAX],
        &[0, 1 << 63, 1 << 63],
        &[1 << 16; 4],
    ] {
        let refused = Error::ShapeOverflow { dtype: Dtype::F64, shape: shape.to_vec() };
        let result = Geometry::new(Dtype::F64, shape, Rows, None);
        assert_eq!(result, Err(refused.clone()));
        assert!(refused.to_string().contains(&format!("{shape:?}")));
    }
    let largest = cut(Dtype::F64, &[(1 << 58) - 1], Rows);
    assert_eq!(largest.block(largest.n_blocks() - 1).columns, (1 << 17) - 1);
    assert_eq!(Geometry::new(Dtype::U8, &[0; 65], Rows, None), Err(Error::Rank { rank: 65 }));
    assert_eq!(Geometry::new(Dtype::U8, &[1; 64], Rows, None).map(|g| g.raw_bytes()), Ok(1));
    let result = Geometry::new(Dtype::U8, &[0], Rows, Some(u64::MAX));
    assert_eq!(result, Err(Error::ShapeOverflow { dtype: Dtype::U8, shape: vec![0] }));
}

#[test]
fn a_block_number_past_the_end_is_empty() {
    let geometry = cut(Dtype::U8, &[2, 3], Rows);
    for block_idx in [1, 1 << 31, 1 << 32, u64::MAX] {
        assert_eq!(geometry.block(block_idx), BlockShape::default());
    }
}
