//! What the environment asks for; `lib.rs` has the table.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use cusim::Opts;

use crate::code::Code;

/// When the work of streams runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Late,
    Sync,
    Random,
    Worker,
}

/// A call that fails.
#[derive(Debug)]
pub(crate) struct Fault {
    name: String,
    /// Which call; 0: each.
    at: u32,
    pub(crate) code: Code,
}

impl Fault {
    pub(crate) fn hits(&self, name: &str, count: u32) -> bool {
        self.name == name && (self.at == 0 || self.at == count)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(':');
        let (name, at, code) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { name: name.to_owned(), at: at.parse().ok()?, code: Code(code.parse().ok()?) })
    }
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) seed: u32,
    pub(crate) lanes: Opts,
    pub(crate) memory: usize,
    pub(crate) has_device: bool,
    pub(crate) attributes: BTreeMap<u32, i32>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) alias: bool,
    pub(crate) protect: bool,
    pub(crate) tell_leaks: bool,
    pub(crate) trace: Option<PathBuf>,
}

/// The value of a variable; what cannot be read ends the process, since the test is not what it should be.
fn number<T: std::str::FromStr>(name: &str, without: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().ok().unwrap_or_else(|| refuse(name, &text)),
        Err(_) => without,
    }
}

fn refuse(name: &str, text: &str) -> ! {
    complain!("{name}={text} cannot be read");
    std::process::abort()
}

fn attributes() -> BTreeMap<u32, i32> {
    let variables = env::vars().filter_map(|(name, value)| {
        let number = name.strip_prefix("FAKE_CUDA_ATTR_")?.parse().ok()?;
        Some((number, value.parse().unwrap_or_else(|_| refuse(&name, &value))))
    });
    variables.collect()
}

impl Settings {
    pub(crate) fn read() -> Self {
        let mode = match env::var("FAKE_CUDA_MODE").as_deref() {
            Ok("sync") => Mode::Sync,
            Ok("random") => Mode::Random,
            Ok("worker") => Mode::Worker,
            Ok("late") | Err(_) => Mode::Late,
            Ok(text) => refuse("FAKE_CUDA_MODE", text),
        };
        let seed = number("FAKE_CUDA_SEED", 1_u32).max(1);
        let faults = env::var("FAKE_CUDA_FAIL").unwrap_or_default();
        let faults = faults.split(',').filter(|text| !text.trim().is_empty());
        let fault = |text| Fault::parse(text).unwrap_or_else(|| refuse("FAKE_CUDA_FAIL", text));
        Self {
            mode,
            seed,
            lanes: Opts::order(number("FAKE_CUDA_ORDER", 0), seed),
            memory: number("FAKE_CUDA_MEM", 8 << 30),
            has_device: number("FAKE_CUDA_DEVICES", 1_u32) != 0,
            attributes: attributes(),
            faults: faults.map(fault).collect(),
            alias: number("FAKE_CUDA_ALIAS", 1_u32) != 0,
            protect: number("FAKE_CUDA_PROTECT", 1_u32) != 0,
            tell_leaks: number("FAKE_CUDA_LEAKS", 0_u32) != 0,
            trace: env::var_os("FAKE_CUDA_TRACE").map(PathBuf::from),
        }
    }
}
