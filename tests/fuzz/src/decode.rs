//! Hostile blocks and metadata, decoded.

use tierpack_kernels::block::{Block, needed_len};
use tierpack_kernels::codec::{RowRead, Scratch, decode_block, decode_row};
use tierpack_kernels::geometry::{Geometry, MAX_BLOCK_RAW_BYTES};
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, Level};
use tierpack_shm::types::index;

use crate::input::Input;
use crate::parts::{self, Heads};

/// Rows that are read one by one.
const MAX_ROWS: u64 = 5;

/// A tensor, metadata and a block: all errors, or output of the right length, the same on every level.
///
/// Flags: bit 0, metadata are made right; bit 1, so is the block; bits 2 and 3, its heads.
/// Then a tensor, the number of the block, metadata, the block.
///
/// # Panics
/// Where something is wrong.
pub fn decode(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.u8();
    let Some(geometry) = input.tensor() else { return };
    if geometry.n_blocks() == 0 {
        assert!(Metadata::parse(input.rest(), &geometry).is_err(), "metadata of a tensor without blocks");
        return;
    }
    let block_idx = u64::from(input.u8()) % geometry.n_blocks();
    let right = flags & 1 != 0;
    let metadata = if right {
        parts::metadata(&geometry, &mut input)
    } else {
        let len = input.u16();
        input.take(len.into()).to_vec()
    };
    let coders = coders(&metadata, &geometry, right);
    let made = match &coders {
        Some([coder, _]) if flags & 2 != 0 => {
            let Some(bytes) =
                parts::block((coder, &metadata), &geometry, block_idx, Heads::of(flags >> 2), input)
            else {
                return;
            };
            let block = Block::parse(&bytes).expect("a header made by the text is accepted");
            assert_eq!(block.verify_crc(), Ok(()));
            bytes
        }
        _ => input.rest().to_vec(),
    };
    let is_made = coders.is_some() && flags & 2 != 0;
    let whole = decode_whole(&made, coders.as_ref());
    if let Some(coders) = &coders {
        // Only a block with the tensor's own header is promised to have the same rows.
        decode_rows(&made, coders, &geometry, block_idx, whole.filter(|_| is_made).as_deref());
    }
}

/// The coder of every level, where the metadata are accepted.
fn coders(bytes: &[u8], geometry: &Geometry, right: bool) -> Option<[Coder; 2]> {
    let metadata = Metadata::parse(bytes, geometry);
    if right {
        assert!(metadata.is_ok(), "{metadata:?}: metadata made by the text are accepted");
    }
    let metadata = metadata.ok()?;
    assert_eq!(metadata.to_bytes(), bytes[..index(metadata.len_bytes())]);
    let coder = Coder::new(&metadata, geometry).expect("metadata were checked against this tensor");
    Some([coder.clone().with_level(Level::Scalar), coder.with_level(Level::Bmi2)])
}

/// What the block decodes to, if every check passes.
fn decode_whole(bytes: &[u8], coders: Option<&[Coder; 2]>) -> Option<Vec<u8>> {
    let block = Block::parse(bytes).ok()?;
    assert_eq!(needed_len(bytes), Ok(block.bytes().len() as u64));
    assert!(block.raw_bytes() <= MAX_BLOCK_RAW_BYTES);
    // Decoded whatever the checksum says: damage that it does not catch must do no harm.
    drop(block.verify_crc());
    let decode = |coder: Option<&Coder>| {
        let mut out = vec![0xA5; index(block.raw_bytes())];
        decode_block(&block, coder, &mut out).ok().map(|()| out)
    };
    let Some([scalar, fast]) = coders else { return decode(None) };
    let decoded = decode(Some(scalar));
    assert!(decoded == decode(Some(fast)), "levels differ");
    decoded
}

/// Rows of the block, from all of its bytes and from the front alone.
fn decode_rows(bytes: &[u8], coders: &[Coder; 2], geometry: &Geometry, block_idx: u64, whole: Option<&[u8]>) {
    let shape = geometry.block(block_idx);
    let row_bytes = index(shape.row_bytes);
    let mut scratch = Scratch::new();
    let front = &bytes[..bytes.len().min(index(coders[0].front_end(block_idx)))];
    for row in 0..shape.rows.min(MAX_ROWS) {
        for bytes in [front, bytes] {
            let [scalar, fast] = coders.each_ref().map(|coder| {
                let mut out = vec![0x5A; row_bytes];
                let read = decode_row(coder, block_idx, row, bytes, &mut out, &mut scratch);
                (read.as_ref() == Ok(&RowRead::Done)).then_some(out).ok_or(read)
            });
            assert!(scalar == fast, "levels differ in row {row}");
            // A damaged record may claim more bits than the front has: then the two ways to read give different
            // words, and only all of the bytes promise those of `decode_block`.
            let Some(whole) = whole.filter(|_| bytes.len() > front.len()) else { continue };
            let expected = &whole[index(row) * row_bytes..][..row_bytes];
            assert!(scalar.is_ok_and(|out| out == expected), "row {row} is not that of the block");
        }
    }
}
