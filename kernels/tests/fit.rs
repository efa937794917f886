//! Fits: the sample, the choice, and that predictions are what the blocks then take.

use safetensors::SafeTensors;
use tierpack_kernels::block::Block;
use tierpack_kernels::codec::{self, Encoding};
use tierpack_kernels::fit::{self, Fit, Piece, Sample};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::{Granularity, Metadata};
use tierpack_kernels::{Coder, Error};
use tierpack_shm::types::{Access, CodecId, Dtype, Prefer, UNIT_BYTES, index};

/// A slice of a checkpoint in BF16; `tests/data/README.md` says where it comes from.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/minilm_layer0_bf16.safetensors");

fn geometry(dtype: Dtype, shape: &[u64], access: Access) -> Geometry {
    Geometry::new(dtype, shape, access, None).expect("a valid shape")
}

/// The sample that [`fit::pieces()`] asks for.
fn sample<'a>(geometry: &Geometry, raw: &'a [u8]) -> Vec<Sample<'a>> {
    let pieces = fit::pieces(geometry, 0..geometry.n_blocks(), 1);
    pieces.into_iter().map(|piece| (piece, &raw[piece.in_tensor()])).collect()
}

/// Encodes and decodes a tensor with a fit; returns its stored bytes.
fn stored_bytes(geometry: &Geometry, fit: &Fit, raw: &[u8]) -> u64 {
    let coder = fit.metadata.as_ref().map(|metadata| {
        assert_eq!(Metadata::parse(&metadata.to_bytes(), geometry).as_ref(), Ok(metadata));
        Coder::new(metadata, geometry).expect("metadata of this tensor")
    });
    let mut stored =
        fit.metadata.as_ref().map_or(0, |metadata| metadata.len_bytes().next_multiple_of(UNIT_BYTES));
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    for block_idx in 0..geometry.n_blocks() {
        let shape = geometry.block(block_idx);
        let raw = &raw[index(shape.byte_offset)..][..index(shape.raw_bytes)];
        let encoding = coder.as_ref().map_or(Encoding::Raw, Encoding::Coded);
        codec::encode_block(encoding, geometry, block_idx, raw, &mut bytes).expect("a block");
        stored += (bytes.len() as u64).next_multiple_of(UNIT_BYTES);
        let block = Block::parse(&bytes).expect("a good block");
        out.resize(raw.len(), 0xA5);
        codec::decode_block(&block, coder.as_ref(), &mut out).expect("a decode");
        assert!(out == raw, "{} of {geometry:?}", fit.codec);
    }
    stored
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0.to_be_bytes()[0]
    }
}

fn percent_saved(stored: u64, raw: u64) -> f64 {
    100.0 * (1.0 - stored as f64 / raw as f64)
}

#[test]
fn the_committed_weights_are_stored_as_predicted() {
    let file = std::fs::read(DATA).expect("the committed data");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    for access in [Access::Rows, Access::Whole] {
        let mut totals = vec![0; CodecId::ALL.len()];
        let mut total_raw = 0;
        for (name, view) in tensors.tensors() {
            let dtype: Dtype = view.dtype().to_string().parse().expect("a dtype of safetensors");
            let shape: Vec<u64> = view.shape().iter().map(|&dimension| dimension as u64).collect();
            let (geometry, raw) = (geometry(dtype, &shape, access), view.data());
            if geometry.n_blocks() == 0 {
                continue;
            }
            let mut line = format!("{name:55} {dtype} {shape:?} {access}:");
            let mut raw_stored = 0;
            for (&codec, total) in CodecId::ALL.iter().zip(&mut totals) {
                let fit = fit::fit(codec, &geometry, &sample(&geometry, raw)).expect("a fit");
                let stored = stored_bytes(&geometry, &fit, raw);
                assert_eq!(stored, fit.predicted_stored_bytes, "{codec} of {name}");
                if codec == CodecId::Raw {
                    raw_stored = stored;
                }
                *total += stored.min(raw_stored);
                line += &format!(" {codec} {:.2} %", percent_saved(stored, geometry.raw_bytes()));
            }
            total_raw += geometry.raw_bytes();
            println!("{line}");
        }
        // No word of weights is common: `sparse` only must not cost more than `raw` does.
        let least = [0.0, 23.0, 26.0, 24.0, 28.0, 31.0, -0.1];
        for ((codec, stored), least) in CodecId::ALL.iter().zip(totals).zip(least) {
            let saved = percent_saved(stored, total_raw);
            println!("total {access}: {codec} {saved:.2} %");
            assert!(saved > least || *codec == CodecId::Raw, "{codec} saves {saved}");
        }
    }
}

#[test]
fn words_that_are_common_are_fitted_as_sparse() {
    // 0, and in one place of 50 one of `n_others` words; the columns are no power of two.
    for (n_others, dtype) in [(1, Dtype::U8), (7, Dtype::F32), (256, Dtype::Bf16), (5000, Dtype::F64)] {
        for access in [Access::Rows, Access::Whole] {
            let geometry = geometry(dtype, &[200, 1433], access);
            let mut state = 1_u64;
            let word = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if (state >> 33).is_multiple_of(50) { 1 + (state >> 40) % n_others } else { 0 }
            };
            let bytes = index(u64::from(dtype.bits() / 8));
            let raw: Vec<u8> = (0..200 * 1433)
                .map(word)
                .flat_map(|word| word.to_le_bytes().into_iter().take(bytes))
                .collect();
            let choice = fit::choose(&geometry, &sample(&geometry, &raw), Prefer::Ratio).expect("a choice");
            assert_eq!(choice.chosen.codec, CodecId::Sparse, "{dtype} {access}");
            assert_eq!(stored_bytes(&geometry, &choice.chosen, &raw), choice.chosen.predicted_stored_bytes);
            let least = if dtype == Dtype::U8 { 80.0 } else { 90.0 };
            assert!(choice.chosen.predicted_saved_percent > least, "{dtype} {access}: {:?}", choice.chosen);
        }
    }
}

#[test]
fn sparse_needs_a_quarter_of_the_words() {
    let geometry = geometry(Dtype::U16, &[100, 40], Access::Rows);
    for (one_in, fitted) in [(2, CodecId::Sparse), (4, CodecId::Sparse), (5, CodecId::Raw)] {
        let word = |i: u16| if i.is_multiple_of(one_in) { 9 } else { 1000 + i };
        let raw: Vec<u8> = (0..4000).flat_map(|i| word(i).to_le_bytes()).collect();
        let fit = fit::fit(CodecId::Sparse, &geometry, &sample(&geometry, &raw)).expect("a fit");
        assert_eq!(fit.codec, fitted, "one word in {one_in}");
        assert_eq!(stored_bytes(&geometry, &fit, &raw), fit.predicted_stored_bytes);
    }
}

#[test]
fn every_dtype_is_fitted_and_survives() {
    // Words that look like floats of one size, in rows of every kind of length.
    for &dtype in Dtype::ALL {
        for access in [Access::Rows, Access::Whole] {
            for columns in [1_u64, 5, 12, 64, 1024, 1500] {
                let geometry = geometry(dtype, &[24, columns], access);
                let raw: Vec<u8> = (0..geometry.raw_bytes())
                    .map(|i| if i % 2 == 1 { 0x3E } else { ((i * 7919) >> 3).to_le_bytes()[0] })
                    .collect();
                for &codec in CodecId::ALL {
                    let fit = fit::fit(codec, &geometry, &sample(&geometry, &raw)).expect("a fit");
                    let knows = fit.codec == codec || codec >= CodecId::Planes4;
                    assert!(knows, "{codec} gave {}", fit.codec);
                    assert_eq!(fit.sample_elems, 24 * columns);
                    let stored = stored_bytes(&geometry, &fit, &raw);
                    assert_eq!(stored, fit.predicted_stored_bytes, "{codec} {geometry:?}");
                }
            }
        }
    }
}

#[test]
fn a_part_predicts_the_whole() {
    // 24 MiB of rows whose upper bytes are alike, of which 4 MiB are the sample.
    let geometry = geometry(Dtype::Bf16, &[12 << 10, 1000], Access::Rows);
    let mut state = 1_u64;
    let raw: Vec<u8> = (0..geometry.raw_bytes() / 2)
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let [.., low, high] = state.to_le_bytes();
            [low, if high < 12 { high } else { 0x3D | high & 2 }]
        })
        .collect();
    let sample = sample(&geometry, &raw);
    let sampled: usize = sample.iter().map(|(_, raw)| raw.len()).sum();
    assert!(sampled <= 4 << 20);
    let choice = fit::choose(&geometry, &sample, Prefer::Ratio).expect("a choice");
    assert_ne!(choice.chosen.codec, CodecId::Raw);
    let stored = stored_bytes(&geometry, &choice.chosen, &raw);
    let error = stored.abs_diff(choice.chosen.predicted_stored_bytes);
    assert!(error * 200 < geometry.raw_bytes(), "off by {error} of {stored} bytes");
}

#[test]
fn data_that_repeat_are_predicted_whatever_their_period() {
    // 32 MiB in blocks of 256 KiB, of which every 16th, 12th or 5th is zero and the others hold narrow floats.
    let geometry = geometry(Dtype::Bf16, &[16 << 10, 1024], Access::Rows);
    let mut random = Random(1);
    let floats: Vec<u8> = (0..1 << 20).flat_map(|_| [random.next(), 0x38 | random.next() & 7]).collect();
    for period in [16, 12, 5] {
        let mut raw = floats.repeat(16);
        raw.chunks_mut(256 << 10).skip(period / 2).step_by(period).for_each(|block| block.fill(0));
        let choice = fit::choose(&geometry, &sample(&geometry, &raw), Prefer::Ratio).expect("a choice");
        let saved = percent_saved(stored_bytes(&geometry, &choice.chosen, &raw), geometry.raw_bytes());
        let predicted = choice.chosen.predicted_saved_percent;
        println!("one in {period}: {} saves {saved:.1} %, predicted {predicted:.1} %", choice.chosen.codec);
        assert!((saved - predicted).abs() < 5.0 && saved > 20.0, "{saved} % of {predicted} %");
    }
}

#[test]
fn columns_that_differ_get_bases_of_their_own() {
    // Column c counts upward from c * 1000 in steps below 16.
    let geometry = geometry(Dtype::I32, &[4096, 32], Access::Rows);
    let value = |i: u32| (i % 32) * 1000 + (i / 32 * 7) % 16;
    let raw: Vec<u8> = (0..4096 * 32).flat_map(|i| value(i).to_le_bytes()).collect();
    let choice = fit::choose(&geometry, &sample(&geometry, &raw), Prefer::Ratio).expect("a choice");
    let metadata = choice.chosen.metadata.as_ref().expect("metadata");
    assert_eq!(choice.chosen.codec, CodecId::IbpWindow);
    assert_eq!(metadata.base(), Some(Granularity::Column));
    assert_eq!(choice.others.len(), 2);
    assert!(choice.others[0].predicted_stored_bytes > choice.chosen.predicted_stored_bytes);
    assert!(choice.chosen.predicted_saved_percent > 70.0, "{}", choice.chosen.predicted_saved_percent);
    stored_bytes(&geometry, &choice.chosen, &raw);
}

/// The fits of all codecs for the committed weights, whose 16-bit floats are widened to `dtype`.
fn choice_for_weights(dtype: Dtype, prefer: Prefer) -> fit::Choice {
    let file = std::fs::read(DATA).expect("the committed data");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    let view = tensors.tensor("encoder.layer.0.attention.self.query.weight").expect("a matrix of BF16");
    let values =
        view.data().as_chunks::<2>().0.iter().map(|&[low, high]| f32::from_le_bytes([0, 0, low, high]));
    let raw: Vec<u8> = match dtype {
        Dtype::Bf16 => view.data().to_vec(),
        Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
        _ => values.flat_map(|value| f64::from(value).to_le_bytes()).collect(),
    };
    let shape: Vec<u64> = view.shape().iter().map(|&dimension| dimension as u64).collect();
    let geometry = geometry(dtype, &shape, Access::Rows);
    fit::choose(&geometry, &sample(&geometry, &raw), prefer).expect("a choice")
}

#[test]
fn speed_takes_the_fastest_codec_within_two_points_of_the_best() {
    // Two bits more in a code are 12 points of 16 bits, 6 of 32 and 3 of 64; escapes and tiers take their part.
    let expected =
        [(Dtype::Bf16, CodecId::Planes222), (Dtype::F32, CodecId::Planes3), (Dtype::F64, CodecId::Planes4)];
    for (dtype, fastest) in expected {
        let ratio = choice_for_weights(dtype, Prefer::Ratio);
        assert_eq!(ratio.chosen.codec, CodecId::Planes222, "{dtype}");
        let best = ratio.chosen.predicted_saved_percent;
        let speed = choice_for_weights(dtype, Prefer::Speed);
        assert_eq!(speed.chosen.codec, fastest, "{dtype}");
        assert!(speed.chosen.predicted_saved_percent >= best - 2.0, "{speed:?}");
        // What it gave up is what comes next, and whatever is faster was too long.
        let others = &speed.others;
        assert!(others.is_sorted_by_key(|fit| fit.predicted_stored_bytes), "{others:?}");
        assert_eq!(others[0].codec == CodecId::Planes222, fastest != CodecId::Planes222, "{others:?}");
        let faster = others.iter().filter(|fit| fit.codec >= CodecId::Planes4 && fit.codec < fastest);
        assert!(faster.clone().all(|fit| fit.predicted_saved_percent < best - 2.0), "{others:?}");
        assert_eq!(faster.count(), usize::from(fastest as u8 - CodecId::Planes4 as u8), "{others:?}");
    }
}

#[test]
fn integers_are_never_cut_into_planes() {
    // Bytes that would be good floats.
    for &dtype in Dtype::ALL {
        let geometry = geometry(dtype, &[64, 64], Access::Rows);
        let raw: Vec<u8> = (0..geometry.raw_bytes()).map(|i| if i % 8 == 7 { 0x3F } else { 0x80 }).collect();
        for prefer in [Prefer::Ratio, Prefer::Speed] {
            let choice = fit::choose(&geometry, &sample(&geometry, &raw), prefer).expect("a choice");
            let is_float = matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64);
            let fits = std::iter::once(&choice.chosen).chain(&choice.others);
            let has_planes =
                |fit: &Fit| matches!(fit.codec, CodecId::Planes4 | CodecId::Planes3 | CodecId::Planes222);
            let n_planes = fits.filter(|fit| has_planes(fit)).count();
            let is_short_float = dtype.name().starts_with("F8_E4M3") || dtype.name().starts_with("F8_E5M2");
            assert!(n_planes == 3 || !is_float, "{dtype}: {choice:?}");
            assert!(n_planes == 0 || is_float || is_short_float, "{dtype}: {choice:?}");
        }
    }
}

#[test]
fn no_codec_shortens_a_tiny_tensor() {
    for &dtype in Dtype::ALL {
        for n_elems in [8, 16, 24, 32, 64, 96, 128] {
            let geometry = geometry(dtype, &[n_elems / 8, 8], Access::Rows);
            let raw = vec![0; index(geometry.raw_bytes())];
            let sample = sample(&geometry, &raw);
            let choice = fit::choose(&geometry, &sample, Prefer::Ratio).expect("a choice");
            let is_tiny = geometry.raw_bytes() <= fit::MAX_TINY_BYTES;
            assert_eq!(choice.others.is_empty(), is_tiny, "{geometry:?}");
            let least = CodecId::ALL.iter().map(|&codec| fit::fit(codec, &geometry, &sample).expect("a fit"));
            let least = least.map(|fit| fit.predicted_stored_bytes).min().expect("some codecs");
            assert_eq!(least, choice.chosen.predicted_stored_bytes, "{geometry:?}");
        }
    }
    // One byte more, and a codec takes a unit of 64 bytes less.
    let geometry = geometry(Dtype::U8, &[129], Access::Rows);
    let choice =
        fit::choose(&geometry, &[(Piece::block(&geometry, 0), &[0; 129])], Prefer::Ratio).expect("a choice");
    assert_ne!(choice.chosen.codec, CodecId::Raw);
    assert_eq!(choice.chosen.predicted_stored_bytes, 192);
}

#[test]
fn noise_stays_raw() {
    let geometry = geometry(Dtype::U8, &[64, 1024], Access::Rows);
    let mut random = Random(1);
    let raw: Vec<u8> = (0..geometry.raw_bytes()).map(|_| random.next()).collect();
    let choice = fit::choose(&geometry, &sample(&geometry, &raw), Prefer::Ratio).expect("a choice");
    assert_eq!((choice.chosen.codec, choice.chosen.metadata), (CodecId::Raw, None));
    assert_eq!(choice.chosen.predicted_stored_bytes, 64 + 65_536);
    for fit in &choice.others {
        assert!(stored_bytes(&geometry, fit, &raw) <= 65_536 + 1024, "never much larger than raw");
    }
}

#[test]
fn a_sample_that_does_not_belong_to_the_tensor_is_refused() {
    let geometry = geometry(Dtype::U8, &[4, 3], Access::Rows);
    assert_eq!(fit::choose(&geometry, &[], Prefer::Ratio), Err(Error::NoSample));
    let result = fit::fit(CodecId::Ibp, &geometry, &[(Piece::block(&geometry, 1), &[0; 12])]);
    assert_eq!(result, Err(Error::NoSuchBlock { block_idx: 1, n_blocks: 1 }));
    let result = fit::fit(CodecId::Ibp, &geometry, &[(Piece::block(&geometry, 0), &[0; 11])]);
    assert_eq!(result, Err(Error::RawLength { block_idx: 0, needed: 12, got: 11 }));
    let other =
        Piece::block(&Geometry::new(Dtype::U8, &[5, 3], Access::Rows, None).expect("a valid shape"), 0);
    let result = fit::fit(CodecId::Ibp, &geometry, &[(other, &[0; 15])]);
    assert_eq!(result, Err(Error::PieceElsewhere { block_idx: 0 }));
}

/// Percent that coding the exponent alone at its order-0 entropy would save.
fn bound_of_bf16(raw: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for &word in raw.as_chunks::<2>().0 {
        counts[usize::from(u16::from_le_bytes(word) >> 7 & 0xFF)] += 1;
    }
    let n = raw.len() as f64 / 2.0;
    let shares = counts.iter().filter(|&&count| count > 0).map(|&count| f64::from(count) / n);
    let entropy: f64 = shares.map(|share| -share * share.log2()).sum();
    100.0 * (8.0 - entropy) / 16.0
}

#[test]
fn the_choice_is_near_the_entropy_of_the_exponents() {
    let file = std::fs::read(DATA).expect("the committed data");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    let mut checked = 0;
    for (name, view) in tensors.tensors() {
        let shape: Vec<u64> = view.shape().iter().map(|&dimension| dimension as u64).collect();
        let raw = view.data();
        if shape.len() < 2 || shape[1] < 256 || raw.len() < 64 << 10 {
            continue;
        }
        let geometry = geometry(Dtype::Bf16, &shape, Access::Rows);
        let choice = fit::choose(&geometry, &sample(&geometry, raw), Prefer::Ratio).expect("a choice");
        let saved = percent_saved(stored_bytes(&geometry, &choice.chosen, raw), geometry.raw_bytes());
        let ibp = choice.others.iter().find(|fit| fit.codec == CodecId::Ibp).expect("a fit of ibp");
        let bound = bound_of_bf16(raw);
        println!("{name}: {saved:.2} % of {bound:.2} %, ibp {:.2} %", ibp.predicted_saved_percent);
        assert!(saved >= 0.94 * bound && saved >= ibp.predicted_saved_percent, "{name}");
        checked += 1;
    }
    assert_ne!(checked, 0);
}

/// FP32 that holds BF16 values: 16 bits of every word are zero.
#[test]
fn floats_that_hold_shorter_floats_shrink_to_these() {
    let choice = choice_for_weights(Dtype::F32, Prefer::Ratio);
    let saved = choice.chosen.predicted_saved_percent;
    println!("{} saves {saved:.2} %", choice.chosen.codec);
    assert!(saved > 65.5, "{saved}");
}
