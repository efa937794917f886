//! Encoded and decoded again: every word comes back, whatever the metadata.

use tierpack_kernels::block::{Block, HEADER_BYTES, needed_len, stored_len};
use tierpack_kernels::codec::{
    Encoding, Scratch, decode_block, decode_row, encode_block, max_encoded_len, raw_payload, raw_row,
};
use tierpack_kernels::fit::{choose, fit, pieces};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, Level};
use tierpack_shm::types::{CodecId, Prefer, index};

use crate::input::{Input, repeated};
use crate::parts;

/// Rows that are read one by one.
const MAX_ROWS: u64 = 5;

/// The most raw bytes of a tensor that is fitted: a fit measures many candidates.
const MAX_FIT_BYTES: u64 = 2560;

/// A tensor and how it is encoded: its words come back, on every level and by every way to read.
///
/// Mode, modulo 16: 0 raw, 1 and 2 fits of `ibp` and `ibp:window`, 3 the best of all, 12 a fit of `sparse`, 13 to 15 of
/// `planes`,
/// else metadata from the fuzzer.
/// Mode, from 128 on: the best of all is the fastest that is nearly the shortest.
/// Then a tensor, a mask of noise, metadata where the mode has them, the pattern of the raw bytes.
///
/// # Panics
/// Where something is wrong.
pub fn round_trip(data: &[u8]) {
    let mut input = Input::new(data);
    let mode = input.u8();
    let Some(geometry) = input.tensor() else { return };
    let noise = input.u8();
    if geometry.n_blocks() == 0 {
        assert!(pieces(&geometry, 0..1, 0).is_empty());
        return;
    }
    let given = (4..12).contains(&(mode % 16)).then(|| {
        let bytes = parts::metadata(&geometry, &mut input);
        Metadata::parse(&bytes, &geometry).expect("metadata made by the text are accepted")
    });
    let raw = repeated(input.rest(), noise, geometry.raw_bytes());
    let metadata = given.or_else(|| fitted(mode, &geometry, &raw));
    let coders = metadata.map_or_else(Vec::new, |metadata| {
        assert_eq!(Metadata::parse(&metadata.to_bytes(), &geometry).as_ref(), Ok(&metadata));
        let coder = Coder::new(&metadata, &geometry).expect("metadata for this tensor");
        Level::ALL.iter().map(|&level| coder.clone().with_level(level)).collect()
    });
    for block_idx in 0..geometry.n_blocks() {
        let shape = geometry.block(block_idx);
        let raw = &raw[index(shape.byte_offset)..][..index(shape.raw_bytes)];
        there_and_back(&geometry, block_idx, &coders, raw);
    }
}

/// Metadata of a fit; `None` for `raw`.
fn fitted(mode: u8, geometry: &Geometry, raw: &[u8]) -> Option<Metadata> {
    if geometry.raw_bytes() > MAX_FIT_BYTES {
        return None;
    }
    let pieces = pieces(geometry, 0..geometry.n_blocks(), 0);
    let sample: Vec<_> = pieces.into_iter().map(|piece| (piece, &raw[piece.in_tensor()])).collect();
    let fit = match mode % 16 {
        0 => return None,
        1 => fit(CodecId::Ibp, geometry, &sample),
        2 => fit(CodecId::IbpWindow, geometry, &sample),
        12 => fit(CodecId::Sparse, geometry, &sample),
        13 => fit(CodecId::Planes4, geometry, &sample),
        14 => fit(CodecId::Planes3, geometry, &sample),
        15 => fit(CodecId::Planes222, geometry, &sample),
        _ => {
            let prefer = if mode < 128 { Prefer::Ratio } else { Prefer::Speed };
            choose(geometry, &sample, prefer).map(|choice| choice.chosen)
        }
    };
    fit.expect("every tensor with blocks has a fit").metadata
}

fn there_and_back(geometry: &Geometry, block_idx: u64, coders: &[Coder], raw: &[u8]) {
    let encode = |encoding| {
        let mut bytes = Vec::new();
        let encoded = encode_block(encoding, geometry, block_idx, raw, &mut bytes).expect("a block");
        (bytes, encoded)
    };
    let (bytes, encoded) = match coders.split_first() {
        None => encode(Encoding::Raw),
        Some((scalar, others)) => {
            let by_scalar = encode(Encoding::Coded(scalar));
            for coder in others {
                assert!(encode(Encoding::Coded(coder)) == by_scalar, "{} encodes differently", coder.level());
            }
            by_scalar
        }
    };
    let shape = geometry.block(block_idx);
    assert!(bytes.len() as u64 <= max_encoded_len(&shape));
    assert_eq!(needed_len(&bytes[..64]), Ok(bytes.len() as u64));
    let block = Block::parse(&bytes).expect("an encoded block is accepted");
    assert_eq!((block.verify_crc(), block.codec()), (Ok(()), encoded.codec));
    let decode = |coder: Option<&Coder>| {
        let mut out = vec![0xA5; raw.len()];
        assert_eq!(decode_block(&block, coder, &mut out), Ok(()));
        assert!(out == raw, "words changed");
    };
    if coders.is_empty() {
        decode(None);
    }
    coders.iter().for_each(|coder| decode(Some(coder)));
    let row_bytes = index(shape.row_bytes);
    let row_of = |row| &raw[index(row) * row_bytes..][..row_bytes];
    if encoded.codec == CodecId::Raw {
        assert_eq!(raw_payload(&bytes, shape.raw_bytes), Some(raw));
        let rows = 0..shape.rows.min(MAX_ROWS);
        rows.for_each(|row| assert_eq!(raw_row(&bytes, shape.row_bytes, row), Some(row_of(row))));
        return;
    }
    let front = &bytes[..index(HEADER_BYTES) + block.front().len()];
    for coder in coders {
        let (mut scratch, mut out) = (Scratch::new(), vec![0; row_bytes]);
        for row in 0..shape.rows.min(MAX_ROWS) {
            let mut read =
                |bytes, out: &mut Vec<u8>| decode_row(coder, block_idx, row, bytes, out, &mut scratch);
            if read(front, &mut out).is_ok() {
                assert!(out == row_of(row), "row {row} of the front changed");
            }
            assert_eq!(read(&bytes, &mut out), Ok(()));
            assert_eq!(stored_len(&bytes), bytes.len() as u64);
            assert!(out == row_of(row), "row {row} changed");
        }
    }
}
