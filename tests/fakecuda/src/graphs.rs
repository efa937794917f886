//! Graphs: what a capture holds, to be run again.

use crate::args::Out;
use crate::code::Code;
use crate::events;
use crate::ops::Op;
use crate::schedule;
use crate::state::Handle;

driver_call!(fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, _flags: u64) needs Context |state| {
    let ops = state.graphs.get(&graph).cloned().ok_or(Code::INVALID_HANDLE)?;
    let new = state.handle();
    state.graphs.insert(new, ops);
    exec.set(new)
});

driver_call!(fn cuGraphLaunch(exec: Handle, stream: Handle) needs Context |state| {
    let ops = state.graphs.get(&exec).cloned().ok_or(Code::INVALID_HANDLE)?;
    for op in ops {
        // A record happens at each launch.
        let op = match op {
            Op::Record { event, .. } => events::stamp(state, event, stream.canonical())?,
            op => op,
        };
        schedule::push(state, stream, op)?;
    }
    Ok(())
});

driver_call!(fn cuGraphExecDestroy(exec: Handle) needs Context |state| {
    state.graphs.remove(&exec).map(drop).ok_or(Code::INVALID_HANDLE)
});

driver_call!(fn cuGraphDestroy(graph: Handle) needs Context |state| {
    state.graphs.remove(&graph).map(drop).ok_or(Code::INVALID_HANDLE)
});
