//! `planes` under any tables, bases, dropped bits and strides.

use proptest::prelude::*;
use tierpack_shm::types::Dtype;

use super::*;
use crate::metadata::{self, bases_may_be_per_column};
use crate::planes::{Dropped, Parts};

const CODECS: [CodecId; 3] = [CodecId::Planes4, CodecId::Planes3, CodecId::Planes222];

const FLOATS: [Dtype; 9] = [
    Dtype::Bf16,
    Dtype::F16,
    Dtype::F32,
    Dtype::F64,
    Dtype::F8E4m3,
    Dtype::F8E5m2,
    Dtype::F8E4m3Fnuz,
    Dtype::F8E5m2Fnuz,
    Dtype::Bf16,
];

/// What FORMAT.md leaves open, as numbers that a strategy can draw.
#[derive(Clone, Debug)]
struct Form {
    codec: CodecId,
    /// Exponents that the table and the bases are cut from.
    exponents: Vec<u16>,
    by_column: bool,
    /// First bit, how many, and their value, as far as the dtype has them.
    dropped: (u32, u32, u64),
    /// Where the strides lie between their least and their most, in 1/256.
    stride: u64,
}

/// Metadata of this form; `None` for a dtype that the codec does not shorten.
fn metadata(geometry: &Geometry, form: &Form) -> Option<Metadata> {
    let schedule = Schedule::of(form.codec)?;
    let parts = Parts::under(geometry.dtype(), schedule)?;
    let (first, bits, value) = form.dropped;
    let bits = bits.min(parts.low_bits());
    let first = if bits == 0 { 0 } else { first.min(parts.low_bits() - bits) };
    let dropped = Dropped { first, bits, value: value & crate::bits::low(bits) };
    let mut source =
        form.exponents.iter().map(|exponent| exponent & ((1 << parts.exponent_bits) - 1)).cycle();
    let mut cut = |len: usize| -> Box<[u16]> { source.by_ref().take(len).collect() };
    let table = cut(schedule.n_codes());
    let by_column = form.by_column && bases_may_be_per_column(geometry);
    let bases = by_column.then(|| cut(index(geometry.row_elems())));
    let planes = metadata::Form::Planes(metadata::Planes::new(schedule, parts, dropped, table, bases));
    with_strides(geometry, form.codec, planes, form.stride)
}

fn form() -> impl Strategy<Value = Form> {
    let exponents = proptest::collection::vec(prop_oneof![0..2048_u16, 116..128_u16], 1..40);
    let dropped = prop_oneof![Just((0, 0, 0)), (0..60_u32, 0..40_u32, prop_oneof![Just(0), any::<u64>()])];
    let codec = proptest::sample::select(&CODECS[..]);
    (codec, exponents, any::<bool>(), dropped, 0..=256_u64).prop_map(
        |(codec, exponents, by_column, dropped, stride)| Form {
            codec,
            exponents,
            by_column,
            dropped,
            stride,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_words_survive_any_metadata(
        dtype in proptest::sample::select(&FLOATS[..]),
        shape in shape(),
        whole in any::<bool>(),
        form in form(),
        bytes in raw_bytes(),
    ) {
        let access = if whole { Access::Whole } else { Access::Rows };
        if let Ok(geometry) = Geometry::new(dtype, &shape, access, None)
            && let Some(metadata) = metadata(&geometry, &form)
        {
            let raw: Vec<u8> = bytes.iter().copied().cycle().take(index(geometry.raw_bytes())).collect();
            round_trip(&geometry, &metadata, &raw);
        }
    }
}

/// Words whose exponents are spread as those of weights are, so that every tier, and escapes, occur.
fn weights(geometry: &Geometry) -> Vec<u8> {
    let parts = Parts::of(geometry.dtype()).unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let exponent =
            u64::from((state >> 40).trailing_zeros().min(20)) + u64::from(state >> 32 & 63 == 0) * 9;
        let low_bits = state & crate::bits::low(parts.low_bits());
        parts.unrotated((exponent << parts.low_bits() | low_bits) & crate::bits::low(parts.word_bits))
    };
    let n = geometry.raw_bytes() * 8 / u64::from(parts.word_bits);
    (0..n)
        .map(word)
        .flat_map(|word| word.to_le_bytes().into_iter().take((parts.word_bits / 8) as usize))
        .collect()
}

#[test]
fn weights_of_every_float_shrink_in_every_shape() {
    for dtype in FLOATS {
        for (shape, access) in [
            (&[300, 64][..], Access::Rows),
            (&[300, 100], Access::Rows),
            (&[41, 384], Access::Rows),
            (&[7, 1536], Access::Rows),
            (&[3, 1027], Access::Whole),
            (&[500, 33], Access::Whole),
            (&[1, 200_003], Access::Rows),
        ] {
            let geometry = Geometry::new(dtype, shape, access, None).unwrap();
            let raw = weights(&geometry);
            for codec in CODECS {
                for (by_column, stride) in [(false, 0), (true, 20)] {
                    let exponents = (0..11).collect();
                    let form = Form { codec, exponents, by_column, dropped: (0, 0, 0), stride };
                    let Some(metadata) = metadata(&geometry, &form) else { continue };
                    let n_coded = round_trip(&geometry, &metadata, &raw);
                    // Codes of 4 bits save at most one bit of these.
                    let shrinks = !by_column && (dtype.bits() > 8 || codec == CodecId::Planes222);
                    assert!(n_coded > 0 || !shrinks, "{dtype} {shape:?} {codec}");
                }
            }
        }
    }
}

/// Floats that hold shorter floats: the bits between sign and mantissa are zero.
#[test]
fn dropped_bits_come_back() {
    let geometry = Geometry::new(Dtype::F32, &[64, 200], Access::Rows, None).unwrap();
    let bf16 = Geometry::new(Dtype::Bf16, &[64, 200], Access::Rows, None).unwrap();
    let mut raw: Vec<u8> = weights(&bf16).chunks_exact(2).flat_map(|word| [0, 0, word[0], word[1]]).collect();
    for codec in CODECS {
        let form =
            Form { codec, exponents: (0..15).collect(), by_column: false, dropped: (1, 16, 0), stride: 0 };
        let metadata = metadata(&geometry, &form).unwrap();
        assert_eq!(round_trip(&geometry, &metadata, &raw), Level::ALL.len(), "{codec}");
    }
    // A word with other bits makes its record raw, and under `planes:4` the block.
    raw[800] = 1;
    for codec in CODECS {
        let form =
            Form { codec, exponents: (0..15).collect(), by_column: false, dropped: (1, 16, 0), stride: 0 };
        let n_coded = round_trip(&geometry, &metadata(&geometry, &form).unwrap(), &raw);
        assert_eq!(n_coded == 0, codec == CodecId::Planes4, "{codec}");
    }
}
