//! Property: for every dtype, shape, access and row length, the blocks tile the tensor exactly.

use proptest::prelude::*;
use tierpack_kernels::geometry::{Geometry, MAX_BLOCK_RAW_BYTES};
use tierpack_shm::types::{Access, Dtype};

/// Blocks that one case walks at most.
const MAX_WALK: u64 = 4096;

fn dtype() -> impl Strategy<Value = Dtype> {
    proptest::sample::select(Dtype::ALL)
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::Rows), Just(Access::Whole)]
}

fn dimension() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0_u64),
        6 => 1..10_u64,
        4 => 10..2000_u64,
        2 => proptest::sample::select(vec![1024, 1025, 32_767, 32_769, 131_071, 131_072, 131_073, 262_145]),
        1 => 200_000..1_000_000_u64,
    ]
}

/// A shape of rank 0 to 5, and for rank 1 sometimes a row length that divides it.
fn shape() -> impl Strategy<Value = (Vec<u64>, Option<u64>)> {
    prop_oneof![
        4 => proptest::collection::vec(dimension(), 0..=5).prop_map(|shape| (shape, None)),
        1 => (dimension(), 1..400_000_u64).prop_map(|(n_rows, row)| (vec![n_rows * row], Some(row))),
    ]
}

/// Shapes of every magnitude, most of which do not fit 64 bits.
fn hostile_shape() -> impl Strategy<Value = Vec<u64>> {
    let dimension = || (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift);
    prop_oneof![
        4 => proptest::collection::vec(dimension(), 0..4),
        1 => proptest::collection::vec(dimension(), 0..70),
    ]
}

/// The bits of all elements, by the plainest arithmetic.
fn bits(dtype: Dtype, shape: &[u64]) -> u128 {
    shape.iter().fold(u128::from(dtype.bits()), |bits, &dimension| bits.saturating_mul(u128::from(dimension)))
}

fn check_tiling(geometry: &Geometry) -> Result<(), TestCaseError> {
    let mut end = 0;
    let mut rows_seen = 0;
    for block_idx in 0..geometry.n_blocks() {
        let block = geometry.block(block_idx);
        prop_assert!(block.rows > 0 && block.columns > 0);
        prop_assert_eq!(block.byte_offset, end);
        prop_assert_eq!(block.raw_bytes, block.rows * block.row_bytes);
        prop_assert!(block.raw_bytes <= MAX_BLOCK_RAW_BYTES);
        prop_assert_eq!(block.row_bytes * 8, block.columns * u64::from(geometry.dtype().bits()));
        end += block.raw_bytes;
        let piece = block_idx % geometry.pieces_per_row();
        if piece == 0 {
            prop_assert_eq!(block.first_row, rows_seen);
            prop_assert_eq!(block.byte_offset, block.first_row * geometry.row_bytes());
            rows_seen += block.rows;
        }
        if geometry.pieces_per_row() > 1 {
            prop_assert_eq!(block.rows, 1);
            let full = piece + 1 < geometry.pieces_per_row();
            prop_assert!(!full || block.columns == 128 << 10);
        } else {
            prop_assert_eq!(block.columns, geometry.row_elems());
            let last = block_idx + 1 == geometry.n_blocks();
            prop_assert!(last || block.rows == geometry.block_rows());
        }
    }
    prop_assert_eq!(end, geometry.raw_bytes());
    prop_assert_eq!(rows_seen, if geometry.n_blocks() == 0 { 0 } else { geometry.n_rows() });
    Ok(())
}

/// `locate` and `block` name the same place.
fn check_row(geometry: &Geometry, row: u64) -> Result<(), TestCaseError> {
    let (block_idx, row_in_block) = geometry.locate(row);
    let block = geometry.block(block_idx);
    prop_assert!(row_in_block < block.rows);
    prop_assert_eq!(block.first_row + row_in_block, row);
    prop_assert_eq!(block.byte_offset + row_in_block * block.row_bytes, row * geometry.row_bytes());
    let last = geometry.block(block_idx + geometry.pieces_per_row() - 1);
    if geometry.pieces_per_row() > 1 {
        prop_assert_eq!(last.first_row, row);
        prop_assert_eq!(last.byte_offset + last.raw_bytes, (row + 1) * geometry.row_bytes());
    }
    Ok(())
}

/// The rules that fix the rows of a block.
fn check_block_rows(geometry: &Geometry) -> Result<(), TestCaseError> {
    let (rows, row_bytes, row_elems) = (geometry.block_rows(), geometry.row_bytes(), geometry.row_elems());
    let in_pieces = match geometry.access() {
        Access::Rows => row_bytes > 256 << 10,
        Access::Whole => row_elems > 128 << 10,
    };
    if in_pieces {
        prop_assert_eq!(rows, 1);
        prop_assert_eq!(geometry.pieces_per_row(), row_elems.div_ceil(128 << 10));
        return Ok(());
    }
    prop_assert_eq!(geometry.pieces_per_row(), 1);
    match geometry.access() {
        Access::Rows => {
            prop_assert!(rows.is_power_of_two());
            prop_assert!(rows * row_bytes <= 256 << 10 && 2 * rows * row_bytes > 256 << 10);
        }
        Access::Whole => {
            prop_assert!(rows * row_elems <= 128 << 10 && (rows + 1) * row_elems > 128 << 10);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn blocks_tile_the_tensor(
        dtype in dtype(),
        (shape, row_elems) in shape(),
        access in access(),
        picks in proptest::collection::vec(any::<proptest::sample::Index>(), 8),
    ) {
        let bits = bits(dtype, &shape);
        let geometry = match Geometry::new(dtype, &shape, access, row_elems) {
            Ok(geometry) => geometry,
            Err(error) => {
                // A row may be too long even where there is none.
                let row_bits = self::bits(dtype, shape.get(1..).unwrap_or(&[]));
                let too_long = bits.max(row_bits) > u128::from(u64::MAX);
                prop_assert!(too_long || !bits.is_multiple_of(8), "{error}");
                return Ok(());
            }
        };
        prop_assert_eq!(u128::from(geometry.raw_bytes()) * 8, bits);
        prop_assert_eq!(geometry.n_blocks() == 0, bits == 0);
        if let Some(row_elems) = row_elems && geometry.is_gatherable() {
            prop_assert_eq!(geometry.row_elems(), row_elems);
        }
        if geometry.n_blocks() == 0 {
            return Ok(());
        }
        prop_assert_eq!(geometry.n_rows() * geometry.row_bytes(), geometry.raw_bytes());
        check_block_rows(&geometry)?;
        for pick in picks {
            let row = (pick.index(usize::MAX) as u64) % geometry.n_rows();
            check_row(&geometry, row)?;
        }
        check_row(&geometry, 0)?;
        check_row(&geometry, geometry.n_rows() - 1)?;
        if geometry.n_blocks() <= MAX_WALK {
            check_tiling(&geometry)?;
        }
    }

    #[test]
    fn any_shape_gives_a_geometry_or_an_error(
        dtype in dtype(),
        shape in hostile_shape(),
        access in access(),
        row_elems in any::<Option<u64>>(),
        block_idx in any::<u64>(),
    ) {
        if let Ok(geometry) = Geometry::new(dtype, &shape, access, row_elems) {
            prop_assert!(geometry.block(block_idx).raw_bytes <= MAX_BLOCK_RAW_BYTES);
            let last = geometry.block(geometry.n_blocks().wrapping_sub(1));
            prop_assert_eq!(last.byte_offset + last.raw_bytes, geometry.raw_bytes());
        }
    }
}
