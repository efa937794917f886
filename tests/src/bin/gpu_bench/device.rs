//! The device of a bench, its kernels, and their launches.
#![expect(unsafe_code, reason = "kernels follow the addresses that they are given")]

use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use tierpack_client::AccessChoice;
use tierpack_kernels::cuda::abi::{BlockJob, Status};
use tierpack_kernels::cuda::driver::{Device, DeviceBuffer, Kernels, Parameter, Stream};
use tierpack_kernels::cuda::gather::GatherLaunch;
use tierpack_kernels::cuda::images::Module;
use tierpack_kernels::cuda::launch::Launch;
use tierpack_shm::types::index;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How the device is to reach memory of the host: the access modes of the client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Access {
    /// In place, as pageable memory
    Ats,
    /// In place, registered with the driver
    Registered,
    /// Through page-locked buffers
    Staged,
}

impl Access {
    pub(crate) const fn name(self) -> &'static str {
        self.choice().name()
    }

    pub(crate) const fn choice(self) -> AccessChoice {
        match self {
            Self::Ats => AccessChoice::Ats,
            Self::Registered => AccessChoice::Registered,
            Self::Staged => AccessChoice::Staged,
        }
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) device: Arc<Device>,
    /// Where kernels run.
    pub(crate) stream: Stream,
    /// Where the copy engine runs.
    pub(crate) copies: Stream,
    /// What was asked for; else the first way that works.
    pub(crate) access: Option<Access>,
    decode: OnceLock<Kernels>,
    gather: OnceLock<Kernels>,
}

impl Bench {
    /// Opens the first device; kernels are loaded at their first launch, so that a stage waits only for its own.
    pub(crate) fn open(access: Option<Access>) -> Result<Self> {
        let device = Device::open(0)?;
        let (stream, copies) = (Stream::new(&device)?, Stream::new(&device)?);
        let [decode, gather] = [OnceLock::new(), OnceLock::new()];
        Ok(Self { device, stream, copies, access, decode, gather })
    }

    fn kernels<'a>(&self, loaded: &'a OnceLock<Kernels>, module: Module) -> Result<&'a Kernels> {
        if let Some(kernels) = loaded.get() {
            return Ok(kernels);
        }
        let kernels = Kernels::load(&self.device, module)?;
        Ok(loaded.get_or_init(|| kernels))
    }

    /// Whether it is the stand-in of the tests.
    pub(crate) fn is_stand_in(&self) -> bool {
        self.device.facts().name.starts_with("fakecuda")
    }

    pub(crate) fn n_multiprocessors(&self) -> u32 {
        self.device.facts().n_multiprocessors
    }

    /// Memory with anything in it.
    pub(crate) fn memory(&self, len: u64) -> Result<DeviceBuffer> {
        Ok(DeviceBuffer::new(&self.device, len.max(64))?)
    }

    /// A copy of bytes.
    pub(crate) fn upload(&self, bytes: &[u8]) -> Result<DeviceBuffer> {
        let mut buffer = self.memory(bytes.len() as u64)?;
        buffer.write(bytes, &self.stream)?;
        Ok(buffer)
    }

    /// A copy of structs.
    pub(crate) fn upload_all<T: IntoBytes + Immutable>(&self, values: &[T]) -> Result<DeviceBuffer> {
        self.upload(values.as_bytes())
    }

    /// The first bytes of a buffer.
    pub(crate) fn download(&self, buffer: &DeviceBuffer, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; index(len)];
        buffer.read(&mut bytes, &self.stream)?;
        Ok(bytes)
    }

    /// The struct at the start of a buffer.
    pub(crate) fn value<T: FromBytes>(&self, buffer: &DeviceBuffer) -> Result<T> {
        let bytes = self.download(buffer, size_of::<T>() as u64)?;
        T::read_from_bytes(&bytes).ok().context("as many bytes as the struct has")
    }

    pub(crate) fn wait(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }

    /// Queues a launch of kernel `gather` with one call, at this address.
    pub(crate) fn gather(&self, launch: &GatherLaunch, call: u64) -> Result<()> {
        let &GatherLaunch { kernel, grid, block, shared_bytes, .. } = launch;
        let launch = Launch { kernel, jobs: 0..1, grid, block, shared_bytes, warp_bytes: 0 };
        let parameters = [Parameter::Address(call), Parameter::Number(1)];
        let kernels = self.kernels(&self.gather, Module::Gather)?;
        // SAFETY: `gather` has these parameters (kernels/cuda/gather.cu); `table.rs` keeps what the call leads to.
        unsafe { kernels.launch(&launch, &parameters, &self.stream) }?;
        Ok(())
    }
}

/// Blocks to decode, again and again; what the jobs lead to is kept by whoever has made them.
#[derive(Debug)]
pub(crate) struct Decoding {
    launches: Vec<Launch>,
    jobs: DeviceBuffer,
    status: DeviceBuffer,
}

impl Decoding {
    pub(crate) fn new(bench: &Bench, launches: Vec<Launch>, jobs: &[BlockJob]) -> Result<Self> {
        let status = bench.upload_all(&[Status::CLEAR])?;
        Ok(Self { launches, jobs: bench.upload_all(jobs)?, status })
    }

    /// Queues the launches.
    pub(crate) fn queue(&self, bench: &Bench) -> Result<()> {
        let kernels = bench.kernels(&bench.decode, Module::Decode)?;
        for launch in &self.launches {
            let jobs = self.jobs.address() + (launch.jobs.start * size_of::<BlockJob>()) as u64;
            let n_jobs = Parameter::Number(u32::try_from(launch.jobs.len())?);
            let [jobs, status] = [jobs, self.status.address()].map(Parameter::Address);
            let parameters = [jobs, n_jobs, Parameter::Number(launch.warp_bytes), status];
            // SAFETY: decode kernels have these parameters (kernels/cuda/decode.cu); `decode.rs` and `copies.rs` keep
            // what the jobs lead to until the stream has been waited for.
            unsafe { kernels.launch(launch, &parameters, &bench.stream) }?;
        }
        Ok(())
    }

    /// That no kernel has found damage so far.
    pub(crate) fn check(&self, bench: &Bench) -> Result<()> {
        let status: Status = bench.value(&self.status)?;
        ensure!(status == Status::CLEAR, "a kernel found damage: {status:?}");
        Ok(())
    }
}
