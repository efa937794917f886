//! Memory in place of a device's, and launches.
#![expect(unsafe_code, reason = "a kernel is given addresses of memory that the tests keep")]

use cusim::{Kernel, Opts, Order, Shape};
use tierpack_kernels::cuda::gather::{GatherCall, GatherLaunch};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const UNIT: usize = 64;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Unit([u8; UNIT]);

/// Bytes at a multiple of 64, as many as were asked for, rounded up to a multiple of 64.
pub(crate) struct Memory(Vec<Unit>);

impl Memory {
    /// A copy; what the last unit has after it is noise.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let unit = |bytes: &[u8]| {
            let mut unit = [0xC3; UNIT];
            unit[..bytes.len()].copy_from_slice(bytes);
            Unit(unit)
        };
        Self(bytes.chunks(UNIT).map(unit).collect())
    }

    /// A copy of some structs.
    pub(crate) fn with<T: IntoBytes + Immutable>(values: &[T]) -> Self {
        Self::of(values.as_bytes())
    }

    pub(crate) fn filled(len: usize, byte: u8) -> Self {
        Self(vec![Unit([byte; UNIT]); len.div_ceil(UNIT)])
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len() * UNIT
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        self.0.iter().flat_map(|unit| unit.0).collect()
    }

    /// The struct at the start.
    pub(crate) fn get<T: FromBytes>(&self) -> T {
        T::read_from_prefix(&self.read())
            .map_or_else(|_| unreachable!("the memory holds one"), |(value, _)| value)
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        for (at, &byte) in (at..).zip(bytes) {
            self.0[at / UNIT].0[at % UNIT] = byte;
        }
    }
}

fn run(launch: &GatherLaunch, args: &mut [Vec<u8>], order: Order) {
    let kernel = Kernel::find(launch.kernel).expect("a kernel of module gather");
    let shape = Shape { grid: launch.grid, block: launch.block, shared_bytes: launch.shared_bytes };
    // SAFETY: the parameters are those of the kernel; what they point to lives until it has run, as the tests keep
    // it, and the kernel stays within it by its contract, which the tests check.
    let run = unsafe { kernel.launch(&shape, args, Opts::new(order)) };
    run.expect("a kernel that follows the rules");
}

/// Runs the calls.
pub(crate) fn gather(launch: &GatherLaunch, calls: &[GatherCall], order: Order) {
    let memory = Memory::with(calls);
    let n_calls = u32::try_from(calls.len()).expect("few calls");
    run(launch, &mut [memory.address().to_ne_bytes().to_vec(), n_calls.to_ne_bytes().to_vec()], order);
}

/// Empties what is out of date in the cache of the tensor that is described at an address.
pub(crate) fn sweep(launch: &GatherLaunch, tensor: u64, order: Order) {
    run(launch, &mut [tensor.to_ne_bytes().to_vec()], order);
}
