//! Blocks that the kernels encode on the simulated device are those of the CPU, byte for byte.
//!
//! Scalar, the machine's best level and the device, in three orders of the lanes, all see the same tensors.

#![deny(unsafe_code)]

#[path = "conformance_encode/device.rs"]
mod device;
#[path = "conformance_encode/model.rs"]
mod model;

use proptest::prelude::*;
use tierpack_kernels::codec::{self, Encoded, Encoding};
use tierpack_kernels::cuda::abi::{EncodeJob, EncodeResult};
use tierpack_kernels::cuda::encode::{Addresses, BlockPlan, Outcome, place_launch, records_launch};
use tierpack_kernels::cuda::form::device_form;
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, Level};
use tierpack_shm::types::{Access, CodecId, Dtype, index};
use zerocopy::{FromBytes, IntoBytes};

use device::Memory;
use model::{Model, Random};

const CODECS: [CodecId; 6] = [
    CodecId::Ibp,
    CodecId::IbpWindow,
    CodecId::Planes4,
    CodecId::Planes3,
    CodecId::Planes222,
    CodecId::Sparse,
];

/// Multiprocessors of the device that launches are planned for: enough that jobs are cut into slices.
const MULTIPROCESSORS: u32 = 1;

/// What an encoder gave for each block.
type Blocks = Vec<(Encoded, Vec<u8>)>;

fn raw_of<'a>(geometry: &Geometry, block_idx: u64, raw: &'a [u8]) -> &'a [u8] {
    let shape = geometry.block(block_idx);
    &raw[index(shape.byte_offset)..][..index(shape.raw_bytes)]
}

fn on_cpu(coder: &Coder, level: Level, geometry: &Geometry, raw: &[u8]) -> Blocks {
    let coder = coder.clone().with_level(level);
    let encode = |block_idx| {
        let (mut out, encoding) = (Vec::new(), Encoding::Coded(&coder));
        let raw = raw_of(geometry, block_idx, raw);
        (codec::encode_block(encoding, geometry, block_idx, raw, &mut out).expect("a block"), out)
    };
    (0..geometry.n_blocks()).map(encode).collect()
}

fn on_device(coder: &Coder, geometry: &Geometry, raw: &[u8], skip: usize, order: u32) -> Blocks {
    let plans: Vec<_> = (0..geometry.n_blocks())
        .map(|block_idx| BlockPlan::new(coder, block_idx).expect("a block"))
        .collect();
    let mut raw_memory = Memory::of(raw, skip);
    let mut form = Memory::of(&device_form(coder), 0);
    let mut works: Vec<_> =
        plans.iter().map(|plan| Memory::of(&vec![device::FILL; index(plan.work_len())], 0)).collect();
    let (raw_at, form_at) = (raw_memory.address(), form.address());
    let jobs: Vec<EncodeJob> = (0..)
        .zip(plans.iter().zip(&mut works))
        .map(|(block_idx, (plan, work))| {
            let raw = raw_at + geometry.block(block_idx).byte_offset;
            plan.job(&Addresses { raw, form: form_at, work: work.address() }).expect("aligned addresses")
        })
        .collect();
    let mut job_memory = Memory::of(jobs.as_bytes(), 0);
    let records = records_launch(&plans, MULTIPROCESSORS).expect("a block");
    let mut args = vec![
        job_memory.address().to_le_bytes().to_vec(),
        u32::try_from(jobs.len()).expect("a small number").to_le_bytes().to_vec(),
        records.warp_bytes.to_le_bytes().to_vec(),
    ];
    device::run(&records, &mut args, order);
    device::run(&place_launch(jobs.len()), &mut args[..2], order);
    assert!(raw_memory.bytes() == raw, "the raw bytes were changed");
    let blocks = plans.iter().zip(&works).enumerate().map(|(block_idx, (plan, work))| {
        let work = work.bytes();
        let result = EncodeResult::read_from_prefix(&work).expect("a result").0;
        let bytes = match plan.outcome(&result) {
            Outcome::Raw => raw_of(geometry, block_idx as u64, raw),
            Outcome::Coded(range) => &work[index(range.start)..index(range.end)],
        };
        let mut out = vec![1, 2, 3];
        (plan.finish(&result, bytes, &mut out).expect("what the outcome names"), out)
    });
    blocks.collect()
}

/// How many blocks stayed raw, and how many were encoded.
#[derive(Debug, Default)]
struct Seen {
    raw: usize,
    coded: usize,
    escapes: u64,
    participating: u64,
}

/// Encodes one tensor everywhere and compares.
fn check(codec: CodecId, geometry: &Geometry, strange: u64, seed: u64, seen: &mut Seen) {
    let mut random = Random(seed);
    let model = Model::new(codec, geometry, &mut random);
    let metadata = Metadata::parse(&model.metadata, geometry).expect("metadata as the format says");
    let coder = Coder::new(&metadata, geometry).expect("metadata of this tensor");
    let raw = model.raw(geometry, strange, &mut random);
    let expected = on_cpu(&coder, Level::Scalar, geometry, &raw);
    let context = format!("{codec:?} {geometry:?} strange {strange} seed {seed}");
    assert!(on_cpu(&coder, Level::detect(), geometry, &raw) == expected, "the best level: {context}");
    for order in 0..3 {
        let skip = index(random.below(2) * random.below(16));
        for (block_idx, (found, expected)) in
            on_device(&coder, geometry, &raw, skip, order).iter().zip(&expected).enumerate()
        {
            let context = format!("block {block_idx}, order {order}, {skip} bytes on: {context}");
            assert_eq!(found.0, expected.0, "{context}");
            let differs = found.1.iter().zip(&expected.1).position(|(found, expected)| found != expected);
            assert_eq!((differs, found.1.len()), (None, expected.1.len()), "{context}");
        }
    }
    for (encoded, _) in expected {
        *(if encoded.codec == CodecId::Raw { &mut seen.raw } else { &mut seen.coded }) += 1;
        seen.escapes += encoded.escapes;
        seen.participating += encoded.participating;
    }
}

fn geometry(dtype: Dtype, shape: &[u64], access: Access) -> Geometry {
    Geometry::new(dtype, shape, access, None).expect("a valid shape")
}

/// Every dtype that a codec is for, under both accesses: rows of more than a record, of a part of one, and odd ones.
fn check_codec(codec: CodecId) {
    let mut seen = Seen::default();
    for (&dtype, seed) in Dtype::ALL.iter().filter(|&&dtype| model::has(codec, dtype)).zip(1..) {
        for access in [Access::Rows, Access::Whole] {
            // Columns of whole bytes also for 4-bit and 6-bit elements.
            for (shape, strange) in
                [([2, 1348], 0), ([3, 1024], 40), ([5, 52], 3), ([1, 4], 0), ([6, 100], 1), ([2, 2052], 600)]
            {
                check(codec, &geometry(dtype, &shape, access), strange, seed * 1000 + strange, &mut seen);
            }
        }
    }
    assert!(seen.raw > 5 && seen.coded > 5, "{codec:?}: {seen:?}");
    assert!(seen.escapes > 1000 && seen.participating > 1000, "{codec:?}: {seen:?}");
}

#[test]
fn ibp_encodes_as_the_cpu_does() {
    check_codec(CodecId::Ibp);
}

#[test]
fn ibp_window_encodes_as_the_cpu_does() {
    check_codec(CodecId::IbpWindow);
}

#[test]
fn planes_4_encodes_as_the_cpu_does() {
    check_codec(CodecId::Planes4);
}

#[test]
fn planes_3_encodes_as_the_cpu_does() {
    check_codec(CodecId::Planes3);
}

#[test]
fn planes_2_2_2_encodes_as_the_cpu_does() {
    check_codec(CodecId::Planes222);
}

#[test]
fn sparse_encodes_as_the_cpu_does() {
    check_codec(CodecId::Sparse);
}

/// Blocks of several shapes in one launch: the last rows, and pieces of rows longer than a block.
#[test]
fn blocks_of_several_shapes_encode_in_one_launch() {
    let mut seen = Seen::default();
    for codec in CODECS {
        let rows = geometry(Dtype::Bf16, &[9, 20_000], Access::Rows);
        assert_eq!(rows.n_blocks(), 3);
        check(codec, &rows, 100, 5, &mut seen);
        let pieces = geometry(Dtype::Bf16, &[1, 132_100], Access::Whole);
        assert_eq!(pieces.n_blocks(), 2);
        check(codec, &pieces, 100, 6, &mut seen);
        // More records than `place_records` has threads, of a single element.
        check(codec, &geometry(Dtype::F16, &[700, 1], Access::Rows), 4, 7, &mut seen);
    }
    assert!(seen.coded > 10, "{seen:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_tensor_encodes_as_on_the_cpu(
        codec in proptest::sample::select(&CODECS[..]),
        dtype in proptest::sample::select(Dtype::ALL),
        rows in 1_u64..20,
        columns in prop_oneof![1_u64..70, 1000_u64..1100, 1_u64..2500],
        whole in any::<bool>(),
        strange in prop_oneof![Just(0_u64), 1_u64..2000],
        seed in any::<u64>(),
    ) {
        let access = if whole { Access::Whole } else { Access::Rows };
        if let Ok(geometry) = Geometry::new(dtype, &[rows, columns], access, None)
            && model::has(codec, dtype)
        {
            check(codec, &geometry, strange, seed, &mut Seen::default());
        }
    }
}
