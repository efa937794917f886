//! Jobs and launches without a GPU: addresses are numbers here.

use tierpack_shm::types::{Access, Dtype};

use super::*;
use crate::codec::{self, Encoding};
use crate::fit;

const SRC: u64 = 1 << 40;

fn stored(header: &[u8]) -> StoredBlock<'_> {
    StoredBlock { block_idx: 0, header, src: SRC, form: 1 << 41, out: 1 << 42, number: 7 }
}

/// Rows of bf16 with few exponents, and a coder for them.
fn fitted(codec: CodecId, shape: &[u64]) -> (Geometry, Coder, Vec<u8>) {
    let geometry = Geometry::new(Dtype::Bf16, shape, Access::Rows, None).expect("a valid shape");
    let raw: Vec<u8> = (0..shape.iter().product::<u64>()).flat_map(|i| [(i * 7 % 251) as u8, 0x3F]).collect();
    let metadata = fit::fit(codec, &geometry, &[(fit::Piece::block(&geometry, 0), &raw)])
        .expect("a fit")
        .metadata
        .expect("metadata");
    let coder = Coder::new(&metadata.with_generation(1), &geometry).expect("a coder");
    let mut bytes = Vec::new();
    codec::encode_block(Encoding::Coded(&coder), &geometry, 0, &raw, &mut bytes).expect("a block");
    (geometry, coder, bytes)
}

#[test]
fn a_job_says_where_the_records_are() {
    let (geometry, coder, bytes) = fitted(CodecId::Planes4, &[4, 1500]);
    let (codec, job) = block_job(Some(&coder), &geometry, &stored(&bytes[..64])).expect("a job");
    assert_eq!(codec, CodecId::Planes4);
    assert_eq!((job.runs, job.records, job.tail_elems, job.raw_len), (4, 2, 476, 12_000));
    assert_eq!((job.record_stride, job.tail_stride), (1536, 716));
    assert_eq!((job.front_len, job.stored_len as usize), (4 * (1536 + 716), bytes.len()));
    assert_eq!((job.src, job.form, job.out, job.number), (SRC, 1 << 41, 1 << 42, 7));
}

#[test]
fn a_job_is_refused_where_the_header_contradicts() {
    let (geometry, coder, bytes) = fitted(CodecId::Planes4, &[4, 1500]);
    let other = Geometry::new(Dtype::Bf16, &[5, 1500], Access::Rows, None).expect("a valid shape");
    let job = |coder, geometry, block: StoredBlock<'_>| block_job(coder, geometry, &block).map(|_| ());
    assert_eq!(
        job(Some(&coder), &other, stored(&bytes)),
        Err(Error::Field { field: "rows", found: 4, expected: 5 })
    );
    assert_eq!(
        job(Some(&coder), &geometry, StoredBlock { block_idx: 1, ..stored(&bytes) }),
        Err(Error::NoSuchBlock { block_idx: 1, n_blocks: 1 })
    );
    assert_eq!(
        job(None, &geometry, stored(&bytes)),
        Err(Error::NoMetadata { codec: CodecId::Planes4, generation: 1 })
    );
    let odd = StoredBlock { src: SRC + 8, ..stored(&bytes) };
    assert_eq!(
        job(Some(&coder), &geometry, odd),
        Err(Error::Address { of: "the block", address: SRC + 8, unit: 16 })
    );
    let odd = StoredBlock { form: 4, ..stored(&bytes) };
    assert_eq!(
        job(Some(&coder), &geometry, odd),
        Err(Error::Address { of: "the metadata", address: 4, unit: 16 })
    );
    assert_eq!(
        job(Some(&coder), &geometry, stored(&bytes[..63])),
        Err(Error::BlockTruncated { needed: 64, got: 63 })
    );
    let mut damaged = bytes;
    damaged[28] ^= 4;
    assert!(matches!(job(Some(&coder), &geometry, stored(&damaged)), Err(Error::Field { .. })));
}

#[test]
fn a_raw_block_needs_no_metadata() {
    let geometry = Geometry::new(Dtype::U8, &[2, 3], Access::Rows, None).expect("a valid shape");
    let mut bytes = Vec::new();
    codec::encode_block(Encoding::Raw, &geometry, 0, &[9; 6], &mut bytes).expect("a block");
    let (codec, job) = block_job(None, &geometry, &stored(&bytes)).expect("a job");
    assert_eq!((codec, job.form), (CodecId::Raw, 0));
    assert_eq!((job.stored_len, job.raw_len, job.front_len, job.runs, job.tail_stride), (70, 6, 6, 2, 3));
}

fn job_of(stride: u32, records: u32, tail_elems: u32) -> BlockJob {
    BlockJob {
        record_stride: stride,
        tail_stride: stride,
        records,
        tail_elems,
        runs: 256,
        ..BlockJob::default()
    }
}

#[test]
fn launches_are_one_per_kernel_and_keep_the_order() {
    let job = |number| BlockJob { number, ..job_of(1536, 1, 1024) };
    let mut jobs = vec![
        (CodecId::Planes4, job(0)),
        (CodecId::Raw, job(1)),
        (CodecId::IbpWindow, job(2)),
        (CodecId::Planes4, job(3)),
        (CodecId::Ibp, job(4)),
    ];
    let launches = decode_launches(&mut jobs, 100);
    let kernels: Vec<_> = launches.iter().map(|launch| (launch.kernel, launch.jobs.clone())).collect();
    assert_eq!(kernels, [("decode_ibp", 0..2), ("decode_planes4", 2..4), ("decode_raw", 4..5)]);
    assert_eq!(jobs.iter().map(|(_, job)| job.number).collect::<Vec<_>>(), [2, 4, 0, 3, 1]);
    assert_eq!(decode_launches(&mut [], 100), []);
}

#[test]
fn shared_memory_fits_without_an_attribute() {
    for (stride, records, tail_elems) in
        [(8196, 1, 1024), (8196, 2, 1024), (2052, 1, 256), (1536, 1, 1024), (8, 1, 1), (7300, 3, 5)]
    {
        let job = job_of(stride, records, tail_elems);
        let launch = launch(&[(CodecId::Ibp, job)], 0, 100);
        assert_eq!(launch.shared_bytes, 4 * launch.warp_bytes);
        assert!(launch.shared_bytes <= 46 * 1024, "{launch:?}");
        assert!(launch.warp_bytes >= records_per_warp(&job) * window_bytes(&job), "{launch:?}");
    }
    let stages = |stride| warp_bytes(CodecId::Planes4, &job_of(stride, 1, 1024)) / (stride + 32);
    assert_eq!([512, 1536, 4096, 8192].map(stages), [4, 3, 2, 1]);
}

#[test]
fn few_jobs_are_cut_into_slices() {
    let grid = |n: usize| launch(&vec![(CodecId::Ibp, job_of(1536, 1, 1024)); n], 0, 100).grid;
    assert_eq!(grid(1), [1, 32, 1], "256 records of a job: 8 for each thread block");
    assert_eq!(grid(100), [100, 8, 1]);
    assert_eq!(grid(10_000), [10_000, 1, 1]);
}

#[test]
fn an_overlay_is_one_of_its_block() {
    let good =
        StoredOverlay { n_rows: 3, row_bytes: 100, rows_at: 128, raw_len: 400, src: SRC, out: 1, number: 5 };
    let job = overlay_job(&good).expect("a job");
    assert_eq!((job.n_rows, job.row_bytes, job.rows_at, job.raw_len, job.number), (3, 100, 128, 400, 5));
    for bad in [
        StoredOverlay { n_rows: 5, ..good },
        StoredOverlay { row_bytes: 0, ..good },
        StoredOverlay { row_bytes: 300, ..good },
        StoredOverlay { rows_at: 64, ..good },
        StoredOverlay { rows_at: 100, ..good },
        StoredOverlay { raw_len: 2 << 20, row_bytes: 1, n_rows: 1, ..good },
        StoredOverlay { n_rows: u64::MAX, row_bytes: 1, raw_len: 1 << 20, ..good },
    ] {
        assert!(matches!(overlay_job(&bad), Err(Error::Overlay { .. })), "{bad:?}");
    }
    assert_eq!(
        overlay_job(&StoredOverlay { src: 8, ..good }),
        Err(Error::Address { of: "the overlay", address: 8, unit: 16 })
    );
    assert_eq!(overlay_launch(2..5).grid, [3, 1, 1]);
}
