//! Launches of the kernels in `src/kernels/rules.cu`.
#![expect(unsafe_code, reason = "launches kernels, which follow the pointers they are given")]

use cusim::{Error, Kernel, Opts, Order, Shape, Stats};

/// A livelock is found after this many yields.
pub(crate) const YIELDS: u64 = 100_000;

/// One parameter.
pub(crate) enum Arg<'a> {
    Words(&'a mut [u32]),
    Wide(&'a mut [u64]),
    Number(u32),
    #[cfg_attr(sanitizer, expect(dead_code, reason = "sanitizers keep the faults"))]
    Address(u64),
}

impl Arg<'_> {
    fn bytes(&mut self) -> Vec<u8> {
        match self {
            Self::Words(words) => (words.as_mut_ptr().addr() as u64).to_ne_bytes().to_vec(),
            Self::Wide(words) => (words.as_mut_ptr().addr() as u64).to_ne_bytes().to_vec(),
            Self::Number(number) => number.to_ne_bytes().to_vec(),
            Self::Address(address) => address.to_ne_bytes().to_vec(),
        }
    }
}

/// One launch; the test's slices must be as long as the kernel wants them.
pub(crate) fn run(kernel: &str, shape: Shape, args: &mut [Arg<'_>], order: Order) -> Result<Stats, Error> {
    let mut bytes: Vec<Vec<u8>> = args.iter_mut().map(Arg::bytes).collect();
    let opts = Opts { max_idle_yields: YIELDS, ..Opts::new(order) };
    // SAFETY: the slices live until the launch has ended, and each test gives its kernel what it writes to, except
    // where the fault is the test: then it runs in a process of its own, or is caught.
    unsafe { Kernel::find(kernel)?.launch(&shape, &mut bytes, opts) }
}

/// The kernel, whose only parameter is its output, breaks a rule in every order, and all of `texts` are said.
#[track_caller]
pub(crate) fn breaks(kernel: &str, threads: u32, texts: &[&str]) {
    for order in Order::ALL {
        let mut out = [0; 128];
        let error = run(kernel, Shape::linear(1, threads), &mut [Arg::Words(&mut out)], order);
        let text = rule(error);
        for part in texts.iter().chain(&[kernel, "block (0,0,0)", "rules.cu:"]) {
            assert!(text.contains(part), "{kernel} in order {order:?} lacks {part:?}: {text}");
        }
    }
}

/// A launch with options of its own.
pub(crate) fn launch(kernel: Kernel, shape: Shape, args: &mut [Vec<u8>], opts: Opts) -> Result<Stats, Error> {
    // SAFETY: as in `run`.
    unsafe { kernel.launch(&shape, args, opts) }
}

/// The text of a broken rule.
#[track_caller]
pub(crate) fn rule(result: Result<Stats, Error>) -> String {
    assert!(matches!(result, Err(Error::Rule(_))), "{result:?}");
    result.map_or_else(|error| error.to_string(), |_| String::new())
}
