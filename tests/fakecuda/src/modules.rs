//! Modules: images, whose kernels are those that cusim was built with.

use cusim::Kernel;

use crate::args::{Host, Out, Text};
use crate::attributes::{self, number};
use crate::capture;
use crate::code::{Answer, Code};
use crate::image::{self, Entry};
use crate::launches::Function;
use crate::state::{Guard, Handle, State};
use crate::trace;

pub(crate) struct Module {
    entries: Vec<Entry>,
}

fn capability(state: &State) -> (u32, u32) {
    let value = |attribute| u32::try_from(attributes::value(state, attribute)).unwrap_or(0);
    (value(number::MAJOR), value(number::MINOR))
}

fn load(state: &mut Guard, module: Out<Handle>, entries: Result<Vec<Entry>, Code>) -> Answer {
    let entries = entries?;
    trace::note("kernels", entries.len());
    let new = state.handle();
    state.modules.insert(new, Module { entries });
    module.set(new)
}

driver_call!(fn cuModuleLoadData(module: Out<Handle>, image: Host) needs Context |state| {
    capture::refuse(state, "cuModuleLoadData")?;
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let entries = image::at(image.address(), capability(state));
    load(state, module, entries)
});

// Its options are for the compiler of PTX, which is not there.
driver_call!(
    fn cuModuleLoadDataEx(module: Out<Handle>, image: Host, _n: u32, _options: Host, _values: Host) needs Context
    |state| {
        capture::refuse(state, "cuModuleLoadDataEx")?;
        if image.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let entries = image::at(image.address(), capability(state));
        load(state, module, entries)
    }
);

driver_call!(fn cuModuleLoad(module: Out<Handle>, path: Text) needs Context |state| {
    capture::refuse(state, "cuModuleLoad")?;
    let bytes = std::fs::read(path.read()?).map_err(|_| Code::FILE_NOT_FOUND)?;
    let entries = image::of(bytes, capability(state));
    load(state, module, entries)
});

driver_call!(fn cuModuleUnload(module: Handle) needs Context |state| {
    capture::refuse(state, "cuModuleUnload")?;
    state.modules.remove(&module).map(drop).ok_or(Code::INVALID_HANDLE)
});

driver_call!(fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) needs Context |state| {
    let name = name.read()?;
    let module = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
    let entry = module.entries.iter().find(|entry| entry.name == name).ok_or(Code::NOT_FOUND)?;
    let Ok(kernel) = Kernel::find(&name) else {
        complain!("kernel {name} is in the image and has no CPU version: its file must name it in EXPORT_KERNEL");
        return Err(Code::NOT_FOUND);
    };
    if entry.sizes != kernel.params() {
        complain!(
            "kernel {name} takes parameters of {:?} bytes in the image, and of {:?} in its source: \
             the image is stale",
            entry.sizes,
            kernel.params()
        );
        return Err(Code::INVALID_IMAGE);
    }
    let new = state.handle();
    state.functions.insert(new, Function::new(kernel));
    function.set(new)
});

driver_call!(fn cuModuleGetGlobal_v2(_at: Out<u64>, _len: Out<usize>, _module: Handle, _name: Text) needs Context
|_state| { Err(Code::NOT_SUPPORTED) });
