//! A target: the kernels of the committed images, launched through the driver.
#![expect(unsafe_code, reason = "a kernel is given addresses of memory that this file keeps")]

use std::sync::{Arc, OnceLock};

use tierpack_kernels::cuda::abi::{BlockJob, Status};
use tierpack_kernels::cuda::driver::{Device, DeviceBuffer, GpuError, Kernels, Run, Stream, Work};
use tierpack_kernels::cuda::form::device_form;
use tierpack_kernels::cuda::images::Module;
use tierpack_kernels::cuda::launch::{READ_UNIT, decode_launches, overlay_launch};
use tierpack_shm::types::index;
use tierpack_tests::device::{or_skip, stand_in};

use crate::target::{Case, Fault, Target};

/// Bytes around the output that no kernel may write.
const MARGIN: usize = 64;
const CANARY: u8 = 0x5C;

/// An open device with its kernels.
#[derive(Debug)]
pub(crate) struct Driver {
    device: Arc<Device>,
    kernels: Kernels,
    stream: Stream,
}

/// The device of this process; none where an installed driver was asked for and there is no GPU.
pub(crate) fn drivers() -> Vec<&'static Driver> {
    static DRIVER: OnceLock<Result<Driver, GpuError>> = OnceLock::new();
    Vec::from_iter(or_skip(DRIVER.get_or_init(Driver::open)))
}

impl Driver {
    fn open() -> Result<Self, GpuError> {
        let device = Device::open_in(Some(stand_in().as_os_str()), 0)?;
        let kernels = Kernels::load(&device, Module::Decode)?;
        let stream = Stream::new(&device)?;
        Ok(Self { device, kernels, stream })
    }

    /// A copy in device memory, as long as reads of a block may go and not longer.
    fn copy(&self, bytes: &[u8]) -> DeviceBuffer {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(index(READ_UNIT)), 0xC3);
        let mut buffer = DeviceBuffer::new(&self.device, padded.len() as u64).expect("device memory");
        buffer.write(&padded, &self.stream).expect("a copy");
        buffer
    }

    /// The jobs of the overlays, level by level, and what they lead to.
    fn overlays(&self, case: &Case, base: u64, work: &mut Work) -> Result<Vec<DeviceBuffer>, Fault> {
        let mut sources = Vec::new();
        for level in &case.overlays {
            let start = work.overlays.len();
            for (block_idx, bytes) in level {
                let source = self.copy(bytes);
                work.overlays.push(case.overlay_job(*block_idx, bytes, [source.address(), base])?);
                sources.push(source);
            }
            work.overlay_launches.push(overlay_launch(start..work.overlays.len()));
        }
        Ok(sources)
    }

    /// What was decoded, once it is sure that nothing next to it was written.
    fn raw(&self, case: &Case, out: &DeviceBuffer) -> Vec<u8> {
        let mut bytes = vec![0; index(out.len())];
        out.read(&mut bytes, &self.stream).expect("a copy");
        let raw: Vec<u8> = bytes.drain(MARGIN..MARGIN + index(case.geometry.raw_bytes())).collect();
        assert!(bytes.iter().all(|&byte| byte == CANARY), "{}: a write beside the output", case.name);
        raw
    }

    fn run(&self, work: &Work) -> Status {
        let mut run = Run::new(&self.device, work.bytes()).expect("a run");
        // SAFETY: the run is new; what the jobs lead to is kept by the caller until the event has fired.
        unsafe { run.submit(&self.kernels, work, &self.stream) }.expect("launches");
        run.event().synchronize().expect("kernels that follow the rules");
        run.status()
    }
}

impl Target for &Driver {
    fn name(&self) -> String {
        format!("the driver, {}", self.device.facts().name)
    }

    fn decode(&self, case: &Case) -> Result<Vec<u8>, Fault> {
        self.decode_together(&[case]).map(|mut raw| raw.swap_remove(0))
    }

    fn decode_together(&self, cases: &[&Case]) -> Result<Vec<Vec<u8>>, Fault> {
        let (mut jobs, mut work, mut kept, mut outs) = (Vec::new(), Work::default(), Vec::new(), Vec::new());
        for case in cases {
            let len = index(case.geometry.raw_bytes()) + 2 * MARGIN;
            let mut out = DeviceBuffer::new(&self.device, len as u64).expect("device memory");
            out.write(&vec![CANARY; len], &self.stream).expect("a copy");
            let base = out.address() + MARGIN as u64;
            let form = case.coder.as_ref().map(|coder| self.copy(&device_form(coder)));
            let form_address = form.as_ref().map_or(0, DeviceBuffer::address);
            kept.extend(form);
            for (block_idx, bytes) in (0..).zip(&case.blocks) {
                let source = self.copy(bytes);
                jobs.push(case.block_job(block_idx, [source.address(), form_address, base], jobs.len())?);
                kept.push(source);
            }
            kept.extend(self.overlays(case, base, &mut work)?);
            outs.push(out);
        }
        work.launches = decode_launches(&mut jobs, self.device.facts().n_multiprocessors);
        work.blocks = jobs.into_iter().map(|(_, job): (_, BlockJob)| job).collect();
        let status = self.run(&work);
        let raw = cases.iter().zip(&outs).map(|(case, out)| self.raw(case, out)).collect();
        Fault::of(status, work.blocks.len()).map_or(Ok(raw), Err)
    }
}
