//! One suite for every codec and level: the same bytes, every word back, by block and by row, under any metadata.

mod ibp;
mod planes;
mod sparse;

use proptest::prelude::*;

use super::*;
use crate::block::stored_len;
use crate::codec::{Encoding, decode_block, decode_row, encode_block};
use crate::cpu::Level;
use crate::cut::{RECORD_ELEMS, STRIDE_UNIT};
use crate::geometry::Geometry;
use crate::metadata::{self, Lengths, Metadata};

/// Metadata of a form whose strides lie between their least and their most, in 1/256; `None` without blocks.
fn with_strides(geometry: &Geometry, codec: CodecId, form: metadata::Form, stride: u64) -> Option<Metadata> {
    let (rules, lengths) = (form.stride_rules(geometry.dtype()), Lengths::of(geometry)?);
    let stride = |n_elems| {
        let (least, most) = rules.range(n_elems).into_inner();
        let stride = least + (most - least) * stride / 256;
        u32::try_from(stride.next_multiple_of(STRIDE_UNIT)).unwrap()
    };
    let metadata = Metadata {
        codec,
        dtype: geometry.dtype(),
        access: geometry.access(),
        generation: 7,
        row_bytes: geometry.row_bytes(),
        record_stride: if lengths.has_full { stride(RECORD_ELEMS) } else { 0 },
        tail_stride: stride(lengths.tail_elems),
        form,
    };
    let bytes = metadata.to_bytes();
    assert_eq!(bytes.len() as u64, metadata.len_bytes());
    assert_eq!(Metadata::parse(&bytes, geometry).as_ref(), Ok(&metadata));
    Some(metadata)
}

/// Encodes and decodes every block on every level; returns how many blocks were not `raw`.
fn round_trip(geometry: &Geometry, metadata: &Metadata, raw: &[u8]) -> usize {
    let coder = Coder::new(metadata, geometry).unwrap();
    let mut n_coded = 0;
    for block_idx in 0..geometry.n_blocks() {
        let shape = geometry.block(block_idx);
        let raw = &raw[index(shape.byte_offset)..][..index(shape.raw_bytes)];
        let mut expected: Option<(Vec<u8>, Encoded)> = None;
        for &level in Level::ALL {
            if !level.is_available() {
                println!("skipped: no {level} on this machine");
                continue;
            }
            let coder = coder.clone().with_level(level);
            let mut bytes = Vec::new();
            let encoded =
                encode_block(Encoding::Coded(&coder), geometry, block_idx, raw, &mut bytes).unwrap();
            let written = expected.get_or_insert_with(|| (bytes.clone(), encoded));
            assert!(*written == (bytes.clone(), encoded), "{level} writes other bytes: {metadata:?}");
            check_block(&coder, block_idx, &bytes, raw);
            n_coded += usize::from(encoded.codec != CodecId::Raw);
        }
    }
    n_coded
}

/// Reads one block whole and by rows.
fn check_block(coder: &Coder, block_idx: u64, bytes: &[u8], raw: &[u8]) {
    let block = Block::parse(bytes).unwrap();
    block.verify_crc().unwrap();
    let mut out = vec![0xA5; raw.len()];
    decode_block(&block, Some(coder), &mut out).unwrap();
    assert!(out == raw, "{} at {}", block.codec(), coder.level());
    if block.codec() == CodecId::Raw {
        return;
    }
    let shape = coder.geometry().block(block_idx);
    let mut scratch = Scratch::new();
    assert_eq!(stored_len(bytes), bytes.len() as u64);
    let mut row = vec![0; index(shape.row_bytes)];
    for (i, raw) in raw.chunks(row.len()).enumerate() {
        row.fill(0xA5);
        assert_eq!(decode_row(coder, block_idx, i as u64, bytes, &mut row, &mut scratch), Ok(()));
        assert!(row == raw, "row {i}");
    }
}

/// Bytes that are alike, alternate, are noise, or are floats of one size.
fn raw_bytes() -> impl Strategy<Value = Vec<u8>> {
    let special = proptest::sample::select(
        &[0_u32, 0x8000_0000, 1, 0x7F80_0001, 0xFFC0_0001, 0x7F80_0000, 0x807F_FFFF, 0x3F81_0203][..],
    );
    let floats = proptest::collection::vec(-1.0_f32..1.0, 1..80);
    prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<[u8; 2]>().prop_map(Vec::from),
        proptest::collection::vec(any::<u8>(), 1..200),
        proptest::collection::vec(special, 1..40)
            .prop_map(|words| { words.iter().flat_map(|word| word.to_le_bytes()).collect() }),
        floats.prop_map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect()),
    ]
}

fn shape() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        proptest::collection::vec(1..14_u64, 0..4),
        (1..4_u64, prop_oneof![Just(1023_u64), Just(1024), Just(1025), Just(2500), 1..3000_u64])
            .prop_map(|(rows, columns)| vec![rows, columns]),
    ]
}
