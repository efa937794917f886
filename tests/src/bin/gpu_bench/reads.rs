//! Whole reads as a program has them: a daemon, a client, tensors to the GPU.

use anyhow::{Context as _, Result, ensure};
use tierpack_client::{CacheConfig, CodecChoice, CodecId, Gpu, GpuConfig, Handle, PutOptions};
use tierpack_shm::types::index;
use tierpack_tests::Daemon;

use crate::decode;
use crate::device::{Access, Bench};
use crate::report::Report;
use crate::timing::{Effort, gib_per_s};
use crate::work::Work;

/// The program, next to this one.
const PROGRAM: &str = "tierpack-under-test";
const CODECS: [CodecId; 3] = [CodecId::Raw, CodecId::Ibp, CodecId::Planes3];
const ACCESSES: [Access; 3] = [Access::Ats, Access::Registered, Access::Staged];

/// Rows of a small gather, and a prime that lies between them.
const FEW: u64 = 64;
const STEP: u64 = 7919;

/// Raw bytes of a tensor.
const RAW_BYTES: u64 = 256 << 20;

pub(crate) fn run(bench: &Bench, effort: Effort, report: &mut Report) -> Result<()> {
    let folder = std::env::current_exe()?.parent().context("a program lies in a folder")?.to_owned();
    let program = folder.join(PROGRAM).into_os_string().into_string().ok().context("a path in UTF-8")?;
    let pool = effort.of("64MiB", "1GiB");
    let daemon = Daemon::start(&program, &["--pool-size", pool, "--lock", "off", "--refit", "manual"]);
    let client = daemon.client();
    for codec in CODECS {
        let work = Work::new(codec, decode::COLUMNS, effort.of(0, RAW_BYTES), effort.of(0, 8 << 20))?;
        let raw = work.raw_bytes();
        let options = PutOptions::new().codec(CodecChoice::Only(codec)).overwrite(true);
        let shape = [work.geometry.n_rows(), decode::COLUMNS];
        client.put_with("bench", work.geometry.dtype(), &shape, &mut &raw[..], &options)?;
        let handle = client.open("bench")?;
        for access in ACCESSES.into_iter().filter(|access| bench.access.is_none_or(|only| only == *access)) {
            let name = format!("get_to_device {codec}, {}", access.name());
            let gpu = match Gpu::open(&GpuConfig::new().access(access.choice())) {
                Ok(gpu) => gpu,
                Err(error) => {
                    report.missing(&name, "GiB/s", &error.to_string())?;
                    continue;
                }
            };
            let mut tensor = handle.get_to_device(&gpu)?;
            ensure!(tensor.to_host()? == raw, "{name}: other bytes than were put");
            let read = || {
                handle.get_to_device_into(&gpu, &mut tensor)?;
                Ok(tensor.wait()?)
            };
            let seconds = effort.seconds(read, || Ok(()))?;
            let note =
                format!("ratio {:.3}, into memory that is there, one read after the other", work.ratio());
            report.row(&name, gib_per_s(raw.len() as u64, seconds), "GiB/s", &note)?;
            let seconds = small_gather(&handle, &gpu, &work, effort)?;
            let name = format!("gather of {FEW} rows {codec}, {}", access.name());
            report.row(&name, seconds * 1e6, "us", "2 KiB rows, no cache, each waited for")?;
        }
    }
    Ok(())
}

/// Seconds of a gather that is too small for the bus to matter; its rows are compared before.
fn small_gather(handle: &Handle, gpu: &Gpu, work: &Work, effort: Effort) -> Result<f64> {
    let device = handle.on_device(gpu, CacheConfig::new(0))?;
    let ids: Vec<u64> = (0..FEW).map(|n| n * STEP % work.geometry.n_rows()).collect();
    let wanted: Vec<u8> = ids.iter().flat_map(|&id| work.row(id)).copied().collect();
    let ids = gpu.ids(&ids)?;
    let mut rows = device.output(index(FEW))?;
    device.gather_into(&ids, &mut rows)?.wait()?;
    ensure!(rows.to_host()? == wanted, "a gather of {FEW} rows: other bytes than were put");
    effort.seconds(|| Ok(device.gather_into(&ids, &mut rows)?.wait().map(drop)?), || Ok(()))
}
