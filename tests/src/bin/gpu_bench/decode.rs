//! Decode kernels alone: blocks in device memory, and blocks in memory of the host that the kernels read in place.

use anyhow::{Result, ensure};
use tierpack_kernels::cuda::abi::BlockJob;
use tierpack_kernels::cuda::driver::DeviceBuffer;
use tierpack_kernels::cuda::form::device_form;
use tierpack_kernels::cuda::launch::{StoredBlock, block_job, decode_launches};
use tierpack_shm::types::CodecId;

use crate::device::{Bench, Decoding};
use crate::host::{Registered, SEGMENT_BYTES, Way};
use crate::report::Report;
use crate::timing::{Effort, gib_per_s};
use crate::work::{CODECS, Place, Work};

/// Elements of a row: one full record.
pub(crate) const COLUMNS: u64 = 1024;

/// Raw bytes of the tensor, and of what is different of them.
const RAW_BYTES: u64 = 1 << 30;
const DISTINCT_BYTES: u64 = 8 << 20;

/// Bytes that are compared.
const CHECKED_BYTES: u64 = 64 << 20;

/// From device memory.
pub(crate) fn run(bench: &Bench, effort: Effort, report: &mut Report) -> Result<()> {
    for codec in CODECS {
        let work = work(codec, effort)?;
        let out = bench.memory(work.geometry.raw_bytes())?;
        let note = format!("ratio {:.3}", work.ratio());
        let bytes = in_device(bench, &work)?;
        let (places, _) = work.places(work.geometry.n_blocks(), u64::MAX);
        let decoding = decoding(bench, &work, &places, &[bytes.address()], out.address())?;
        let speed = measure(bench, effort, &work, &decoding.0, &out)?;
        report.row(&format!("decode {codec} from device memory"), speed, "GiB/s", &note)?;
    }
    Ok(())
}

/// From memory of the host.
pub(crate) fn run_in_place(bench: &Bench, effort: Effort, report: &mut Report) -> Result<()> {
    let way = Way::find(bench)?;
    for codec in CODECS {
        let work = work(codec, effort)?;
        let out = bench.memory(work.geometry.raw_bytes())?;
        let note = format!("ratio {:.3}", work.ratio());
        let host = HostTensor::new(bench, way, &work)?;
        let decoding = decoding(bench, &work, &host.places, &host.bases(), out.address())?;
        let speed = measure(bench, effort, &work, &decoding.0, &out)?;
        let name = match codec {
            CodecId::Raw => "raw zero-copy read".to_owned(),
            _ => format!("decode {codec} from host memory, in place"),
        };
        let note = match codec {
            CodecId::Raw => way.note().to_owned(),
            _ => format!("{note}, {:.1} GiB/s of stored bytes, {}", speed / work.ratio(), way.note()),
        };
        report.row(&name, speed, "GiB/s", &note)?;
    }
    Ok(())
}

pub(crate) fn work(codec: CodecId, effort: Effort) -> Result<Work> {
    Work::new(codec, COLUMNS, effort.of(0, RAW_BYTES), effort.of(0, DISTINCT_BYTES))
}

/// All blocks, one behind the other, in device memory.
fn in_device(bench: &Bench, work: &Work) -> Result<DeviceBuffer> {
    let (places, lens) = work.places(work.geometry.n_blocks(), u64::MAX);
    bench.upload(&work.segment(&places, 0, lens[0]))
}

/// All blocks in registered segments of the host.
#[derive(Debug)]
pub(crate) struct HostTensor {
    pub(crate) places: Vec<Place>,
    pub(crate) segments: Vec<Registered>,
}

impl HostTensor {
    pub(crate) fn new(bench: &Bench, way: Way, work: &Work) -> Result<Self> {
        let (places, lens) = work.places(work.geometry.n_blocks(), SEGMENT_BYTES);
        let segment = |(segment, &len)| way.map(bench, &work.segment(&places, segment, len));
        let segments = lens.iter().enumerate().map(segment).collect::<Result<_>>()?;
        Ok(Self { places, segments })
    }

    /// Where the device finds each segment.
    pub(crate) fn bases(&self) -> Vec<u64> {
        self.segments.iter().map(|segment| segment.address).collect()
    }
}

/// Launches that decode the blocks at these places of these segments to `out`; and the metadata that they read.
pub(crate) fn decoding(
    bench: &Bench,
    work: &Work,
    places: &[Place],
    bases: &[u64],
    out: u64,
) -> Result<(Decoding, Option<DeviceBuffer>)> {
    let form = work.coder.as_ref().map(|coder| bench.upload(&device_form(coder))).transpose()?;
    let mut jobs = Vec::with_capacity(places.len());
    for (block_idx, place) in (0..).zip(places) {
        let stored = StoredBlock {
            block_idx,
            header: work.block(block_idx),
            src: bases[place.segment] + place.offset,
            form: form.as_ref().map_or(0, DeviceBuffer::address),
            out: out + work.geometry.block(block_idx).byte_offset,
            number: u32::try_from(block_idx)?,
        };
        jobs.push(block_job(work.coder.as_ref(), &work.geometry, &stored)?);
    }
    let launches = decode_launches(&mut jobs, bench.n_multiprocessors());
    let jobs: Vec<BlockJob> = jobs.into_iter().map(|(_, job)| job).collect();
    Ok((Decoding::new(bench, launches, &jobs)?, form))
}

/// GiB/s of raw bytes; checks before what was decoded.
fn measure(
    bench: &Bench,
    effort: Effort,
    work: &Work,
    decoding: &Decoding,
    out: &DeviceBuffer,
) -> Result<f64> {
    decoding.queue(bench)?;
    decoding.check(bench)?;
    let raw = bench.download(out, out.len().min(CHECKED_BYTES))?;
    ensure!(work.starts_with(&raw), "{}: other bytes than were encoded", work.codec);
    let seconds = effort.seconds(|| decoding.queue(bench), || bench.wait())?;
    decoding.check(bench)?;
    Ok(gib_per_s(work.geometry.raw_bytes(), seconds))
}
