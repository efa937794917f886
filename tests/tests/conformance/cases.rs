//! The cases: every codec, dtype and access, lengths around every boundary.

use proptest::prelude::*;
use proptest::sample;
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::{Coder, fit};
use tierpack_shm::types::{Access, CodecId, Dtype};

use crate::make::{Plan, encode, is_coded};
use crate::random::Random;
use crate::simulated::simulated;
use crate::suite::agree;
use crate::target::{Case, Target, processors};
use crate::words::Own;

const ACCESSES: [Access; 2] = [Access::Rows, Access::Whole];

/// Lengths of rows around those of groups, quarters of warps, records and lanes.
const COLUMNS: [u64; 19] =
    [1, 2, 3, 7, 8, 31, 33, 64, 100, 255, 256, 257, 384, 1000, 1023, 1024, 1025, 2500, 4096];

/// Runs plans; returns how many cases there were, and how many of them had blocks that are not raw.
fn run(plans: impl IntoIterator<Item = Plan>) -> (usize, usize) {
    let cases = plans.into_iter().filter_map(|plan| plan.case());
    cases.fold((0, 0), |(n, coded), case| {
        agree(&case).expect("a good case decodes");
        (n + 1, coded + usize::from(is_coded(&case)))
    })
}

#[test]
fn every_codec_dtype_and_access() {
    for &codec in CodecId::ALL {
        let plans = Dtype::ALL.iter().flat_map(|&dtype| {
            ACCESSES.into_iter().flat_map(move |access| {
                (0..4).map(move |seed| Plan { codec, dtype, access, rows: 24, columns: 72, seed })
            })
        });
        let (n, coded) = run(plans);
        println!("{codec}: {n} cases, {coded} coded");
    }
}

#[test]
fn tensors_of_all_kinds_are_decoded_together() {
    let plan = |codec, dtype, seed| {
        let access = ACCESSES[usize::from(seed % 2 == 1)];
        Plan { codec, dtype, access, rows: 9 + 40 * (seed % 3), columns: 150 + 300 * (seed % 4), seed }
    };
    let mut cases = Vec::new();
    for (dtype, seed) in Dtype::ALL.iter().cycle().zip(0..60) {
        cases.extend(CodecId::ALL.iter().filter_map(|&codec| plan(codec, *dtype, seed).case()));
    }
    assert!(cases.len() > 200);
    decode_together(&cases);
}

/// A thread block that goes on to a job of the other tensor loads its dictionary.
#[test]
fn sparse_tensors_with_different_dictionaries_are_decoded_together() {
    let (codec, dtype, access, rows, columns) = (CodecId::Sparse, Dtype::Bf16, Access::Rows, 400, 600);
    let geometry = Geometry::new(dtype, &[rows, columns], access, None).expect("a shape");
    // A dictionary of 256 words: of fewer, the unused ones are equal.
    let has_dictionary =
        |seed: &u64| Own::new(codec, &geometry, &mut Random(*seed)).is_some_and(|own| own.fields[1] == 9);
    let seeds = (0..).filter(has_dictionary).take(16);
    let cases: Vec<Case> = seeds
        .filter_map(|seed| Plan { codec, dtype, access, rows, columns, seed }.case())
        .filter(is_coded)
        .collect();
    assert!(cases.len() > 1 && cases.iter().all(|case| case.blocks.len() > 2));
    decode_together(&cases);
}

/// A thread block goes on from a job of 8 lanes per record to one of 32, and back.
#[test]
fn short_and_long_records_are_decoded_together() {
    for &codec in &CodecId::ALL[1..] {
        let plan = |columns, seed| Plan {
            codec,
            dtype: Dtype::F16,
            access: Access::Rows,
            rows: 150_000 / columns,
            columns,
            seed,
        };
        let plans = [plan(200, 1), plan(1500, 2), plan(130, 3)];
        let cases: Vec<Case> = plans.iter().filter_map(Plan::case).collect();
        assert!(cases.len() == 3 && cases.iter().all(|case| case.blocks.len() > 1), "{codec}");
        decode_together(&cases);
    }
}

fn decode_together(cases: &[Case]) {
    let expected: Vec<_> =
        cases.iter().map(|case| processors()[0].decode(case).expect("a good case")).collect();
    let cases: Vec<&Case> = cases.iter().collect();
    for target in simulated() {
        assert!(target.decode_together(&cases).as_ref() == Ok(&expected), "{}", target.name());
    }
}

#[test]
fn every_length_of_rows() {
    for &codec in CodecId::ALL {
        let plans = COLUMNS.into_iter().flat_map(|columns| {
            ACCESSES.into_iter().flat_map(move |access| {
                let dtypes = [Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::F8E5m2];
                let rows = (4000 / columns).clamp(3, 20);
                dtypes.into_iter().zip(0..).map(move |(dtype, i)| Plan {
                    codec,
                    dtype,
                    access,
                    rows,
                    columns,
                    seed: 100 * columns + i,
                })
            })
        });
        let (n, coded) = run(plans);
        println!("{codec}: {n} cases, {coded} coded");
    }
}

#[test]
fn tensors_of_many_blocks_and_of_pieces() {
    for &codec in CodecId::ALL {
        let plan = |dtype, access, rows, columns| Plan { codec, dtype, access, rows, columns, seed: 5 };
        let (_, coded) = run([
            // Elements up to number 2^18 - 1 of a block, and rests as far into the overflow.
            plan(Dtype::F8E5m2, Access::Rows, 1100, 256),
            plan(Dtype::F64, Access::Whole, 1, 140_000),
            plan(Dtype::Bf16, Access::Rows, 2, 131_072 + 700),
            plan(Dtype::F32, Access::Whole, 300, 1000),
        ]);
        println!("{codec}: {coded} coded");
    }
}

#[test]
fn tensors_without_elements_and_of_one() {
    for &codec in CodecId::ALL {
        for access in ACCESSES {
            for (rows, columns) in [(0, 5), (3, 0), (0, 0), (1, 1), (2, 1), (1, 2)] {
                let plans = [Dtype::Bf16, Dtype::F64, Dtype::F8E4m3].map(|dtype| Plan {
                    codec,
                    dtype,
                    access,
                    rows,
                    columns,
                    seed: 1,
                });
                run(plans);
            }
        }
    }
}

/// Payloads of NaN, infinities, denormals, both zeros, and bytes of noise among them.
fn special_words(dtype: Dtype, n: u64) -> Vec<u8> {
    let bytes = dtype.bits() as usize / 8;
    let mut random = Random(9);
    let all = u64::MAX >> (64 - dtype.bits());
    let sign = 1 << (dtype.bits() - 1);
    let exponents = [0, all ^ sign, (all ^ sign) / 3, 1, 2];
    (0..n)
        .flat_map(|_| {
            let payload = if random.chance(50) { random.next() & 0xF } else { 0 };
            let word = random.pick(&exponents) ^ payload ^ if random.chance(50) { sign } else { 0 };
            word.to_le_bytes().into_iter().take(bytes)
        })
        .collect()
}

#[test]
fn special_floats() {
    for dtype in
        [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64, Dtype::C64, Dtype::F8E4m3, Dtype::F8E5m2Fnuz]
    {
        for access in ACCESSES {
            let geometry = Geometry::new(dtype, &[9, 300], access, None).expect("a shape");
            let raw = special_words(dtype, 2700);
            for &codec in &CodecId::ALL[1..] {
                let Ok(fit) = fit::fit(codec, &geometry, &[(fit::Piece::block(&geometry, 0), &raw)]) else {
                    continue;
                };
                let coder = fit.metadata.map(|metadata| Coder::new(&metadata, &geometry).expect("a coder"));
                let case = encode(format!("special {codec} {dtype} {access:?}"), &geometry, coder, &raw);
                assert!(agree(&case).as_ref() == Ok(&raw), "{}", case.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tensor(
        codec in sample::select(CodecId::ALL),
        dtype in sample::select(Dtype::ALL),
        whole in any::<bool>(),
        rows in 1..40_u64,
        columns in prop_oneof![1..80_u64, 1..1200_u64, 1000..3000_u64],
        seed in any::<u64>(),
    ) {
        let access = if whole { Access::Whole } else { Access::Rows };
        run([Plan { codec, dtype, access, rows, columns, seed }]);
    }
}
