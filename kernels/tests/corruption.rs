//! Damaged blocks: an error from parse or checksum, never a panic, never a large allocation.

use proptest::prelude::*;
use tierpack_kernels::block::Block;
use tierpack_kernels::geometry::{Geometry, MAX_BLOCK_RAW_BYTES};
use tierpack_kernels::{Error, Result, codec};
use tierpack_shm::types::{Access, Dtype, index};

/// A block of 5 rows of 3 bf16 values.
fn good_block() -> Vec<u8> {
    let geometry = Geometry::new(Dtype::Bf16, &[5, 3], Access::Rows, None).expect("a valid shape");
    let raw: Vec<u8> = (100..130).collect();
    let mut bytes = Vec::new();
    codec::encode_block(codec::Encoding::Raw, &geometry, 0, &raw, &mut bytes).expect("a block");
    bytes
}

/// What a reader of a file does.
fn check(bytes: &[u8]) -> Result<()> {
    Block::parse(bytes)?.verify_crc()
}

/// Decodes what parses, whatever its checksum: some output of the right length.
fn decode_if_parsed(bytes: &[u8]) {
    if let Ok(block) = Block::parse(bytes) {
        assert!(block.raw_bytes() <= MAX_BLOCK_RAW_BYTES);
        let mut out = vec![0; index(block.raw_bytes())];
        assert_eq!(codec::decode_block(&block, None, &mut out), Ok(()));
    }
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = good_block();
    assert_eq!(check(&bytes), Ok(()));
    for len in 0..bytes.len() {
        assert!(matches!(check(&bytes[..len]), Err(Error::BlockTruncated { .. })), "cut to {len} bytes");
    }
}

#[test]
fn every_change_of_one_byte_is_an_error() {
    let good = good_block();
    for offset in 0..good.len() {
        for change in 1..=u8::MAX {
            let mut bytes = good.clone();
            bytes[offset] ^= change;
            assert!(check(&bytes).is_err(), "byte {offset} changed by {change:#04x}");
            decode_if_parsed(&bytes);
        }
    }
}

#[test]
fn hostile_fields_are_errors() {
    let good = good_block();
    let hostile = [0, 1, 1 << 31, u32::MAX];
    // generation, rows, columns, records, record_stride, tail_stride, overflow_len, total_len
    for offset in (8..40).step_by(4) {
        for value in hostile {
            let mut bytes = good.clone();
            bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
            decode_if_parsed(&bytes);
            if bytes != good {
                assert!(check(&bytes).is_err(), "field at {offset} set to {value}");
            }
            for second in (8..40).step_by(4) {
                for other in hostile {
                    let mut bytes = bytes.clone();
                    bytes[second..second + 4].copy_from_slice(&other.to_le_bytes());
                    decode_if_parsed(&bytes);
                }
            }
        }
    }
}

#[test]
fn an_error_says_what_is_wrong_in_one_line() {
    let mut newer = good_block();
    newer[4] = 9;
    let text = check(&newer).expect_err("a newer version").to_string();
    assert_eq!(
        text,
        "block has format version 9, made by a newer TierPack: this one reads version 1, update it"
    );
    let text = check(b"PK\x03\x04").expect_err("four bytes").to_string();
    assert_eq!(text, "block needs 64 bytes, only 4 are there");
}

proptest! {
    #[test]
    fn any_bytes_are_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(check(&bytes).is_err());
    }

    #[test]
    fn any_counts_and_lengths_are_errors(
        fields in proptest::collection::vec(prop_oneof![0..20_u32, any::<u32>()], 9),
        dtype in 0..25_u8,
        len in 0..300_usize,
    ) {
        let mut bytes = good_block();
        bytes[7] = dtype;
        for (i, value) in fields.iter().enumerate() {
            bytes[8 + 4 * i..12 + 4 * i].copy_from_slice(&value.to_le_bytes());
        }
        bytes.resize(len, 0x5A);
        decode_if_parsed(&bytes);
        // The ninth field is the checksum: a random one fits once in 2^32.
        prop_assert!(check(&bytes).is_err());
    }
}
