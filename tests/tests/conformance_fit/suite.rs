//! Bytes that the CPU and the device count, and what they counted.

use proptest::prelude::*;
use tierpack_kernels::cuda::abi::CountJob;
use tierpack_kernels::cuda::count::{
    ALWAYS_BYTES, ColumnBases, bits_job, bits_launch, exponents_job, exponents_launch,
};
use tierpack_kernels::cuda::launch::Launch;
use tierpack_kernels::fit::counts::{self, BitCounts};
use tierpack_kernels::fit::{Piece, Sample};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{Access, CodecId, Dtype, index};
use zerocopy::IntoBytes;

use crate::device::{self, Memory};
use crate::model::{self, Model, Random, exponent_bits};

/// Runs a kernel that takes jobs and their number.
fn count(launch: &Launch, jobs: &[CountJob], order: u32) {
    let mut memory = Memory::of(jobs.as_bytes(), 0);
    let n_jobs = u32::try_from(jobs.len()).expect("a small number");
    let mut args = [memory.address().to_le_bytes().to_vec(), n_jobs.to_le_bytes().to_vec()];
    device::run(launch, &mut args, order);
}

fn counters(memory: &Memory) -> Vec<u32> {
    memory.bytes().as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// Each sample block as it is on the device: its address and its bytes.
fn places<'a>(memory: &mut Memory, sample: &'a [Sample<'_>]) -> Vec<(u64, &'a [u8])> {
    let mut at = memory.address();
    let place = |&(_, raw): &'a Sample<'_>| {
        let place = (at, raw);
        at += raw.len() as u64;
        place
    };
    sample.iter().map(place).collect()
}

fn bits_on_device(
    sample: &[Sample<'_>],
    period: u64,
    run_bytes: usize,
    skip: usize,
    order: u32,
) -> BitCounts {
    let all: Vec<u8> = sample.iter().flat_map(|(_, raw)| raw.to_vec()).collect();
    let (mut memory, mut counts) = (Memory::of(&all, skip), Memory::of(&vec![0; index(32 * period)], 0));
    let counts_at = counts.address();
    let runs: Vec<(u64, u64)> = places(&mut memory, sample)
        .into_iter()
        .flat_map(|(at, raw)| {
            let runs = raw.chunks(run_bytes).enumerate();
            runs.map(move |(i, run)| (at + (i * run_bytes) as u64, run.len() as u64)).collect::<Vec<_>>()
        })
        .collect();
    let jobs: Vec<_> =
        runs.iter().map(|&(at, len)| bits_job(at, len, period, counts_at).expect("a small job")).collect();
    count(&bits_launch(&jobs).expect("few words"), &jobs, order);
    let ones = counters(&counts).as_chunks().0.iter().map(|ones: &[u32; 8]| ones.map(u64::from)).collect();
    BitCounts { ones, seen: counts::seen(period, runs.iter().map(|&(_, len)| len)) }
}

/// Counters, and the bits that are one or zero in all words.
fn exponents_on_device(
    geometry: &Geometry,
    sample: &[Sample<'_>],
    columns: u64,
    bases: Option<&[u16]>,
    order: u32,
) -> (Vec<u32>, [u64; 2]) {
    let dtype = geometry.dtype();
    let n_exponents = 1 << exponent_bits(dtype).expect("a float");
    let all: Vec<u8> = sample.iter().flat_map(|(_, raw)| raw.to_vec()).collect();
    let mut memory = Memory::of(&all, 0);
    let always = index(ALWAYS_BYTES);
    let start = [vec![0xFF; always], vec![0; index(4 * columns) * n_exponents]].concat();
    let mut counts = Memory::of(&start, 0);
    let counts_at = counts.address();
    let mut base_memory = bases.map(|bases| Memory::of(bases.as_bytes(), 0));
    let bases = base_memory
        .as_mut()
        .map(|memory| ColumnBases { address: memory.address(), columns: geometry.row_elems() });
    let jobs: Vec<_> = places(&mut memory, sample)
        .into_iter()
        .map(|(at, raw)| {
            let job = exponents_job(dtype, at, raw.len() as u64, columns, bases, counts_at);
            job.expect("a small job").expect("a float")
        })
        .collect();
    count(&exponents_launch(&jobs).expect("few words"), &jobs, order);
    let bytes = counts.bytes();
    let always = bytes.as_chunks().0[..2].iter().map(|bytes| u64::from_le_bytes(*bytes)).collect::<Vec<_>>();
    (counters(&counts)[index(ALWAYS_BYTES / 4)..].to_vec(), [always[0], always[1]])
}

fn check(geometry: &Geometry, raw: &[u8], skip: usize) {
    let sample: Vec<Sample<'_>> = (0..geometry.n_blocks())
        .map(|block_idx| {
            let piece = Piece::block(geometry, block_idx);
            (piece, &raw[piece.in_tensor()])
        })
        .collect();
    let row_bytes = geometry.row_bytes();
    let by_group = counts::bits_by_group(geometry, &sample).expect("a sample");
    let by_column = counts::bits_by_column(geometry, &sample).expect("a sample");
    let run_bytes =
        if counts::groups_start_at_rows(geometry) { index(geometry.block(0).row_bytes) } else { raw.len() };
    for order in device::orders() {
        assert_eq!(bits_on_device(&sample, 8, run_bytes, skip, order), by_group, "{geometry:?}");
        if geometry.pieces_per_row() == 1 {
            let found = bits_on_device(&sample, row_bytes, raw.len(), skip, order);
            assert_eq!(found, by_column, "{geometry:?}");
        }
        check_exponents(geometry, &sample, order);
    }
}

fn check_exponents(geometry: &Geometry, sample: &[Sample<'_>], order: u32) {
    let (dtype, wide) =
        (geometry.dtype(), |counts: Vec<u32>| counts.into_iter().map(u64::from).collect::<Vec<_>>());
    let expected = counts::exponents(geometry, sample).expect("a sample");
    assert_eq!(expected.is_some(), exponent_bits(dtype).is_some());
    let Some(expected) = expected else { return };
    let (found, [ones, zeros]) = exponents_on_device(geometry, sample, 1, None, order);
    assert_eq!(wide(found), expected.counts, "{geometry:?}");
    assert_eq!(counts::dropped_bits(dtype, ones, zeros), Some(expected.dropped), "{geometry:?}");
    if let Some((bases, reduced)) = expected.by_column {
        let columns = geometry.row_elems();
        let (found, _) = exponents_on_device(geometry, sample, columns, None, order);
        assert_eq!(counts::medians(dtype, &found), Some(bases.clone()), "{geometry:?}");
        let (found, _) = exponents_on_device(geometry, sample, 1, Some(&bases), order);
        assert_eq!(wide(found), reduced, "{geometry:?}");
    }
}

#[test]
fn every_dtype_is_counted_as_on_the_cpu() {
    for (&dtype, seed) in Dtype::ALL.iter().zip(1..) {
        for access in [Access::Rows, Access::Whole] {
            for shape in [[4, 1348], [17, 12], [1, 4]] {
                let geometry = Geometry::new(dtype, &shape, access, None).expect("a valid shape");
                let mut random = Random(seed);
                let codec = if model::has(CodecId::Planes3, dtype) { CodecId::Planes3 } else { CodecId::Ibp };
                let raw = Model::new(codec, &geometry, &mut random).raw(&geometry, 0, &mut random);
                check(&geometry, &raw, 0);
            }
        }
    }
}

#[test]
fn several_blocks_share_their_counters() {
    for (dtype, shape, access) in [
        (Dtype::Bf16, [9, 20_000], Access::Rows),
        (Dtype::U8, [1, 262_147], Access::Rows),
        (Dtype::F16, [3, 50_001], Access::Whole),
    ] {
        let geometry = Geometry::new(dtype, &shape, access, None).expect("a valid shape");
        assert!(geometry.n_blocks() > 1);
        let mut random = Random(3);
        let raw: Vec<u8> = (0..geometry.raw_bytes()).map(|_| random.next().to_le_bytes()[0]).collect();
        check(&geometry, &raw, 0);
    }
}

proptest! {
    #![proptest_config(device::cases(100))]
    #[test]
    fn any_bytes_are_counted_as_on_the_cpu(
        dtype in proptest::sample::select(Dtype::ALL),
        rows in 1_u64..30,
        columns in 1_u64..600,
        whole in any::<bool>(),
        same in any::<u8>(),
        skip in 0_usize..16,
        seed in any::<u64>(),
    ) {
        let access = if whole { Access::Whole } else { Access::Rows };
        if let Ok(geometry) = Geometry::new(dtype, &[rows, columns], access, None) {
            let mut random = Random(seed);
            let raw: Vec<u8> = (0..geometry.raw_bytes()).map(|_| random.next().to_le_bytes()[0] | same).collect();
            check(&geometry, &raw, skip);
        }
    }
}
