//! Damaged blocks and metadata of the codecs with records: an error or some output of the right length, the same on
//! every level, never a panic.

use tierpack_kernels::block::{Block, HEADER_BYTES, needed_len};
use tierpack_kernels::codec::{self, Encoding, Scratch};
use tierpack_kernels::fit;
use tierpack_kernels::geometry::{Geometry, MAX_BLOCK_RAW_BYTES};
use tierpack_kernels::metadata::{MAX_METADATA_BYTES, Metadata};
use tierpack_kernels::{Coder, Error, Level};
use tierpack_shm::types::{Access, CodecId, Dtype, index};

/// A small tensor whose block has packed records, overflow, and a record that is raw.
struct Stored {
    geometry: Geometry,
    metadata: Vec<u8>,
    coder: Coder,
    block: Vec<u8>,
}

fn stored(codec: CodecId, access: Access) -> Stored {
    let geometry = Geometry::new(Dtype::Bf16, &[20, 15], access, None).expect("a valid shape");
    let word = |i: u16| match i {
        // Row 6 fits no mask; elsewhere an exponent or two strays.
        90..105 => i.wrapping_mul(40_503),
        // Few words differ from one.
        i if codec == CodecId::Sparse && i % 9 == 0 => 0x4000,
        _ if codec == CodecId::Sparse => 0x3F80,
        i if i % 23 == 0 => 0xC2A0 ^ i << 5,
        i => 0x3F00 | i.wrapping_mul(77) & 0x7F,
    };
    let raw: Vec<u8> = (0..300).flat_map(|i| word(i).to_le_bytes()).collect();
    let fit = fit::fit(codec, &geometry, &[(fit::Piece::block(&geometry, 0), &raw)]).expect("a fit");
    let metadata = fit.metadata.expect("metadata").with_generation(3);
    let coder = Coder::new(&metadata, &geometry).expect("metadata of this tensor");
    let mut block = Vec::new();
    let encoding = Encoding::Coded(&coder);
    let encoded = codec::encode_block(encoding, &geometry, 0, &raw, &mut block).expect("a block");
    assert_eq!(encoded.codec, codec, "the block shrinks");
    Stored { geometry, metadata: metadata.to_bytes(), coder, block }
}

fn every() -> impl Iterator<Item = Stored> {
    CodecId::ALL[1..]
        .iter()
        .copied()
        .flat_map(|codec| [Access::Rows, Access::Whole].map(|access| stored(codec, access)))
}

/// Reads bytes in every way that there is; lengths are right, nothing panics, and levels agree.
fn read(stored: &Stored, bytes: &[u8]) {
    let by_level: Vec<_> = Level::ALL
        .iter()
        .map(|&level| {
            let coder = stored.coder.clone().with_level(level);
            let block = Block::parse(bytes).ok().map(|block| {
                assert!(block.raw_bytes() <= MAX_BLOCK_RAW_BYTES);
                let mut out = vec![0; index(block.raw_bytes())];
                codec::decode_block(&block, Some(&coder), &mut out).map(|()| out)
            });
            let mut scratch = Scratch::new();
            let rows = [0, 6, 19, 20].map(|i| {
                let mut row = [0; 30];
                codec::decode_row(&coder, 0, i, bytes, &mut row, &mut scratch).map(|()| row)
            });
            (block, rows)
        })
        .collect();
    assert!(by_level.iter().all(|found| *found == by_level[0]), "levels differ: {:?}", stored.coder.codec());
}

#[test]
fn every_truncation_of_a_block_is_an_error() {
    for stored in every() {
        for len in 0..stored.block.len() {
            let cut = &stored.block[..len];
            assert!(matches!(Block::parse(cut), Err(Error::BlockTruncated { .. })), "cut to {len} bytes");
            read(&stored, cut);
            let needed = needed_len(cut);
            let enough = len >= index(HEADER_BYTES);
            assert_eq!(needed.is_ok_and(|needed| needed == stored.block.len() as u64), enough);
        }
    }
}

#[test]
fn every_change_of_one_byte_of_a_block_is_an_error() {
    for stored in every() {
        for offset in 0..stored.block.len() {
            for change in [1, 2, 4, 8, 16, 32, 64, 128, 255, 0x55] {
                let mut bytes = stored.block.clone();
                bytes[offset] ^= change;
                let checked = Block::parse(&bytes).and_then(|block| block.verify_crc());
                assert!(checked.is_err(), "byte {offset} changed by {change:#04x}");
                read(&stored, &bytes);
            }
        }
    }
}

#[test]
fn hostile_header_fields_are_errors() {
    for stored in every() {
        for offset in (4..48).step_by(4) {
            for value in [0, 1, 4, 8, 1 << 16, 1 << 31, u32::MAX - 3, u32::MAX] {
                let mut bytes = stored.block.clone();
                bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
                if bytes != stored.block {
                    let checked = Block::parse(&bytes).and_then(|block| block.verify_crc());
                    assert!(checked.is_err(), "field at {offset} set to {value}");
                }
                assert!(needed_len(&bytes).is_err() || needed_len(&bytes) == needed_len(&stored.block));
                read(&stored, &bytes);
            }
        }
    }
}

#[test]
fn hostile_heads_are_errors_or_some_output() {
    for stored in every() {
        let block = Block::parse(&stored.block).expect("a good block");
        let (front_len, mut out) = (block.front().len(), vec![0; index(block.raw_bytes())]);
        let mut overflows = 0;
        for offset in index(HEADER_BYTES)..index(HEADER_BYTES) + front_len - 4 {
            for value in [0, 1 << 31, 0x7FFF_FFFE, 0xFFFF_FFFE, u32::MAX, 1 << 30 | 1 << 31] {
                let mut bytes = stored.block.clone();
                bytes[offset..offset + 4].copy_from_slice(&u32::to_le_bytes(value));
                read(&stored, &bytes);
                let block = Block::parse(&bytes).expect("the header is good");
                let result = codec::decode_block(&block, Some(&stored.coder), &mut out);
                let missing = matches!(result, Err(Error::Overflow { .. } | Error::NoEscape { .. }));
                overflows += usize::from(missing);
                assert!(missing || result == Ok(()), "{result:?}");
            }
        }
        assert_ne!(overflows, 0, "offsets past the overflow are found");
    }
}

#[test]
fn every_truncation_of_metadata_is_an_error() {
    for Stored { metadata, geometry, .. } in every() {
        assert!(Metadata::parse(&metadata, &geometry).is_ok());
        for len in 0..metadata.len() {
            let result = Metadata::parse(&metadata[..len], &geometry);
            assert!(matches!(result, Err(Error::MetadataTruncated { .. })), "cut to {len} bytes");
        }
    }
}

#[test]
fn every_change_of_one_byte_of_metadata_is_an_error() {
    for Stored { metadata, geometry, .. } in every() {
        for offset in 0..metadata.len() {
            for change in 1..=u8::MAX {
                let mut bytes = metadata.clone();
                bytes[offset] ^= change;
                let result = Metadata::parse(&bytes, &geometry);
                assert!(result.is_err(), "byte {offset} changed by {change:#04x}");
            }
        }
    }
}

#[test]
fn hostile_metadata_fields_are_errors_even_with_their_checksum() {
    for Stored { metadata, geometry, .. } in every() {
        assert!(metadata.len() as u64 <= MAX_METADATA_BYTES);
        for offset in 0..metadata.len() {
            for value in [0, 1, 2, 3, 4, 5, 8, 16, 0x7F, 0x80, 0xFF] {
                let mut bytes = metadata.clone();
                bytes[offset] = value;
                bytes[40..44].fill(0);
                let checksum = crc32c(&bytes);
                bytes[40..44].copy_from_slice(&checksum.to_le_bytes());
                // What still parses may be used.
                if let Ok(metadata) = Metadata::parse(&bytes, &geometry) {
                    let coder = Coder::new(&metadata, &geometry).expect("metadata of this tensor");
                    let mut out = Vec::new();
                    let raw = [0x3F; 600];
                    let encoding = Encoding::Coded(&coder);
                    codec::encode_block(encoding, &geometry, 0, &raw, &mut out).expect("a block");
                    let mut decoded = [0; 600];
                    let block = Block::parse(&out).expect("a good block");
                    codec::decode_block(&block, Some(&coder), &mut decoded).expect("a decode");
                    assert_eq!(decoded, raw);
                }
            }
        }
    }
}

/// CRC-32C by its definition, one bit at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    let byte = |crc: u32, &byte: &u8| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc));
    !bytes.iter().fold(u32::MAX, byte)
}

#[test]
fn metadata_of_another_tensor_are_refused() {
    let Stored { metadata, .. } = stored(CodecId::Ibp, Access::Rows);
    for (dtype, shape, access, field) in [
        (Dtype::F16, [10, 15], Access::Rows, "dtype"),
        (Dtype::Bf16, [10, 15], Access::Whole, "access"),
        (Dtype::Bf16, [10, 16], Access::Rows, "row_bytes"),
    ] {
        let other = Geometry::new(dtype, &shape, access, None).expect("a valid shape");
        let result = Metadata::parse(&metadata, &other);
        assert!(matches!(result, Err(Error::MetadataField { field: found, .. }) if found == field));
    }
    let text =
        Metadata::parse(b"PK\x03\x04", &stored(CodecId::Ibp, Access::Rows).geometry).expect_err("short");
    assert_eq!(text.to_string(), "metadata need 48 bytes, only 4 are there");
}

#[test]
fn rows_and_outputs_that_do_not_belong_to_the_block_are_refused() {
    let stored = stored(CodecId::Ibp, Access::Rows);
    let mut scratch = Scratch::new();
    let mut read = |block_idx, row, out: &mut [u8]| {
        codec::decode_row(&stored.coder, block_idx, row, &stored.block, out, &mut scratch)
    };
    assert_eq!(read(1, 0, &mut [0; 30]), Err(Error::NoSuchBlock { block_idx: 1, n_blocks: 1 }));
    assert_eq!(read(0, 20, &mut [0; 30]), Err(Error::NoSuchRow { row_in_block: 20, rows: 20 }));
    assert_eq!(read(0, 0, &mut [0; 29]), Err(Error::OutputLength { needed: 30, got: 29 }));
}
