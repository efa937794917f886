//! Memory and launches of the simulated device.
#![expect(unsafe_code, reason = "kernels follow the addresses that they are given")]

use cusim::{Kernel, Opts, Shape};
use tierpack_kernels::cuda::launch::Launch;

/// What memory holds before anything is written, and what stays around it.
pub(crate) const FILL: u8 = 0xA5;

/// Bytes around a memory that no kernel may write.
const GUARD: usize = 64;

/// Device memory, at an address that is a multiple of 16, or behind one.
pub(crate) struct Memory {
    units: Vec<u128>,
    skip: usize,
    len: usize,
}

impl Memory {
    /// A copy of `bytes`, `skip` bytes behind a multiple of 16.
    pub(crate) fn of(bytes: &[u8], skip: usize) -> Self {
        let n_units = (2 * GUARD + skip + bytes.len()).div_ceil(16);
        let mut memory =
            Self { units: vec![u128::from_ne_bytes([FILL; 16]); n_units], skip, len: bytes.len() };
        let mut all = memory.all();
        all[GUARD + skip..][..bytes.len()].copy_from_slice(bytes);
        for (unit, bytes) in memory.units.iter_mut().zip(all.as_chunks().0) {
            *unit = u128::from_ne_bytes(*bytes);
        }
        memory
    }

    fn all(&self) -> Vec<u8> {
        self.units.iter().flat_map(|unit| unit.to_ne_bytes()).collect()
    }

    /// The address of its first byte.
    pub(crate) fn address(&mut self) -> u64 {
        (self.units.as_mut_ptr().expose_provenance() + GUARD + self.skip) as u64
    }

    /// What it holds; checks what stands around it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let all = self.all();
        let (before, rest) = all.split_at(GUARD + self.skip);
        let (bytes, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&byte| byte == FILL), "a write beside the memory");
        bytes.to_vec()
    }
}

/// Runs a launch; `args` holds the bytes of each of the kernel's parameters.
pub(crate) fn run(launch: &Launch, args: &mut [Vec<u8>], order: u32) {
    let Launch { kernel: name, grid, block, shared_bytes, .. } = *launch;
    let kernel = Kernel::find(name).expect("a kernel of the simulator");
    let shape = Shape { grid, block, shared_bytes };
    // SAFETY: the tests give parameters of the kernel's types, and addresses of memory that is there.
    let run = unsafe { kernel.launch(&shape, args, Opts::order(order, 7)) };
    run.map_err(|error| error.to_string()).expect(name);
}
