//! `ibp` and `ibp:window` under any masks, bases and strides.

use proptest::prelude::*;
use tierpack_shm::types::Dtype;

use super::*;
use crate::metadata::{
    self, Granularity, bases_may_be_per_column, has_sign_and_exponent, masks_may_be_per_column, word_bytes,
};

/// What FORMAT.md leaves open, as numbers that a strategy can draw.
#[derive(Clone, Debug)]
struct Form {
    window: bool,
    chunk_bytes: u8,
    mask_per_column: bool,
    /// 0: none, 1: one, 2: one per column.
    base: u8,
    /// Where the strides lie between their least and their most, in 1/256.
    stride: u64,
    /// Bytes that masks, bit values and bases are cut from.
    bytes: Vec<u8>,
}

/// Metadata of this form, where the tensor permits it.
fn metadata(geometry: &Geometry, form: &Form) -> Metadata {
    let dtype = geometry.dtype();
    let chunk_bytes = u64::from(form.chunk_bytes);
    let by_column = form.mask_per_column && masks_may_be_per_column(geometry, chunk_bytes);
    let masks = if by_column { Granularity::Column } else { Granularity::Tensor };
    let base = match form.base {
        1 if form.window => Some(Granularity::Tensor),
        2 if form.window && bases_may_be_per_column(geometry) => Some(Granularity::Column),
        _ => None,
    };
    let row_bytes = geometry.row_bytes();
    let mask_len = if by_column { row_bytes } else { chunk_bytes };
    let bases_len = match base {
        None => 0,
        Some(Granularity::Tensor) => word_bytes(dtype),
        Some(Granularity::Column) => row_bytes,
    };
    let mut source = form.bytes.iter().copied().cycle();
    let mut cut = |len: u64| -> Box<[u8]> { source.by_ref().take(index(len)).collect() };
    let mask = cut(mask_len);
    let bitval = mask.iter().zip(cut(mask_len)).map(|(mask, value)| mask & value).collect();
    let ibp = metadata::Form::Ibp(metadata::Ibp {
        chunk_bytes: form.chunk_bytes,
        masks,
        base,
        rotate: form.window && has_sign_and_exponent(dtype),
        mask,
        bitval,
        bases: cut(bases_len),
    });
    let codec = if form.window { CodecId::IbpWindow } else { CodecId::Ibp };
    with_strides(geometry, codec, ibp, form.stride).unwrap()
}

fn form() -> impl Strategy<Value = Form> {
    let bytes = proptest::collection::vec(prop_oneof![Just(0), Just(0xFF), any::<u8>()], 1..60);
    let chunk_bytes = proptest::sample::select(&[2, 4, 8][..]);
    (any::<bool>(), chunk_bytes, any::<bool>(), 0..3_u8, 0..=256_u64, bytes).prop_map(
        |(window, chunk_bytes, mask_per_column, base, stride, bytes)| Form {
            window,
            chunk_bytes,
            mask_per_column,
            base,
            stride,
            bytes,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_words_survive_any_metadata(
        dtype in proptest::sample::select(Dtype::ALL),
        shape in shape(),
        whole in any::<bool>(),
        form in form(),
        bytes in raw_bytes(),
    ) {
        let access = if whole { Access::Whole } else { Access::Rows };
        if let Ok(geometry) = Geometry::new(dtype, &shape, access, None) {
            let raw: Vec<u8> = bytes.iter().copied().cycle().take(index(geometry.raw_bytes())).collect();
            round_trip(&geometry, &metadata(&geometry, &form), &raw);
        }
    }
}

/// Masks whose bits are those of the words: every chunk participates.
#[test]
fn equal_words_take_no_bits() {
    for (dtype, whole) in
        [(Dtype::Bf16, false), (Dtype::F6E2m3, true), (Dtype::C64, true), (Dtype::Bool, false)]
    {
        let access = if whole { Access::Whole } else { Access::Rows };
        let geometry = Geometry::new(dtype, &[40, 84], access, None).unwrap();
        for chunk_bytes in [2, 4, 8] {
            for mask_per_column in [false, true] {
                let bytes = vec![0xFF];
                let form = Form { window: false, chunk_bytes, mask_per_column, base: 0, stride: 0, bytes };
                let metadata = metadata(&geometry, &form);
                let raw = vec![0xFF; index(geometry.raw_bytes())];
                assert_ne!(round_trip(&geometry, &metadata, &raw), 0, "{dtype}");
            }
        }
    }
}

/// Runs of several blocks, pieces, and last blocks whose records are of another length than metadata hold.
#[test]
fn large_and_ragged_tensors_survive() {
    let bytes = vec![0xFF, 0x0F, 0xF0, 0x00, 0xC1, 0x3F];
    for (dtype, shape, access) in [
        (Dtype::Bf16, &[1400, 100][..], Access::Whole),
        (Dtype::F64, &[500, 300], Access::Whole),
        (Dtype::U8, &[2, (1 << 18) + 77], Access::Rows),
        (Dtype::F32, &[3, (1 << 17) + 3], Access::Whole),
        (Dtype::Bf16, &[3000, 65], Access::Rows),
        (Dtype::F4, &[2, 600_002], Access::Rows),
        (Dtype::I64, &[300_001], Access::Rows),
    ] {
        let geometry = Geometry::new(dtype, shape, access, None).unwrap();
        let raw: Vec<u8> =
            (0..geometry.raw_bytes()).map(|i| ((i * i) >> 7).to_le_bytes()[0] & 0x3F).collect();
        for (chunk_bytes, base, stride) in [(2, 0, 200), (4, 1, 0), (8, 2, 128)] {
            let mask_per_column = base == 2;
            let form =
                Form { window: base > 0, chunk_bytes, mask_per_column, base, stride, bytes: bytes.clone() };
            round_trip(&geometry, &metadata(&geometry, &form), &raw);
        }
    }
}

#[test]
fn a_block_that_does_not_shrink_is_raw() {
    let geometry = Geometry::new(Dtype::U8, &[4, 1000], Access::Rows, None).unwrap();
    let form = Form {
        window: false,
        chunk_bytes: 8,
        mask_per_column: false,
        base: 0,
        stride: 256,
        bytes: vec![0xFF, 0, 0, 0, 0, 0, 0, 0, 1],
    };
    let coder = Coder::new(&metadata(&geometry, &form), &geometry).unwrap();
    let raw: Vec<u8> = (0..4000_u32).map(|i| ((i * 37) >> 3).to_le_bytes()[0] | 2).collect();
    let mut bytes = Vec::new();
    let encoded = encode_block(Encoding::Coded(&coder), &geometry, 0, &raw, &mut bytes).unwrap();
    assert_eq!(encoded.codec, CodecId::Raw);
    assert_eq!(bytes.len(), 4064);
    assert_eq!(Block::parse(&bytes).unwrap().front(), raw);
}

#[test]
fn another_generation_is_refused() {
    let geometry = Geometry::new(Dtype::U8, &[4, 1000], Access::Rows, None).unwrap();
    let form =
        Form { window: false, chunk_bytes: 8, mask_per_column: false, base: 0, stride: 0, bytes: vec![0xFF] };
    let metadata = metadata(&geometry, &form);
    let coder = Coder::new(&metadata, &geometry).unwrap();
    let mut bytes = Vec::new();
    encode_block(Encoding::Coded(&coder), &geometry, 0, &[0xFF; 4000], &mut bytes).unwrap();
    let block = Block::parse(&bytes).unwrap();
    let other = Coder::new(&metadata.with_generation(8), &geometry).unwrap();
    let result = decode_block(&block, Some(&other), &mut [0; 4000]);
    assert_eq!(result, Err(Error::WrongGeneration { needed: 7, got: 8 }));
    let result = decode_block(&block, None, &mut [0; 4000]);
    assert_eq!(result, Err(Error::NoMetadata { codec: CodecId::Ibp, generation: 7 }));
    let other = Geometry::new(Dtype::U8, &[4, 1001], Access::Rows, None).unwrap();
    let result = encode_block(Encoding::Coded(&coder), &other, 0, &[0; 4004], &mut bytes);
    assert!(matches!(result, Err(Error::MetadataField { found: 1000, .. })));
}
