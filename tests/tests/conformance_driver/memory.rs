//! Memory and launches of the driver's device: kernels of the committed images that encode and count.
#![expect(unsafe_code, reason = "kernels follow the addresses that they are given")]

use core::ops::Range;
use std::sync::OnceLock;

use proptest::prelude::ProptestConfig;
use tierpack_kernels::cuda::driver::{Device, DeviceBuffer, GpuError, Kernels, Parameter, Stream};
use tierpack_kernels::cuda::images::Module;
use tierpack_kernels::cuda::launch::Launch;
use tierpack_shm::types::index;
use tierpack_tests::device::{or_skip, stand_in};

/// What memory holds before anything is written, and what stays around it.
pub(crate) const FILL: u8 = 0xA5;

/// Bytes around a memory that no kernel may write.
const GUARD: usize = 64;

struct Driver {
    encode: Kernels,
    fit: Kernels,
    stream: Stream,
}

impl Driver {
    fn open() -> Result<Self, GpuError> {
        let device = Device::open_in(Some(stand_in().as_os_str()), 0)?;
        let encode = Kernels::load(&device, Module::Encode)?;
        let fit = Kernels::load(&device, Module::Fit)?;
        Ok(Self { encode, fit, stream: Stream::new(&device)? })
    }
}

/// The device of this process; none where an installed driver was asked for and there is no GPU.
fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Result<Driver, GpuError>> = OnceLock::new();
    or_skip(DRIVER.get_or_init(Driver::open))
}

/// A device has one order of lanes, its own; none without a device.
pub(crate) fn orders() -> Range<u32> {
    0..u32::from(driver().is_some())
}

fn here() -> &'static Driver {
    driver().expect("without a device there are no orders to test")
}

/// Device memory, at an address that is a multiple of 16, or behind one.
pub(crate) struct Memory {
    buffer: DeviceBuffer,
    skip: usize,
    len: usize,
}

impl Memory {
    /// A copy of `bytes`, `skip` bytes behind a multiple of 16.
    pub(crate) fn of(bytes: &[u8], skip: usize) -> Self {
        let driver = here();
        let mut all = vec![FILL; (2 * GUARD + skip + bytes.len()).next_multiple_of(16)];
        all[GUARD + skip..][..bytes.len()].copy_from_slice(bytes);
        let mut buffer = DeviceBuffer::new(driver.encode.device(), all.len() as u64).expect("device memory");
        assert!(buffer.address().is_multiple_of(16));
        buffer.write(&all, &driver.stream).expect("a copy");
        Self { buffer, skip, len: bytes.len() }
    }

    /// The address of its first byte.
    pub(crate) const fn address(&mut self) -> u64 {
        self.buffer.address() + (GUARD + self.skip) as u64
    }

    /// What it holds; checks what stands around it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; index(self.buffer.len())];
        self.buffer.read(&mut all, &here().stream).expect("a copy");
        let (before, rest) = all.split_at(GUARD + self.skip);
        let (bytes, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&byte| byte == FILL), "a write beside the memory");
        bytes.to_vec()
    }
}

/// Runs a launch; `args` holds the bytes of each of the kernel's parameters.
pub(crate) fn run(launch: &Launch, args: &mut [Vec<u8>], _order: u32) {
    let driver = here();
    let parameter = |bytes: &Vec<u8>| match bytes[..] {
        [a, b, c, d] => Parameter::Number(u32::from_le_bytes([a, b, c, d])),
        _ => Parameter::Address(u64::from_le_bytes(bytes[..].try_into().expect("4 bytes or 8"))),
    };
    let parameters: Vec<_> = args.iter().map(parameter).collect();
    let kernels = if Module::Fit.kernels().contains(&launch.kernel) { &driver.fit } else { &driver.encode };
    // SAFETY: the tests give parameters of the kernel's types, and addresses of memory that is there until it has run.
    unsafe { kernels.launch(launch, &parameters, &driver.stream) }.expect(launch.kernel);
    driver.stream.synchronize().expect(launch.kernel);
}

/// So many random cases, or as many as the variable `PROPTEST_CASES` says.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    // Each case copies and launches; the same cases run on the simulator in full.
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { config.cases } else { usual / 4 };
    ProptestConfig { cases, ..config }
}
