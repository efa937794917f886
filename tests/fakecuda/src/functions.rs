//! What is asked about a kernel, and set for it.

use std::ffi::c_int;

use crate::args::Out;
use crate::code::Code;
use crate::state::Handle;

/// Numbers of `CUfunction_attribute`.
mod attribute {
    pub(super) const MAX_THREADS_PER_BLOCK: u32 = 0;
    pub(super) const NUM_REGS: u32 = 4;
    pub(super) const MAX_DYNAMIC_SHARED_SIZE_BYTES: u32 = 8;
}

/// What a thread block of compute capability 9.0 may have if it asks.
const MAX_SHARED: u32 = 232_448;
/// Of a multiprocessor: shared memory, threads, thread blocks; and what each thread block takes of the first.
const SHARED_OF_ALL: usize = 233_472;
const SHARED_RESERVED: usize = 1024;
const THREADS_OF_ALL: c_int = 2048;
const BLOCKS_OF_ALL: c_int = 32;

driver_call!(fn cuFuncGetAttribute(value: Out<c_int>, asked: u32, function: Handle) needs Context |state| {
    let function = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
    value.set(match asked {
        attribute::MAX_THREADS_PER_BLOCK => 1024,
        attribute::NUM_REGS => 32,
        attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => function.max_shared.cast_signed(),
        _ => 0,
    })
});

driver_call!(fn cuFuncSetAttribute(function: Handle, asked: u32, value: c_int) needs Context |state| {
    let function = state.functions.get_mut(&function).ok_or(Code::INVALID_HANDLE)?;
    if asked == attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES {
        let value = u32::try_from(value).ok().filter(|value| *value <= MAX_SHARED);
        function.max_shared = value.ok_or(Code::INVALID_VALUE)?;
    }
    Ok(())
});

driver_call!(
    fn cuFuncGetParamInfo(function: Handle, idx: usize, offset: Out<usize>, size: Out<usize>) needs Context |state| {
        let function = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        let mut end = 0_usize;
        for (at, len) in function.kernel.params().iter().enumerate() {
            let len = usize::try_from(*len).expect("a size of a parameter");
            let start = end.next_multiple_of(len.clamp(1, 8));
            if at == idx {
                offset.set(start)?;
                size.set_if_asked(len);
                return Ok(());
            }
            end = start + len;
        }
        Err(Code::INVALID_VALUE)
    }
);

driver_call!(
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(n: Out<c_int>, function: Handle, threads: c_int, shared: usize)
    needs Context |state| {
        state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        let by_shared = SHARED_OF_ALL / (shared.saturating_add(SHARED_RESERVED));
        let by_shared = c_int::try_from(by_shared).unwrap_or(BLOCKS_OF_ALL);
        n.set((THREADS_OF_ALL / threads.max(32)).min(BLOCKS_OF_ALL).min(by_shared))
    }
);
