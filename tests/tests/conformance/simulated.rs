//! The kernels' source on the processor: cusim.
#![expect(unsafe_code, reason = "a kernel is given addresses of memory that this file keeps")]

use std::hash::{DefaultHasher, Hash, Hasher};

use cusim::{Kernel, Opts, Order, Shape};
use tierpack_kernels::cuda::abi::{BlockJob, Status};
use tierpack_kernels::cuda::form::device_form;
use tierpack_kernels::cuda::launch::{Launch, READ_UNIT, decode_launches, overlay_launch};
use tierpack_shm::types::{CodecId, index};

use crate::target::{Case, Fault, Target};

/// The kernels on cusim, with lanes in one order.
#[derive(Debug)]
pub(crate) struct Simulated(pub(crate) Order);

/// In all orders of lanes.
pub(crate) fn simulated() -> Vec<Simulated> {
    Order::ALL.into_iter().map(Simulated).collect()
}

/// Bytes before and after the output that no kernel may write.
const MARGIN: usize = 64;
const CANARY: u8 = 0x5C;

/// Multiprocessors that launches are planned for: few, as thread blocks run one after the other.
const N_MULTIPROCESSORS: u32 = 1;

/// What memory is made of: bytes up to the end of the last unit may be read.
const UNIT_BYTES: usize = 64;
const _: () = assert!(UNIT_BYTES as u64 == READ_UNIT);

/// Memory whose address is a multiple of 64, as long as reads of a block may go and not longer.
#[repr(align(64))]
struct Unit(#[expect(dead_code, reason = "kernels read it")] [u8; UNIT_BYTES]);

/// Memory of a stand-in device.
struct Memory(Vec<Unit>);

impl Memory {
    /// A copy; the bytes up to the end of the last unit are noise.
    fn new(bytes: &[u8]) -> Self {
        let unit = |bytes: &[u8]| {
            let mut unit = [0xC3; UNIT_BYTES];
            unit[..bytes.len()].copy_from_slice(bytes);
            Unit(unit)
        };
        Self(bytes.chunks(UNIT_BYTES).map(unit).collect())
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

impl Target for Simulated {
    fn name(&self) -> String {
        format!("cusim, lanes {:?}", self.0)
    }

    fn decode(&self, case: &Case) -> Result<Vec<u8>, Fault> {
        self.decode_together(&[case]).map(|mut raw| raw.swap_remove(0))
    }

    fn decode_together(&self, cases: &[&Case]) -> Result<Vec<Vec<u8>>, Fault> {
        let mut status = Status::CLEAR;
        let placed: Vec<Placed> = cases.iter().map(|case| Placed::new(case)).collect();
        let mut jobs = Vec::new();
        for (case, placed) in cases.iter().zip(&placed) {
            jobs.extend(placed.jobs(case, jobs.len())?);
        }
        let launches = decode_launches(&mut jobs, N_MULTIPROCESSORS);
        let jobs: Vec<BlockJob> = jobs.into_iter().map(|(_, job)| job).collect();
        for launch in &launches {
            let parameters = [vec_of(launch.warp_bytes)];
            self.run(
                launch,
                jobs[launch.jobs.clone()].as_ptr().expose_provenance(),
                &parameters,
                &mut status,
            );
        }
        for (case, placed) in cases.iter().zip(&placed) {
            self.overlay(case, placed.base, &mut status)?;
        }
        let raw = placed.into_iter().zip(cases).map(|(placed, case)| placed.raw(case)).collect();
        Fault::of(status, jobs.len()).map_or(Ok(raw), Err)
    }
}

/// One tensor in the memory of the stand-in device.
struct Placed {
    form: Option<Memory>,
    sources: Vec<Memory>,
    out: Vec<u8>,
    /// Where the raw bytes start in `out`.
    start: usize,
    /// The address of the first raw byte.
    base: u64,
}

impl Placed {
    fn new(case: &Case) -> Self {
        let mut hasher = DefaultHasher::new();
        case.name.hash(&mut hasher);
        // Outputs of any alignment, half of them aligned.
        let skew = [0, 0, 0, 0, 8, 4, 2, 1][index(hasher.finish() % 8)];
        let mut out = vec![CANARY; MARGIN + index(case.geometry.raw_bytes()) + 2 * MARGIN];
        // The first multiple of 16 after the margin, and the skew.
        let start = MARGIN + (16 - (out.as_ptr().addr() + MARGIN) % 16) % 16 + skew;
        let base = out.as_mut_ptr().expose_provenance() as u64 + start as u64;
        Self {
            form: case.coder.as_ref().map(device_form).map(|form| Memory::new(&form)),
            sources: case.blocks.iter().map(|bytes| Memory::new(bytes)).collect(),
            out,
            start,
            base,
        }
    }

    /// The jobs of all blocks, numbered from `first` on.
    fn jobs(&self, case: &Case, first: usize) -> Result<Vec<(CodecId, BlockJob)>, Fault> {
        let form = self.form.as_ref().map_or(0, Memory::address);
        let jobs = (0..).zip(&self.sources).zip(first..).map(|((block_idx, source), number)| {
            case.block_job(block_idx, [source.address(), form, self.base], number)
        });
        jobs.collect()
    }

    /// The raw bytes; nothing next to them has been written.
    fn raw(self, case: &Case) -> Vec<u8> {
        let end = self.start + index(case.geometry.raw_bytes());
        let beside = self.out[..self.start].iter().chain(&self.out[end..]);
        assert!(beside.into_iter().all(|&byte| byte == CANARY), "{}: a write beside the output", case.name);
        self.out[self.start..end].to_vec()
    }
}

impl Simulated {
    fn overlay(&self, case: &Case, base: u64, status: &mut Status) -> Result<(), Fault> {
        for level in &case.overlays {
            let sources: Vec<Memory> = level.iter().map(|(_, bytes)| Memory::new(bytes)).collect();
            let jobs = level.iter().zip(&sources).map(|((block_idx, bytes), source)| {
                case.overlay_job(*block_idx, bytes, [source.address(), base])
            });
            let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
            let launch = overlay_launch(0..jobs.len());
            self.run(&launch, jobs.as_ptr().expose_provenance(), &[], status);
        }
        Ok(())
    }

    /// Runs a launch whose jobs stand at an address.
    fn run(&self, launch: &Launch, jobs: usize, parameters: &[Vec<u8>], status: &mut Status) {
        let kernel = Kernel::find(launch.kernel).expect("a kernel of module decode");
        let n_jobs = u32::try_from(launch.jobs.len()).expect("few jobs");
        let status = (&raw mut *status).expose_provenance();
        let mut args = vec![vec_of(jobs as u64), vec_of(n_jobs)];
        args.extend_from_slice(parameters);
        args.push(vec_of(status as u64));
        // In one order, thread blocks go on from job to job, as where there are more jobs than fit a grid.
        let [x, y, z] = launch.grid;
        let grid = [if self.0 == Order::Reverse { x.min(2) } else { x }, y, z];
        let shape = Shape { grid, block: launch.block, shared_bytes: launch.shared_bytes };
        // SAFETY: the parameters are those of the kernel; jobs, blocks, metadata, output and status live until it
        // has run, as the caller keeps them, and the kernel stays within them by its contract, which the tests check.
        let run = unsafe { kernel.launch(&shape, &mut args, Opts::new(self.0)) };
        run.expect("a kernel that follows the rules");
    }
}

fn vec_of<T: Into<u64> + Copy>(value: T) -> Vec<u8> {
    value.into().to_le_bytes()[..size_of::<T>()].to_vec()
}
