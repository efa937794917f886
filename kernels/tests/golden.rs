//! Golden block: written once by format version 1, read and written byte for byte forever.

use tierpack_kernels::block::{Block, FORMAT_VERSION};
use tierpack_kernels::codec;
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{Access, CodecId, Dtype};

/// Two rows of three bf16 values: 1.0, -0.0, +infinity; a signaling NaN, the smallest subnormal, -2.5.
const VALUES: [u16; 6] = [0x3F80, 0x8000, 0x7F80, 0x7F81, 0x0001, 0xC020];

/// The block of [`VALUES`]; never change it.
const GOLDEN_V1: &str = "\
    54504231 0100 01 0f 00000000 02000000 03000000 02000000 \
    00000000 06000000 00000000 4c000000 446f5eb5 00000000 \
    00000000 00000000 00000000 00000000 \
    803f 0080 807f 817f 0100 20c0";

fn golden() -> Vec<u8> {
    let digits: Vec<u8> = GOLDEN_V1.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("two hex digits"))
        .collect()
}

fn raw() -> Vec<u8> {
    VALUES.into_iter().flat_map(u16::to_le_bytes).collect()
}

#[test]
fn version_1_still_writes_the_golden_block() {
    assert_eq!(FORMAT_VERSION, 1, "a new version gets a golden block of its own");
    let geometry = Geometry::new(Dtype::Bf16, &[2, 3], Access::Rows, None).expect("a valid shape");
    let mut bytes = Vec::new();
    codec::encode_block(codec::Encoding::Raw, &geometry, 0, &raw(), &mut bytes).expect("a block");
    assert_eq!(bytes, golden());
}

#[test]
fn the_golden_block_is_still_read() {
    let bytes = golden();
    let block = Block::parse(&bytes).expect("a good block");
    assert_eq!(block.verify_crc(), Ok(()));
    assert_eq!((block.codec(), block.dtype()), (CodecId::Raw, Dtype::Bf16));
    let mut out = vec![0; 12];
    codec::decode_block(&block, None, &mut out).expect("a decode");
    assert_eq!(out, raw());
}
