//! The call trace, and what is said on standard error.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::fmt::Debug;
use std::fs::File;
use std::io::Write;

use crate::args::{Array, Host, Out, Text};
use crate::code::Code;
use crate::state::{Handle, State};

/// Says on standard error what a test does wrong.
macro_rules! complain {
    ($($text:tt)*) => { $crate::trace::say(&format!($($text)*)) };
}

#[expect(clippy::print_stderr, reason = "the test that goes wrong shows it")]
pub(crate) fn say(text: &str) {
    eprintln!("fakecuda: {text}");
}

/// An argument as the trace shows it: addresses and handles in hexadecimal, sizes and numbers in decimal.
pub(crate) trait Shown {
    fn shown(&self) -> String;
}

macro_rules! shown_as_number {
    ($($type:ty)*) => {
        $(impl Shown for $type {
            fn shown(&self) -> String {
                self.to_string()
            }
        })*
    };
}
shown_as_number!(u8 u16 u32 c_int usize f32);

impl Shown for u64 {
    fn shown(&self) -> String {
        format!("{self:#x}")
    }
}

impl Shown for Handle {
    fn shown(&self) -> String {
        format!("{:#x}", self.0)
    }
}

impl Shown for Host {
    fn shown(&self) -> String {
        format!("{:#x}", self.address())
    }
}

impl Shown for Code {
    fn shown(&self) -> String {
        self.0.to_string()
    }
}

impl Shown for Text {
    fn shown(&self) -> String {
        self.read().unwrap_or_default()
    }
}

impl<T: Copy + Shown> Shown for Out<T> {
    fn shown(&self) -> String {
        self.value().map_or_else(|| "null".to_owned(), |value| value.shown())
    }
}

impl<T: Copy> Shown for Array<T> {
    fn shown(&self) -> String {
        if self.is_null() { "null".to_owned() } else { "array".to_owned() }
    }
}

impl Shown for *const std::ffi::c_char {
    fn shown(&self) -> String {
        "text".to_owned()
    }
}

impl Shown for Option<extern "C" fn(*mut c_void)> {
    fn shown(&self) -> String {
        if self.is_some() { "function".to_owned() } else { "null".to_owned() }
    }
}

thread_local! {
    static NOTES: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Adds to the line of the call that runs on this thread.
pub(crate) fn note(name: &str, value: impl Debug) {
    NOTES.with_borrow_mut(|notes| notes.push_str(&format!(" {name}={value:?}")));
}

/// The file, opened for appending: each line is one write, so that processes may share it.
pub(crate) fn open(path: &std::path::Path) -> Option<File> {
    let file = File::options().create(true).append(true).open(path);
    file.inspect_err(|error| complain!("no trace in {}: {error}", path.display())).ok()
}

pub(crate) fn line(
    state: &mut State,
    name: &str,
    args: impl FnOnce() -> Vec<(&'static str, String)>,
    code: Code,
) {
    let notes = NOTES.take();
    let Some(file) = &mut state.trace else { return };
    let args: Vec<_> = args().into_iter().map(|(name, value)| format!(" {name}={value}")).collect();
    let line = format!("{name}{}{notes} -> {}\n", args.concat(), code.0);
    if let Err(error) = file.write_all(line.as_bytes()) {
        complain!("a line of the trace is lost: {error}");
    }
}
