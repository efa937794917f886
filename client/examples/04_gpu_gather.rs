//! Gather rows on a GPU, the hot ones from a compressed cache in its memory.
//!
//! Without a GPU it says so and ends: `cargo run -p tierpack-client --example 04_gpu_gather`.
//! The daemon is one of the example's own.

use tierpack_client::{
    CacheConfig, Client, CodecChoice, CodecId, DeviceHandle, Dtype, Error, Gpu, GpuConfig, GpuError,
    PutOptions,
};
use tierpack_daemon::{Config, Embedded};

/// Rows of the table, and bytes of a row of 64 floats.
const N_ROWS: u16 = 4000;
const ROW_BYTES: usize = 256;

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = match Gpu::open(&GpuConfig::new()) {
        Err(Error::Gpu(error @ (GpuError::NoDriver { .. } | GpuError::NoDevice))) => {
            println!("nothing is gathered: {error}");
            return Ok(());
        }
        opened => opened?,
    };
    println!("{} reads the pool by access {}", gpu.name(), gpu.access().mode.name());
    let folder = tempfile::tempdir()?;
    let daemon = Embedded::start(&Config::embedded(folder.path().join("control.sock"), 64 << 20)?)?;
    let client = Client::builder().socket(daemon.socket()).connect()?;

    // A table of features; row i is full of i.
    let bytes: Vec<u8> = (0..N_ROWS).flat_map(|row| f32::from(row).to_le_bytes().repeat(64)).collect();
    let options = PutOptions::new().codec(CodecChoice::Only(CodecId::Ibp));
    client.put_with("features", Dtype::F32, &[N_ROWS.into(), 64], &mut &bytes[..], &options)?;

    // The table stays in the pool; 256 KiB of the GPU hold the rows that are asked for most, as they are stored.
    let features = client.open("features")?.on_device(&gpu, CacheConfig::new(256 << 10))?;
    let cache = features.cache();
    println!("a cache of {} lines of {} bytes; a row has {ROW_BYTES}", cache.lines, cache.line_bytes);

    // A training loop: row numbers go to the GPU, rows come into the same memory again and again.
    let mut ids = gpu.ids(&[0_u32; 256])?;
    let mut out = features.output(256)?;
    for step in 0..4 {
        let batch: Vec<u32> = (0..256).map(|n| n * n % 1000 + step % 2).collect();
        ids.set(&batch)?;
        let counts = features.gather_into(&ids, &mut out)?.wait()?;
        println!("step {step}: {} rows from the cache, {} from the pool", counts.hits, counts.misses);
        check(&out.to_host()?, &batch, &bytes);
    }

    // An update needs no word to the GPU: the next gather reads the new row.
    features.handle().update(&[0_u32], &7.5_f32.to_le_bytes().repeat(64))?;
    let row = features.gather(&gpu.ids(&[0_u32])?)?.to_host()?;
    println!("after an update row 0 begins with {:?}", f32::from_le_bytes([row[0], row[1], row[2], row[3]]));

    keep_hottest(&gpu, &features)?;
    Ok(())
}

/// Nodes of a graph that are ordered by degree: the first are those that samplers name most.
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn keep_hottest(gpu: &Gpu, features: &DeviceHandle) -> Result<(), Error> {
    features.clear();
    let hottest: Vec<u32> = (0..200).collect();
    let kept = features.keep(&hottest)?;
    // Whatever else passes by leaves them in the cache.
    drop(features.gather(&gpu.ids(&(0..u32::from(N_ROWS)).collect::<Vec<_>>())?)?);
    let mut out = features.output(hottest.len())?;
    let counts = features.gather_into(&gpu.ids(&hottest)?, &mut out)?.wait()?;
    println!("{} rows were kept, and {} of 200 came from the cache", kept.inserts, counts.hits);
    Ok(())
}

fn check(rows: &[u8], batch: &[u32], table: &[u8]) {
    for (row, id) in rows.chunks_exact(ROW_BYTES).zip(batch) {
        let start = *id as usize * ROW_BYTES;
        assert_eq!(row, &table[start..start + ROW_BYTES], "row {id}");
    }
}
