//! One test per rule of FORMAT.md, section "What a reader must reject".
//!
//! Each starts from a good block and changes one field; `tests/corruption.rs` changes everything.

use super::*;
use crate::codec::{self, Encoding};
use crate::geometry::Geometry;
use tierpack_shm::types::Access;

/// A block of 3 rows of 2 bf16 values.
fn block() -> Vec<u8> {
    let geometry = Geometry::new(Dtype::Bf16, &[3, 2], Access::Rows, None).unwrap();
    let mut bytes = Vec::new();
    codec::encode_block(Encoding::Raw, &geometry, 0, &[0x5A; 12], &mut bytes).unwrap();
    bytes
}

/// The error for a block whose bytes from `offset` on are replaced; the checksum is right.
fn refusal(changes: &[(usize, &[u8])]) -> Error {
    let mut bytes = block();
    for &(offset, value) in changes {
        bytes[offset..offset + value.len()].copy_from_slice(value);
    }
    let (mut header, body) = Header::read_from_prefix(&bytes).unwrap();
    header.crc32c = U32::new(checksum(header, body));
    bytes[40..44].copy_from_slice(header.crc32c.as_bytes());
    Block::parse(&bytes).expect_err("a changed block")
}

fn wrong_field(field: &'static str, found: u32, expected: u64) -> Error {
    Error::Field { field, found, expected }
}

#[test]
fn a_good_block_tells_what_it_is() {
    let mut bytes = block();
    bytes.resize(128, 0xEE);
    let block = Block::parse(&bytes).unwrap();
    assert_eq!((block.codec(), block.dtype(), block.generation()), (CodecId::Raw, Dtype::Bf16, 0));
    assert_eq!((block.rows(), block.columns(), block.records()), (3, 2, 3));
    assert_eq!((block.raw_bytes(), block.bytes().len()), (12, 76));
    assert_eq!(block.front(), [0x5A; 12]);
    assert_eq!(block.verify_crc(), Ok(()), "what follows the block is not part of it");
    assert!(format!("{block:?}").len() < 1000, "debug output leaves the payload out");
}

#[test]
fn rejects_truncated_blocks() {
    assert_eq!(Block::parse(&[]).unwrap_err(), Error::BlockTruncated { needed: 64, got: 0 });
    assert_eq!(Block::parse(&block()[..63]).unwrap_err(), Error::BlockTruncated { needed: 64, got: 63 });
    assert_eq!(Block::parse(&block()[..75]).unwrap_err(), Error::BlockTruncated { needed: 76, got: 75 });
}

#[test]
fn rejects_what_is_not_a_block() {
    assert_eq!(refusal(&[(0, b"TPB2")]), Error::NotABlock { found: *b"TPB2" });
    assert_eq!(Block::parse(&[0; 64]).unwrap_err(), Error::NotABlock { found: [0; 4] });
}

#[test]
fn rejects_versions_it_does_not_know() {
    assert_eq!(refusal(&[(4, &[2, 0])]), Error::UnknownVersion { found: 2 });
    assert_eq!(refusal(&[(4, &[0xFF, 0xFF])]), Error::UnknownVersion { found: 0xFFFF });
    assert_eq!(refusal(&[(4, &[0, 0])]), wrong_field("version", 0, 1));
    assert!(refusal(&[(4, &[2, 0])]).to_string().contains("newer TierPack"));
}

#[test]
fn rejects_codecs_and_dtypes_it_does_not_know() {
    for number in [0, 9, 255] {
        assert_eq!(refusal(&[(6, &[number])]), Error::UnknownCodec { number });
    }
    for number in [0, 23, 255] {
        assert_eq!(refusal(&[(7, &[number])]), Error::UnknownDtype { number });
    }
}

#[test]
fn rejects_reserved_bytes_in_use() {
    for offset in 45..64 {
        assert_eq!(refusal(&[(offset, &[1])]), Error::Reserved { offset, found: 1 });
    }
}

#[test]
fn rejects_empty_partial_and_oversized_blocks() {
    assert_eq!(refusal(&[(12, &[0; 4])]), Error::EmptyBlock { rows: 0, columns: 2 });
    assert_eq!(refusal(&[(16, &[0; 4])]), Error::EmptyBlock { rows: 3, columns: 0 });
    let odd_f4 = refusal(&[(7, &[Dtype::F4 as u8]), (16, &[5, 0, 0, 0])]);
    assert_eq!(odd_f4, Error::PartialByte { dtype: Dtype::F4, n_elems: 5 });
    // 2^19 + 1 elements of 2 bytes are one too many.
    let too_large = refusal(&[(12, &[1, 0, 0, 0]), (16, &[1, 0, 8, 0])]);
    assert_eq!(too_large, Error::BlockTooLarge { rows: 1, columns: (1 << 19) + 1, dtype: Dtype::Bf16 });
    // The product of all three overflows 64 bits.
    let overflow = refusal(&[(7, &[Dtype::F64 as u8]), (12, &[0xFF; 8])]);
    let most = u32::MAX;
    assert_eq!(overflow, Error::BlockTooLarge { rows: most, columns: most, dtype: Dtype::F64 });
}

#[test]
fn rejects_fields_that_contradict_codec_raw() {
    assert_eq!(refusal(&[(44, &[1])]), wrong_field("access", 1, 0));
    assert_eq!(refusal(&[(8, &[1])]), wrong_field("generation", 1, 0));
    assert_eq!(refusal(&[(20, &[6])]), wrong_field("records", 6, 3));
    assert_eq!(refusal(&[(24, &[4])]), wrong_field("record_stride", 4, 0));
    assert_eq!(refusal(&[(28, &[5])]), wrong_field("tail_stride", 5, 4));
    assert_eq!(refusal(&[(32, &[1])]), wrong_field("overflow_len", 1, 0));
    assert_eq!(refusal(&[(36, &[75])]), wrong_field("total_len", 75, 76));
    assert_eq!(refusal(&[(36, &[0xFF; 4])]), wrong_field("total_len", u32::MAX, 76));
}

#[test]
fn a_changed_byte_fails_the_checksum() {
    let mut bytes = block();
    bytes[70] ^= 0x10;
    let block = Block::parse(&bytes).unwrap();
    assert!(matches!(block.verify_crc(), Err(Error::Checksum { stored, computed }) if stored != computed));
}
