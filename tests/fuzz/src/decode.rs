//! Hostile blocks and metadata, decoded.

use tierpack_kernels::block::{Block, HEADER_BYTES, needed_len};
use tierpack_kernels::codec::{Scratch, decode_block, decode_row};
use tierpack_kernels::geometry::{BlockShape, Geometry, MAX_BLOCK_RAW_BYTES};
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, Level, Result};
use tierpack_shm::types::{CodecId, index};

use crate::front::Front;
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
        Some(_) if flags & 2 != 0 => {
            let heads = Heads::of(flags >> 2);
            let Some(bytes) = parts::block(&metadata, &geometry, block_idx, heads, input) else { return };
            let block = Block::parse(&bytes).expect("a header made by the text is accepted");
            assert_eq!(block.verify_crc(), Ok(()));
            bytes
        }
        _ => input.rest().to_vec(),
    };
    let is_made = coders.is_some() && flags & 2 != 0;
    let whole = decode_whole(&made, coders.as_deref());
    if let Some(coders) = &coders {
        let front_len = Front::of(&geometry, &metadata, block_idx).map_or(0, |front| front.len());
        let front = &made[..made.len().min(index(HEADER_BYTES + front_len))];
        // Only a block with the tensor's own header is promised to have the same rows.
        let whole = whole.filter(|_| is_made);
        decode_rows([front, &made], coders, &geometry.block(block_idx), block_idx, whole.as_deref());
    }
}

/// The coder of every level, where the metadata are accepted.
fn coders(bytes: &[u8], geometry: &Geometry, right: bool) -> Option<Vec<Coder>> {
    let metadata = Metadata::parse(bytes, geometry);
    if right {
        assert!(metadata.is_ok(), "{metadata:?}: metadata made by the text are accepted");
    }
    let metadata = metadata.ok()?;
    assert_eq!(metadata.to_bytes(), bytes[..index(metadata.len_bytes())]);
    let coder = Coder::new(&metadata, geometry).expect("metadata were checked against this tensor");
    Some(Level::ALL.iter().map(|&level| coder.clone().with_level(level)).collect())
}

/// What every level makes of the bytes: the same output, or the same error.
fn by_every_level(
    coders: &[Coder],
    mut decode: impl FnMut(&Coder) -> Result<Vec<u8>>,
) -> Option<Result<Vec<u8>>> {
    let (scalar, others) = coders.split_first()?;
    let decoded = decode(scalar);
    for coder in others {
        assert!(decode(coder) == decoded, "{} differs", coder.level());
    }
    Some(decoded)
}

/// What the block decodes to, if every check passes.
fn decode_whole(bytes: &[u8], coders: Option<&[Coder]>) -> Option<Vec<u8>> {
    let block = Block::parse(bytes).ok()?;
    assert_eq!(needed_len(bytes), Ok(block.bytes().len() as u64));
    assert!(block.raw_bytes() <= MAX_BLOCK_RAW_BYTES);
    // Decoded whatever the checksum says: damage that it does not catch must do no harm.
    drop(block.verify_crc());
    let decode = |coder: Option<&Coder>| {
        let mut out = vec![0xA5; index(block.raw_bytes())];
        decode_block(&block, coder, &mut out).map(|()| out)
    };
    match coders {
        None => decode(None).ok(),
        Some(coders) => by_every_level(coders, |coder| decode(Some(coder)))?.ok(),
    }
}

/// Rows of the block, from the front alone and from all of its bytes.
fn decode_rows(
    [front, bytes]: [&[u8]; 2],
    coders: &[Coder],
    shape: &BlockShape,
    block_idx: u64,
    whole: Option<&[u8]>,
) {
    let row_bytes = index(shape.row_bytes);
    let mut scratch = Scratch::new();
    // Of `planes`, no record reads what is not its own.
    let exact = coders.iter().all(|coder| !matches!(coder.codec(), CodecId::Ibp | CodecId::IbpWindow));
    for row in 0..shape.rows.min(MAX_ROWS) {
        let mut read = |bytes: &[u8]| {
            by_every_level(coders, |coder| {
                let mut out = vec![0x5A; row_bytes];
                decode_row(coder, block_idx, row, bytes, &mut out, &mut scratch).map(|()| out)
            })
        };
        let (from_front, from_all) = (read(front), read(bytes));
        // A damaged record may claim more bits than the front has: then the two ways to read give different words,
        // and only all of the bytes promise those of `decode_block`.
        let Some(whole) = whole else { continue };
        let expected = &whole[index(row) * row_bytes..][..row_bytes];
        let is_expected = |read: Option<Result<Vec<u8>>>| matches!(read, Some(Ok(out)) if out == expected);
        assert!(is_expected(from_all), "row {row} is not that of the block");
        let fails = matches!(from_front, Some(Err(_)));
        assert!(
            !exact || fails || is_expected(from_front),
            "row {row} of the front is not that of the block"
        );
    }
}
