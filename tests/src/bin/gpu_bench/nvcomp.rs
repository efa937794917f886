//! nvCOMP's ANS coder, where its library is present: the same words, coded as bytes, and decoded from device memory.
//!
//! Found by name when it is wanted, as the driver is; the types are those of `nvcomp/ans.h` of releases 5.0 and 6.0.
//! Other releases have other interfaces, and are not called.
#![expect(unsafe_code, reason = "loads a library and calls it")]

use core::ffi::c_int;

use anyhow::{Context as _, Result, ensure};
use libloading::Library;
use tierpack_kernels::cuda::driver::{DeviceBuffer, Stream};
use tierpack_shm::types::{CodecId, index};

use crate::decode;
use crate::device::Bench;
use crate::report::Report;
use crate::timing::{Effort, gib_per_s};
use crate::work::Work;

/// The variable that names the library's file.
const VARIABLE: &str = "TIERPACK_NVCOMP";
const NAMES: [&str; 3] = ["libnvcomp.so.6", "libnvcomp.so.5", "libnvcomp.so"];
const RELEASES: [u32; 2] = [5, 6];

const ROW: &str = "nvCOMP ANS from device memory";

/// Raw bytes, and those of a chunk, which the library suggests.
const RAW_BYTES: u64 = 256 << 20;
const CHUNK_BYTES: u64 = 64 << 10;

/// `nvcompBatchedANSCompressOpts_t` and `nvcompBatchedANSDecompressOpts_t`: zeros are rANS over bytes, by any means.
#[derive(Clone, Copy)]
#[repr(C)]
struct Options([u32; 16]);

const OPTIONS: Options = Options([0; 16]);

/// The default stream.
const STREAM: usize = 0;

type GetProperties = unsafe extern "C" fn(*mut [u32; 2]) -> c_int;
type EncodeRoom = unsafe extern "C" fn(u64, u64, usize, usize, Options, *mut usize, usize, usize) -> c_int;
type MostEncoded = unsafe extern "C" fn(usize, Options, *mut usize) -> c_int;
type Encode =
    unsafe extern "C" fn(u64, u64, usize, usize, u64, usize, u64, u64, Options, u64, usize) -> c_int;
type DecodeRoom =
    unsafe extern "C" fn(u64, u64, usize, usize, *mut usize, usize, Options, u64, usize) -> c_int;
type Decode = unsafe extern "C" fn(u64, u64, u64, u64, usize, u64, usize, u64, Options, u64, usize) -> c_int;

pub(crate) fn run(bench: &Bench, effort: Effort, report: &mut Report) -> Result<()> {
    if bench.is_stand_in() {
        return report.missing(ROW, "GiB/s", "the stand-in runs no kernels of others");
    }
    let names = std::env::var(VARIABLE).map_or_else(|_| NAMES.map(str::to_owned).to_vec(), |name| vec![name]);
    // SAFETY: loading an installed library runs its initializers, as every program that uses it does.
    let Some(library) = names.iter().find_map(|name| unsafe { Library::new(name) }.ok()) else {
        return report.missing(ROW, "GiB/s", "no nvCOMP");
    };
    let release = release(&library)?;
    if !RELEASES.contains(&(release / 1000)) {
        return report.missing(ROW, "GiB/s", &format!("release {release} of nvCOMP has another interface"));
    }
    let (speed, ratio) = measure(bench, effort, &library)?;
    let note = format!("ratio {ratio:.3} of the words of planes:3, in chunks of 64 KiB, release {release}");
    report.row(ROW, speed, "GiB/s", &note)
}

/// 1000 times the first number of the version, and so on.
fn release(library: &Library) -> Result<u32> {
    // SAFETY: the type is that of the header.
    let properties: GetProperties = *unsafe { library.get("nvcompGetProperties") }?;
    let mut found = [0; 2];
    // SAFETY: both words are written.
    checked("nvcompGetProperties", unsafe { properties(&raw mut found) })?;
    Ok(found[0])
}

fn checked(call: &str, status: c_int) -> Result<()> {
    ensure!(status == 0, "{call}: status {status}");
    Ok(())
}

/// Chunks in device memory: where they start, and how long each is.
struct Chunks {
    bytes: DeviceBuffer,
    addresses: DeviceBuffer,
    lens: DeviceBuffer,
    n: usize,
}

impl Chunks {
    fn new(bench: &Bench, bytes: DeviceBuffer, n: u64, stride: u64, len: u64) -> Result<Self> {
        let addresses: Vec<u64> = (0..n).map(|chunk| bytes.address() + chunk * stride).collect();
        let (addresses, lens) = (bench.upload_all(&addresses)?, bench.upload_all(&vec![len; index(n)])?);
        Ok(Self { bytes, addresses, lens, n: index(n) })
    }
}

/// GiB/s of raw bytes, and the ratio.
#[expect(clippy::cast_precision_loss, reason = "a figure has three digits")]
fn measure(bench: &Bench, effort: Effort, library: &Library) -> Result<(f64, f64)> {
    // SAFETY: the types are those of the header.
    let most: MostEncoded = *unsafe { library.get("nvcompBatchedANSCompressGetMaxOutputChunkSize") }?;
    let work = Work::new(CodecId::Planes3, decode::COLUMNS, effort.of(0, RAW_BYTES), effort.of(0, 8 << 20))?;
    let raw_bytes = work.geometry.raw_bytes();
    let n = raw_bytes / CHUNK_BYTES;
    let raw = Chunks::new(bench, bench.upload(&work.raw_bytes())?, n, CHUNK_BYTES, CHUNK_BYTES)?;
    let mut room = 0;
    // SAFETY: the room is written.
    checked("the longest chunk", unsafe { most(index(CHUNK_BYTES), OPTIONS, &raw mut room) })?;
    let stride = (room as u64).next_multiple_of(256);
    let encoded = Chunks::new(bench, bench.memory(n * stride)?, n, stride, 0)?;
    let out = Chunks::new(bench, bench.memory(raw_bytes)?, n, CHUNK_BYTES, CHUNK_BYTES)?;
    let statuses = bench.upload_all(&vec![0_u32; raw.n])?;
    // SAFETY: 0 is the default stream, which always is.
    let stream = unsafe { Stream::of_caller(&bench.device, STREAM as u64) };
    encode(bench, library, &raw, &encoded, &statuses)?;
    stream.synchronize()?;
    let queue = decoder(bench, library, &encoded, &out, &statuses)?;
    queue()?;
    stream.synchronize()?;
    let bad = bench.download(&statuses, 4 * n)?.iter().any(|byte| *byte != 0);
    ensure!(!bad && work.starts_with(&bench.download(&out.bytes, raw_bytes)?), "nvCOMP gave other bytes");
    let lens = bench.download(&encoded.lens, 8 * n)?;
    let stored: u64 = lens.as_chunks().0.iter().map(|len| u64::from_le_bytes(*len)).sum();
    let seconds = effort.seconds(queue, || Ok(stream.synchronize()?))?;
    Ok((gib_per_s(raw_bytes, seconds), raw_bytes as f64 / stored as f64))
}

fn encode(
    bench: &Bench,
    library: &Library,
    raw: &Chunks,
    encoded: &Chunks,
    statuses: &DeviceBuffer,
) -> Result<()> {
    // SAFETY: the types are those of the header.
    let room: EncodeRoom = *unsafe { library.get("nvcompBatchedANSCompressGetTempSizeSync") }?;
    // SAFETY: as above.
    let encode: Encode = *unsafe { library.get("nvcompBatchedANSCompressAsync") }?;
    let _entered = bench.device.enter()?;
    let (chunk, n, total) = (index(CHUNK_BYTES), raw.n, raw.n * index(CHUNK_BYTES));
    let [addresses, lens] = [&raw.addresses, &raw.lens].map(DeviceBuffer::address);
    let mut bytes = 0;
    // SAFETY: the chunks are in device memory; the room is written.
    let asked = unsafe { room(addresses, lens, n, chunk, OPTIONS, &raw mut bytes, total, STREAM) };
    checked("room to encode", asked)?;
    let temporary = bench.memory(bytes as u64)?;
    let [to, to_lens, statuses, at] =
        [&encoded.addresses, &encoded.lens, statuses, &temporary].map(DeviceBuffer::address);
    // SAFETY: all is device memory, as long as the library has asked for, and kept until it is waited for: freeing
    // `temporary` waits for it.
    let queued =
        unsafe { encode(addresses, lens, chunk, n, at, bytes, to, to_lens, OPTIONS, statuses, STREAM) };
    checked("encode", queued)
}

/// What queues the decoding of all chunks.
fn decoder<'a>(
    bench: &'a Bench,
    library: &Library,
    encoded: &'a Chunks,
    out: &'a Chunks,
    statuses: &'a DeviceBuffer,
) -> Result<impl Fn() -> Result<()> + 'a> {
    // SAFETY: the types are those of the header.
    let room: DecodeRoom = *unsafe { library.get("nvcompBatchedANSDecompressGetTempSizeSync") }?;
    // SAFETY: as above.
    let decode: Decode = *unsafe { library.get("nvcompBatchedANSDecompressAsync") }.context("ANS")?;
    let _entered = bench.device.enter()?;
    let (chunk, n) = (index(CHUNK_BYTES), encoded.n);
    let [addresses, lens, statuses] =
        [&encoded.addresses, &encoded.lens, statuses].map(DeviceBuffer::address);
    let mut bytes = 0;
    // SAFETY: the chunks are in device memory; the room is written.
    let asked =
        unsafe { room(addresses, lens, n, chunk, &raw mut bytes, n * chunk, OPTIONS, statuses, STREAM) };
    checked("room to decode", asked)?;
    let (temporary, decoded_lens) = (bench.memory(bytes as u64)?, bench.memory(8 * n as u64)?);
    Ok(move || {
        let _entered = bench.device.enter()?;
        let [at, to, to_lens, found] =
            [&temporary, &out.addresses, &out.lens, &decoded_lens].map(DeviceBuffer::address);
        // SAFETY: all is device memory, as long as the library has asked for; what the closure holds and borrows is
        // kept until `measure` has waited for it, or longer.
        let queued =
            unsafe { decode(addresses, lens, to_lens, found, n, at, bytes, to, OPTIONS, statuses, STREAM) };
        checked("decode", queued)
    })
}
