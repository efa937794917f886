//! `sparse` under any common word, groups, dictionary and strides.

use proptest::prelude::*;
use tierpack_shm::types::Dtype;

use super::*;
use crate::bits::low;
use crate::metadata;
use crate::sparse::word_bytes;

/// What FORMAT.md leaves open, as numbers that a strategy can draw.
#[derive(Clone, Debug)]
struct Form {
    group_elems: u8,
    common: u64,
    dictionary: Vec<u64>,
    /// Where the strides lie between their least and their most, in 1/256.
    stride: u64,
}

/// Metadata of this form; `None` for a tensor without blocks.
fn metadata(geometry: &Geometry, form: &Form) -> Option<Metadata> {
    let mask = low(u32::try_from(8 * word_bytes(geometry.dtype())).unwrap());
    let words: Vec<u64> = form.dictionary.iter().map(|word| word & mask).collect();
    let sparse = metadata::Form::Sparse(metadata::Sparse::new(form.group_elems, form.common & mask, &words));
    with_strides(geometry, CodecId::Sparse, sparse, form.stride)
}

fn form() -> impl Strategy<Value = Form> {
    let group_elems = proptest::sample::select(&[8_u8, 16, 32, 64][..]);
    let common = prop_oneof![Just(0), Just(0x3F80_0000), any::<u64>()];
    let dictionary = prop_oneof![
        Just(vec![]),
        proptest::collection::vec(0..4_u64, 1..6),
        proptest::collection::vec(any::<u64>(), 1..=256),
        Just((0..256).collect()),
    ];
    (group_elems, common, dictionary, prop_oneof![Just(0), 0..=256_u64]).prop_map(
        |(group_elems, common, dictionary, stride)| Form { group_elems, common, dictionary, stride },
    )
}

/// How the words of a tensor are drawn: common, from the dictionary, or any, by the bits of a pattern.
fn words(geometry: &Geometry, form: &Form, pattern: &[u8], noise: &[u8]) -> Vec<u8> {
    let word_bytes = index(word_bytes(geometry.dtype()));
    let mut noise = noise.iter().copied().cycle();
    let n = index(geometry.raw_bytes()) / word_bytes;
    let word = |(i, &kind): (usize, &u8)| -> Vec<u8> {
        let word = match kind {
            200.. => return noise.by_ref().take(word_bytes).collect(),
            100.. => form.dictionary.get(i % form.dictionary.len().max(1)).copied().unwrap_or(form.common),
            _ => form.common,
        };
        word.to_le_bytes()[..word_bytes].to_vec()
    };
    pattern.iter().cycle().take(n).enumerate().flat_map(word).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_words_survive_any_metadata(
        dtype in proptest::sample::select(Dtype::ALL),
        shape in shape(),
        whole in any::<bool>(),
        form in form(),
        pattern in proptest::collection::vec(
            prop_oneof![Just(0_u8), Just(0), Just(0), Just(0), Just(0), any::<u8>()],
            1..300,
        ),
        bytes in raw_bytes(),
        mixed in any::<bool>(),
    ) {
        let access = if whole { Access::Whole } else { Access::Rows };
        if let Ok(geometry) = Geometry::new(dtype, &shape, access, None)
            && let Some(metadata) = metadata(&geometry, &form)
        {
            let raw = if mixed {
                words(&geometry, &form, &pattern, &bytes)
            } else {
                bytes.iter().copied().cycle().take(index(geometry.raw_bytes())).collect()
            };
            round_trip(&geometry, &metadata, &raw);
        }
    }
}

const SHAPES: [(&[u64], Access); 6] = [
    (&[40, 1433], Access::Rows),
    (&[300, 100], Access::Rows),
    (&[7, 2048], Access::Rows),
    (&[3, 1027], Access::Whole),
    (&[500, 33], Access::Whole),
    (&[1, 200_003], Access::Rows),
];

/// Numbers that look random.
fn noise() -> impl FnMut() -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Encodes a tensor of `n` words per row, a value for each row and column; returns its stored bytes per 1000 raw ones.
fn per_mille(geometry: &Geometry, form: &Form, mut word: impl FnMut(u64, u64) -> u64) -> u64 {
    let word_bytes = word_bytes(geometry.dtype());
    let columns = geometry.row_bytes() / word_bytes;
    let n_words = geometry.raw_bytes() / word_bytes;
    let raw: Vec<u8> = (0..n_words)
        .flat_map(|i| word(i / columns, i % columns).to_le_bytes().into_iter().take(index(word_bytes)))
        .collect();
    let metadata = metadata(geometry, form).unwrap();
    round_trip(geometry, &metadata, &raw);
    let coder = Coder::new(&metadata, geometry).unwrap();
    let mut stored = 0;
    for block_idx in 0..geometry.n_blocks() {
        let shape = geometry.block(block_idx);
        let raw = &raw[index(shape.byte_offset)..][..index(shape.raw_bytes)];
        let mut bytes = Vec::new();
        encode_block(Encoding::Coded(&coder), geometry, block_idx, raw, &mut bytes).unwrap();
        stored += bytes.len() as u64;
    }
    stored * 1000 / geometry.raw_bytes()
}

#[test]
fn one_hot_rows_take_little_more_than_their_group_bits() {
    for (shape, access) in SHAPES {
        for group_elems in [8, 16, 32, 64] {
            let form = Form { group_elems, common: 0, dictionary: vec![1], stride: 0 };
            let geometry = Geometry::new(Dtype::U8, shape, access, None).unwrap();
            let stored = per_mille(&geometry, &form, |row, column| u64::from(column == row * 31 % 97));
            // A bit per group, a head and padding of 8 bytes, and the block's header.
            assert!(
                stored < 1000 / 64 + 125 / u64::from(group_elems) + 120,
                "{shape:?} {group_elems}: {stored}"
            );
        }
    }
}

#[test]
fn a_bag_of_words_keeps_one_bit_in_a_hundred() {
    let geometry = Geometry::new(Dtype::F32, &[500, 1433], Access::Rows, None).unwrap();
    let form = Form { group_elems: 8, common: 0, dictionary: vec![u64::from(1.0_f32.to_bits())], stride: 1 };
    let mut noise = noise();
    let stored =
        per_mille(&geometry, &form, |_, _| if noise().is_multiple_of(79) { form.dictionary[0] } else { 0 });
    assert!(stored < 15, "{stored}");
}

#[test]
fn half_of_the_words_of_a_rectified_layer_go() {
    let mut noise = noise();
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F64, Dtype::F8E4m3] {
        for (shape, access) in SHAPES {
            let geometry = Geometry::new(dtype, shape, access, None).unwrap();
            for stride in [0, 120] {
                let form = Form { group_elems: 64, common: 0, dictionary: vec![], stride };
                let stored =
                    per_mille(&geometry, &form, |_, _| if noise() & 1 == 0 { 0 } else { noise() | 1 });
                assert!(stored < 530 + 1000 / u64::from(dtype.bits()) + 30, "{dtype} {shape:?}: {stored}");
            }
        }
    }
}

#[test]
fn words_that_are_all_equal_or_all_different() {
    for dtype in [Dtype::U8, Dtype::I16, Dtype::F32, Dtype::C64, Dtype::F4] {
        for (shape, access) in SHAPES {
            let Ok(geometry) = Geometry::new(dtype, shape, access, None) else { continue };
            for dictionary in [vec![], vec![3], vec![3, 4, 5]] {
                let common = 0x2222_2222_2222_2221;
                let form = Form { group_elems: 64, common, dictionary, stride: 0 };
                let stored = per_mille(&geometry, &form, |_, _| common);
                assert!(stored < 200, "{dtype} {shape:?}: {stored}");
                // Nothing is common: the blocks become raw.
                let stored = per_mille(&geometry, &form, |row, column| 0x7070_7070_7070_7070 ^ row ^ column);
                assert!(stored >= 1000, "{dtype} {shape:?}: {stored}");
            }
        }
    }
}
