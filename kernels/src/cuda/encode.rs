//! Encoding on a GPU: jobs and launches for blocks in device memory, and the header that the host adds.
//!
//! One kernel packs each record into a slot, then [`place_launch`]'s writes front and overflow.
//! The host reads the [`EncodeResult`] of a block, copies back what [`BlockPlan::outcome`] names, and
//! [`BlockPlan::finish`] makes the block of it: the same bytes as [`crate::codec::encode_block`].

use core::ops::Range;

use tierpack_shm::types::{CodecId, index};

use super::abi::{EncodeJob, EncodeResult, RecordNote};
use super::launch::{Launch, THREADS, check_address};
use crate::codec::Encoded;
use crate::coder::Coder;
use crate::cut::Grid;
use crate::error::{Error, Result};
use crate::geometry::BlockShape;
use crate::records::{stays_raw, write_coded};
use crate::scalar;

/// What slots start at a multiple of, and addresses must be multiples of.
const UNIT: u64 = 16;

/// Dynamic shared memory of a thread block that needs no attribute.
const MAX_SHARED_BYTES: u32 = 48 * 1024;

/// Threads of a thread block of `place_records`.
const PLACE_THREADS: u32 = 256;

/// Thread blocks per multiprocessor from which on jobs are no longer cut into slices.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Where things are in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The block's first raw byte, of any alignment; multiples of 16 are fast.
    pub raw: u64,
    /// [`super::form::device_form`] of the coder, a multiple of 16.
    pub form: u64,
    /// [`BlockPlan::work_len`] bytes of the job's own, a multiple of 16; they may hold anything.
    pub work: u64,
}

/// What the host copies back of an encoded block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The block's raw bytes: encoding does not shorten it.
    Raw,
    /// Front and overflow: these bytes of the work memory.
    Coded(Range<u64>),
}

/// How one block is encoded.
#[derive(Clone, Debug)]
pub struct BlockPlan<'a> {
    coder: &'a Coder,
    shape: BlockShape,
    grid: Grid,
    /// The most raw bytes, and the greatest stride, of a record.
    most_raw: u64,
    most_stride: u64,
}

impl<'a> BlockPlan<'a> {
    /// Plans a block of the coder's tensor.
    ///
    /// # Errors
    /// [`Error::NoSuchBlock`] where it has no such block.
    pub fn new(coder: &'a Coder, block_idx: u64) -> Result<Self> {
        let shape = coder.geometry().block(block_idx);
        if shape.rows == 0 {
            return Err(Error::NoSuchBlock { block_idx, n_blocks: coder.geometry().n_blocks() });
        }
        let grid = coder.grid(&shape);
        let records = [grid.place(0, 0), grid.place(0, grid.runs.records - 1)];
        let most_raw = records.iter().map(|place| place.raw_bytes).max().unwrap_or(0);
        let most_stride = records.iter().map(|place| place.stride).max().unwrap_or(0);
        Ok(Self { coder, shape, grid, most_raw, most_stride })
    }

    /// Raw bytes of the block.
    pub const fn raw_len(&self) -> u64 {
        self.shape.raw_bytes
    }

    /// Bytes of work memory that the block needs.
    pub fn work_len(&self) -> u64 {
        // No more overflow than raw bytes is ever written.
        (self.out_at() + self.grid.front_len() + self.raw_len()).next_multiple_of(UNIT)
    }

    const fn slots_at(&self) -> u64 {
        let notes = self.grid.runs.total_records() * size_of::<RecordNote>() as u64;
        (size_of::<EncodeResult>() as u64 + notes).next_multiple_of(UNIT)
    }

    /// Where the escapes start in a slot of `planes:4`; its fixed parts take their strides.
    fn list_at(&self) -> u64 {
        if self.coder.has_heads() { 0 } else { self.most_stride.next_multiple_of(UNIT) }
    }

    /// Of records with heads, only what is shorter than the raw bytes is kept.
    fn slot_bytes(&self) -> u64 {
        let list_len = if self.coder.has_heads() { self.most_raw } else { 4 * self.elems(self.most_raw) };
        (self.list_at() + list_len).next_multiple_of(UNIT)
    }

    fn elems(&self, raw_bytes: u64) -> u64 {
        8 * raw_bytes / u64::from(self.coder.geometry().dtype().bits())
    }

    fn out_at(&self) -> u64 {
        self.slots_at() + self.grid.runs.total_records() * self.slot_bytes()
    }

    /// Shared memory of a warp, as `encode_records` in `encode.cuh` divides it: raw bytes, then the string of bits.
    fn warp_bytes(&self) -> u32 {
        let string = self.most_raw.max(self.list_at());
        small((self.most_raw + 31) / UNIT * UNIT + string.next_multiple_of(UNIT) + UNIT)
    }

    /// The job.
    ///
    /// # Errors
    /// [`Error::Address`] for one that is not a multiple of 16.
    pub fn job(&self, at: &Addresses) -> Result<EncodeJob> {
        for (of, address) in [("the metadata", at.form), ("the work memory", at.work)] {
            check_address(of, address, UNIT)?;
        }
        let (first, last) = (self.grid.place(0, 0), self.grid.place(0, self.grid.runs.records - 1));
        Ok(EncodeJob {
            raw: at.raw,
            form: at.form,
            work: at.work,
            raw_len: small(self.raw_len()),
            runs: small(self.grid.runs.count),
            records: small(self.grid.runs.records),
            record_bytes: small(first.raw_bytes),
            tail_bytes: small(last.raw_bytes),
            record_stride: small(self.grid.record_stride),
            tail_stride: small(self.grid.tail_stride),
            front_len: small(self.grid.front_len()),
            slots_at: small(self.slots_at()),
            slot_bytes: small(self.slot_bytes()),
            list_at: small(self.list_at()),
            out_at: small(self.out_at()),
            reserved: [0; 2],
        })
    }

    /// What of the work memory, whose first bytes hold `result`, makes the block.
    pub fn outcome(&self, result: &EncodeResult) -> Outcome {
        let body_len = self.grid.front_len() + u64::from(result.overflow_len);
        if result.unfit != 0 || stays_raw(&self.shape, body_len) {
            return Outcome::Raw;
        }
        Outcome::Coded(self.out_at()..self.out_at() + body_len)
    }

    /// Replaces the content of `out` with the block.
    ///
    /// `bytes` are those that [`BlockPlan::outcome`] names: the raw bytes, or front and overflow.
    ///
    /// # Errors
    /// [`Error::OutputLength`] where there are more or fewer of them; `out` is then unchanged.
    pub fn finish(&self, result: &EncodeResult, bytes: &[u8], out: &mut Vec<u8>) -> Result<Encoded> {
        let outcome = self.outcome(result);
        let needed = match &outcome {
            Outcome::Raw => self.raw_len(),
            Outcome::Coded(range) => range.end - range.start,
        };
        let got = bytes.len() as u64;
        if needed != got {
            return Err(Error::OutputLength { needed, got });
        }
        let participating = u64::from(result.participating);
        let escapes = u64::from(result.chunks).saturating_sub(participating);
        let codec = match outcome {
            Outcome::Raw => {
                scalar::raw::encode(self.coder.geometry().dtype(), &self.shape, bytes, out);
                CodecId::Raw
            }
            Outcome::Coded(_) => {
                let (front, overflow) = bytes.split_at(index(self.grid.front_len()));
                write_coded(self.coder, &self.shape, &self.grid, front, overflow, out);
                self.coder.codec()
            }
        };
        Ok(Encoded { codec, escapes, participating })
    }
}

fn small(value: u64) -> u32 {
    u32::try_from(value).expect("a block has at most 1 MiB, and a slot less than 64 times what it packs")
}

/// The launch that packs the records of some blocks of one coder; its parameters are `(jobs, n_jobs, warp_bytes)`.
///
/// `None` without plans.
pub fn records_launch(plans: &[BlockPlan<'_>], n_multiprocessors: u32) -> Option<Launch> {
    let coder = plans.first()?.coder;
    debug_assert!(plans.iter().all(|plan| core::ptr::eq(plan.coder, coder)), "plans of several coders");
    let n_jobs = u32::try_from(plans.len()).unwrap_or(u32::MAX);
    let warp_bytes = plans.iter().map(BlockPlan::warp_bytes).max()?;
    let warps = (MAX_SHARED_BYTES / warp_bytes).clamp(1, THREADS / 32);
    let records = plans.iter().map(|plan| small(plan.grid.runs.total_records())).max()?;
    let wanted = n_multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR).div_ceil(n_jobs);
    Some(Launch {
        kernel: match coder.codec() {
            CodecId::Ibp | CodecId::IbpWindow => "encode_records_ibp",
            CodecId::Planes4 => "encode_records_planes4",
            CodecId::Planes3 => "encode_records_planes3",
            CodecId::Planes222 => "encode_records_planes222",
            // No coder is of another codec.
            _ => "encode_records_sparse",
        },
        jobs: 0..plans.len(),
        // The kernels go on to later jobs where there are more than fit a grid; its height has 16 bits.
        grid: [n_jobs.min(i32::MAX.unsigned_abs()), wanted.clamp(1, records.div_ceil(warps).min(1 << 15)), 1],
        block: [32 * warps, 1, 1],
        shared_bytes: warps * warp_bytes,
        warp_bytes,
    })
}

/// The launch that then writes front and overflow of each block; its parameters are `(jobs, n_jobs)`.
pub fn place_launch(n_jobs: usize) -> Launch {
    let grid = u32::try_from(n_jobs).unwrap_or(u32::MAX).clamp(1, i32::MAX.unsigned_abs());
    Launch {
        kernel: "place_records",
        jobs: 0..n_jobs,
        grid: [grid, 1, 1],
        block: [PLACE_THREADS, 1, 1],
        shared_bytes: 0,
        warp_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::{Piece, fit};
    use crate::geometry::Geometry;
    use tierpack_shm::types::{Access, Dtype};

    fn coder(codec: CodecId, dtype: Dtype, shape: &[u64]) -> Coder {
        let geometry = Geometry::new(dtype, shape, Access::Rows, None).unwrap();
        let raw = vec![0; index(geometry.raw_bytes())];
        let metadata =
            fit(codec, &geometry, &[(Piece::block(&geometry, 0), &raw)]).unwrap().metadata.unwrap();
        Coder::new(&metadata, &geometry).unwrap()
    }

    #[test]
    fn parts_of_the_work_memory_do_not_overlap() {
        for (codec, dtype, shape) in [
            (CodecId::Planes4, Dtype::Bf16, [7, 1500]),
            (CodecId::Planes4, Dtype::F8E5m2, [3, 1]),
            (CodecId::Ibp, Dtype::F64, [2, 5000]),
            (CodecId::Sparse, Dtype::U8, [9, 33]),
        ] {
            let coder = coder(codec, dtype, &shape);
            let plan = BlockPlan::new(&coder, 0).unwrap();
            let job = plan.job(&Addresses { raw: 1, form: 16, work: 32 }).unwrap();
            let records = job.runs * job.records;
            assert!(job.slots_at >= 16 + 16 * records && job.slots_at.is_multiple_of(16));
            assert!(job.slot_bytes.is_multiple_of(16) && job.list_at < job.slot_bytes);
            assert_eq!(job.out_at, job.slots_at + records * job.slot_bytes);
            assert!(plan.work_len() >= u64::from(job.out_at + job.front_len + job.raw_len));
            let launch = records_launch(&[plan], 132).unwrap();
            assert!(launch.shared_bytes <= MAX_SHARED_BYTES && launch.warp_bytes.is_multiple_of(16));
            assert_eq!(launch.block[0] / 32 * launch.warp_bytes, launch.shared_bytes);
        }
    }

    #[test]
    fn what_does_not_belong_is_refused() {
        let coder = coder(CodecId::Planes4, Dtype::Bf16, &[7, 1500]);
        assert_eq!(BlockPlan::new(&coder, 1).unwrap_err(), Error::NoSuchBlock { block_idx: 1, n_blocks: 1 });
        let plan = BlockPlan::new(&coder, 0).unwrap();
        for at in [Addresses { raw: 0, form: 8, work: 0 }, Addresses { raw: 0, form: 0, work: 4 }] {
            assert!(matches!(plan.job(&at), Err(Error::Address { .. })));
        }
        let (result, mut out) = (EncodeResult { unfit: 1, ..EncodeResult::default() }, vec![7]);
        let error = Error::OutputLength { needed: 21000, got: 3 };
        assert_eq!(plan.finish(&result, &[0; 3], &mut out), Err(error));
        assert_eq!(out, [7]);
        assert_eq!(records_launch(&[], 132), None);
    }
}
