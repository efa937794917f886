//! Every bit pattern of every dtype comes back, whole and row by row, from any address.

use proptest::prelude::*;
use tierpack_kernels::block::{Block, HEADER_BYTES};
use tierpack_kernels::codec;
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{Access, Dtype, index};

/// Encodes, checks and decodes all of a tensor, block by block; then reads each row by arithmetic.
fn round_trip(geometry: &Geometry, raw: &[u8]) -> tierpack_kernels::Result<()> {
    let mut encoded = Vec::new();
    let mut decoded = vec![0xA5; raw.len()];
    let mut gathered = Vec::new();
    for block_idx in 0..geometry.n_blocks() {
        let shape = geometry.block(block_idx);
        let range = index(shape.byte_offset)..index(shape.byte_offset + shape.raw_bytes);
        codec::encode_block(codec::Encoding::Raw, geometry, block_idx, &raw[range.clone()], &mut encoded)?;
        assert_eq!(encoded.len() as u64, HEADER_BYTES + shape.raw_bytes);
        assert!(encoded.len() as u64 <= codec::max_encoded_len(&shape));

        let block = Block::parse(&encoded)?;
        block.verify_crc()?;
        assert_eq!(block.dtype(), geometry.dtype());
        assert_eq!((u64::from(block.rows()), u64::from(block.columns())), (shape.rows, shape.columns));
        codec::decode_block(&block, None, &mut decoded[range.clone()])?;
        assert_eq!(codec::raw_payload(&encoded, shape.raw_bytes), Some(&raw[range]));
        for row in 0..shape.rows {
            gathered.extend_from_slice(codec::raw_row(&encoded, shape.row_bytes, row).expect("a row"));
        }
        assert_eq!(codec::raw_row(&encoded, shape.row_bytes, shape.rows), None);
    }
    assert!(decoded == raw && gathered == raw, "{geometry:?}");
    Ok(())
}

fn round_trip_shape(dtype: Dtype, shape: &[u64], raw: &[u8]) {
    for access in [Access::Rows, Access::Whole] {
        let geometry = Geometry::new(dtype, shape, access, None).expect("a valid shape");
        round_trip(&geometry, raw).expect("a round trip");
    }
}

/// Bytes of a fixed sequence, all different in their neighborhood (Knuth's 64-bit LCG).
fn noise(len: usize) -> Vec<u8> {
    let step = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(state.to_be_bytes()[0])
    };
    std::iter::repeat_with({
        let mut state = 1;
        move || step(&mut state)
    })
    .flatten()
    .take(len)
    .collect()
}

#[test]
fn every_16_bit_pattern_survives() {
    let raw: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::I16, Dtype::U16] {
        for shape in [&[65_536][..], &[256, 256], &[65_536, 1], &[1, 65_536]] {
            round_trip_shape(dtype, shape, &raw);
        }
    }
}

#[test]
fn every_byte_pattern_survives() {
    let raw: Vec<u8> = (0..=u8::MAX).collect();
    for &dtype in Dtype::ALL {
        let n_elems = 256 * 8 / u64::from(dtype.bits());
        if n_elems * u64::from(dtype.bits()) == 256 * 8 {
            round_trip_shape(dtype, &[n_elems], &raw);
        }
    }
    // 256 bytes are no whole number of 6-bit elements: three copies are.
    for dtype in [Dtype::F6E2m3, Dtype::F6E3m2] {
        round_trip_shape(dtype, &[16, 64], &raw.repeat(3));
    }
}

#[test]
fn special_floats_survive() {
    let f32_words: Vec<u32> = (0..20)
        .flat_map(|payload| [0x7F80_0001 + (payload << 16), 0x7FC0_0000 | payload, 0xFF80_0001 + payload])
        .chain([0, 0x8000_0000, 1, 0x8000_0001, 0x007F_FFFF, 0x807F_FFFF, 0x7F80_0000, 0xFF80_0000])
        .collect();
    let raw: Vec<u8> = f32_words.iter().flat_map(|word| word.to_le_bytes()).collect();
    round_trip_shape(Dtype::F32, &[4, 17], &raw);
    round_trip_shape(Dtype::C64, &[34], &raw);
    let f64_words: Vec<u64> = f32_words.iter().map(|&word| u64::from(word) << 32 | 1).collect();
    let raw: Vec<u8> = f64_words.iter().flat_map(|word| word.to_le_bytes()).collect();
    round_trip_shape(Dtype::F64, &[17, 4], &raw);
}

#[test]
fn every_dtype_survives_in_ragged_rows() {
    for &dtype in Dtype::ALL {
        for columns in [1_u64, 3, 31, 32, 33, 1023, 1024, 1025] {
            // 12 rows are whole bytes for every width; rows of 4-bit elements may not be.
            let bytes = index(12 * columns * u64::from(dtype.bits()) / 8);
            round_trip_shape(dtype, &[12, columns], &noise(bytes));
        }
    }
}

#[test]
fn rows_longer_than_a_block_survive() {
    for (dtype, shape) in [
        (Dtype::U8, &[2, (1 << 18) + 1][..]),
        (Dtype::Bf16, &[3, 131_073]),
        (Dtype::F64, &[2, 131_073]),
        (Dtype::F6E3m2, &[1, 400_004]),
        (Dtype::F4, &[2, 600_001]),
        (Dtype::F32, &[300_001]),
    ] {
        let bits = shape.iter().product::<u64>() * u64::from(dtype.bits());
        round_trip_shape(dtype, shape, &noise(index(bits / 8)));
    }
}

#[test]
fn a_block_parses_at_any_address() {
    let geometry = Geometry::new(Dtype::F64, &[2, 3], Access::Rows, None).expect("a valid shape");
    let raw = noise(48);
    let mut encoded = Vec::new();
    codec::encode_block(codec::Encoding::Raw, &geometry, 0, &raw, &mut encoded).expect("a block");
    for offset in 0..16 {
        let mut shifted = vec![0; offset];
        shifted.extend_from_slice(&encoded);
        let block = Block::parse(&shifted[offset..]).expect("a good block");
        let mut decoded = [0; 49];
        let start = offset % 2;
        codec::decode_block(&block, None, &mut decoded[start..start + 48]).expect("a decode");
        assert_eq!(decoded[start..start + 48], raw);
    }
}

proptest! {
    #[test]
    fn random_tensors_survive(
        dtype in proptest::sample::select(Dtype::ALL),
        shape in proptest::collection::vec(1..12_u64, 0..=4),
        whole in any::<bool>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..300),
    ) {
        let access = if whole { Access::Whole } else { Access::Rows };
        if let Ok(geometry) = Geometry::new(dtype, &shape, access, None) {
            let raw: Vec<u8> = bytes.iter().copied().cycle().take(index(geometry.raw_bytes())).collect();
            round_trip(&geometry, &raw)?;
        }
    }
}
