//! Hostile block headers: the parser is total, and its two ways in agree.

use tierpack_kernels::Error;
use tierpack_kernels::block::{Block, HEADER_BYTES, needed_len};
use tierpack_kernels::geometry::MAX_BLOCK_RAW_BYTES;
use tierpack_shm::types::index;

use crate::input::Input;
use crate::parts::{seal, set};

/// Fields that are corrected by what the error expects, at most: there are eight.
const MAX_CORRECTIONS: usize = 10;

/// A header and what follows it: an error, or a block whose lengths agree.
///
/// Flags: bit 0, magic and version are made right; bit 1, the shape is small; bit 2, fields are set to what the
/// errors say that they expect; bit 3, bytes that are missing are added and the checksum is made right.
///
/// # Panics
/// Where something is wrong.
pub fn block_header(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.u8();
    let mut bytes = input.rest().to_vec();
    if bytes.len() >= index(HEADER_BYTES) {
        repair(flags, &mut bytes);
    }
    let needed = needed_len(&bytes);
    if let Ok(needed) = needed {
        assert!((HEADER_BYTES..=HEADER_BYTES + MAX_BLOCK_RAW_BYTES).contains(&needed));
        if flags & 8 != 0 {
            bytes.resize(index(needed), 0);
            seal(&mut bytes);
        }
    }
    let got = bytes.len() as u64;
    let block = match (Block::parse(&bytes), needed) {
        (Ok(block), Ok(needed)) => {
            assert_eq!(block.bytes().len() as u64, needed);
            block
        }
        (Err(error), Ok(needed)) => {
            assert!(got < needed, "only length is checked after the header");
            return assert_eq!(error, Error::BlockTruncated { needed, got });
        }
        (parsed, Err(error)) => return assert_eq!(parsed.err(), Some(error), "two parsers"),
    };
    check(&block);
    let crc = block.verify_crc();
    assert!(flags & 8 == 0 || crc.is_ok(), "{crc:?}");
    assert!(Block::parse(&bytes[..block.bytes().len() - 1]).is_err(), "a byte is missing");
}

/// What holds of every block that is accepted.
fn check(block: &Block<'_>) {
    let raw_bits = u64::from(block.rows()) * u64::from(block.columns()) * u64::from(block.dtype().bits());
    assert_eq!(block.raw_bytes() * 8, raw_bits);
    assert!((1..=MAX_BLOCK_RAW_BYTES).contains(&block.raw_bytes()));
    let body_len = block.front().len() + block.overflow().len();
    assert_eq!(block.bytes().len(), index(HEADER_BYTES) + body_len);
    assert!(body_len as u64 <= block.raw_bytes());
    assert_eq!(block.access().is_none(), block.generation() == 0);
    assert!(block.records() >= 1);
}

fn repair(flags: u8, bytes: &mut [u8]) {
    if flags & 1 != 0 {
        bytes[..4].copy_from_slice(b"TPB1");
        set(bytes, 4, 1, 2);
        bytes[45..64].fill(0);
    }
    if flags & 2 != 0 {
        bytes[13..16].fill(0);
        bytes[18..20].fill(0);
    }
    for _ in 0..MAX_CORRECTIONS {
        let Err(Error::Field { field, expected, .. }) = needed_len(bytes) else { return };
        if flags & 4 == 0 {
            return;
        }
        let (at, len) = match field {
            "version" => (4, 2),
            "generation" => (8, 4),
            "records" => (20, 4),
            "record_stride" => (24, 4),
            "tail_stride" => (28, 4),
            "overflow_len" => (32, 4),
            "total_len" => (36, 4),
            _ => (44, 1),
        };
        set(bytes, at, expected, len);
    }
}
