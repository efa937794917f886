//! Launches of kernels.

use cusim::{Kernel, Shape};

use crate::args::{Array, Host};
use crate::code::Code;
use crate::ops::Op;
use crate::raw;
use crate::schedule;
use crate::state::Handle;
use crate::trace;

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) kernel: Kernel,
    /// The most dynamic shared memory of a thread block; more must be asked for.
    pub(crate) max_shared: u32,
}

const MAX_SHARED_UNASKED: u32 = 48 << 10;
const MAX_THREADS: u64 = 1024;
const MAX_THREADS_Z: u32 = 64;
const MAX_GRID_YZ: u32 = 65535;

impl Function {
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self { kernel, max_shared: MAX_SHARED_UNASKED }
    }

    fn takes(&self, shape: &Shape) -> bool {
        let ([_, y, z], block) = (shape.grid, shape.block);
        let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
        let has_none = shape.grid.contains(&0) || block.contains(&0);
        let fits =
            threads <= MAX_THREADS && block[2] <= MAX_THREADS_Z && y <= MAX_GRID_YZ && z <= MAX_GRID_YZ;
        !has_none
            && fits
            && shape.grid[0] <= i32::MAX.cast_unsigned()
            && shape.shared_bytes <= self.max_shared
    }

    /// The bytes of each argument, copied within the call.
    fn args(&self, params: Array<Host>) -> Result<Vec<Vec<u8>>, Code> {
        let sizes = self.kernel.params();
        let bytes = |(at, len): (Host, &u32)| {
            let len = usize::try_from(*len).expect("a size of a parameter");
            if at.is_null() { Err(Code::INVALID_VALUE) } else { Ok(raw::read(at.address(), len)) }
        };
        params.read(sizes.len())?.into_iter().zip(sizes).map(bytes).collect()
    }
}

driver_call!(
    fn cuLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: Handle,
        params: Array<Host>,
        extra: Array<Host>,
    ) needs Context |state| {
        let function = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        let kernel = function.kernel;
        trace::note("kernel", kernel.name());
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        if !extra.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        if !function.takes(&shape) {
            complain!("kernel {} is launched with {shape:?}, and may have {}", kernel.name(), function.max_shared);
            return Err(Code::INVALID_VALUE);
        }
        let args = function.args(params)?;
        schedule::push(state, stream, Op::Launch { kernel, shape, args })
    }
);
