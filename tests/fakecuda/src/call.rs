//! What every function of the driver does first: count the call, fail if asked to, look for a context, tell the trace.

use crate::code::{Answer, Code};
use crate::schedule;
use crate::state::{Guard, lock};
use crate::trace;

/// What must exist before a function may be called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Init,
    Context,
}

/// Makes a function of the driver.
///
/// `driver_call!(fn cuCtxGetDevice(device: Out<c_int>) needs Context |state| { device.set(0) })` makes
/// `extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> Code`, whose body runs with the state locked.
macro_rules! driver_call {
    (fn $name:ident($($arg:ident: $type:ty),* $(,)?) needs $need:ident |$state:ident| $body:block) => {
        #[expect(unsafe_code, reason = "the driver's name")]
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $type),*) -> $crate::code::Code {
            $crate::call::enter(
                stringify!($name),
                $crate::call::Need::$need,
                move || {
                    let shown: Vec<(&str, String)> =
                        vec![$((stringify!($arg), $crate::trace::Shown::shown(&$arg))),*];
                    shown
                },
                move |$state| $body,
            )
        }
    };
}

/// Runs the body of one call; `args` are asked for after it, when what they point to is set.
pub(crate) fn enter(
    name: &'static str,
    need: Need,
    args: impl FnOnce() -> Vec<(&'static str, String)>,
    body: impl FnOnce(&mut Guard) -> Answer,
) -> Code {
    let mut state = lock();
    let answer = admit(&mut state, name, need).and_then(|()| {
        if need == Need::Context {
            schedule::some_by_chance(&mut state);
        }
        body(&mut state)
    });
    let code = answer.err().unwrap_or(Code::SUCCESS);
    trace::line(&mut state, name, args, code);
    code
}

fn admit(state: &mut Guard, name: &'static str, need: Need) -> Answer {
    let count = state.calls.entry(name).or_insert(0);
    *count += 1;
    let count = *count;
    if let Some(fault) = state.settings.faults.iter().find(|fault| fault.hits(name, count)) {
        return Err(fault.code);
    }
    if need != Need::Nothing && !state.initialized {
        return Err(Code::NOT_INITIALIZED);
    }
    if need == Need::Context && !crate::devices::has_context() {
        return Err(Code::INVALID_CONTEXT);
    }
    Ok(())
}
