//! The cases: every codec, dtype and access, lengths around every boundary.

use tierpack_shm::types::{Access, CodecId, Dtype};

use crate::make::{Plan, is_coded};
use crate::suite::agree;

const ACCESSES: [Access; 2] = [Access::Rows, Access::Whole];

/// Lengths of rows around those of groups, quarters of warps, records and lanes.
const COLUMNS: [u64; 19] =
    [1, 2, 3, 7, 8, 31, 33, 64, 100, 255, 256, 257, 384, 1000, 1023, 1024, 1025, 2500, 4096];

/// Runs plans; gives how many cases there were, and how many of them had blocks that are not raw.
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
