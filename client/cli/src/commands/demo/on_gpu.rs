//! The demo on a GPU: a reader gathers hot rows through the Device tier, and compares them with its source.
//!
//! Each process has its own caches: one for each tensor of several rows, with room for all of them.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tierpack_client::{CacheConfig, DeviceAccess, DeviceHandle, Entry, Gpu, Handle};

use super::super::hot_rows::HotRows;
use super::reader::{GATHER_ROWS, XorShift, differing_rows};
use super::source::SourceTensor;
use crate::device;

/// Bytes of a cache for each byte of its tensor: no row is ever without a line.
const ROOM: u64 = 4;

/// What one process gathered on a GPU.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DeviceTally {
    /// The GPU's name.
    pub(super) device: String,
    /// How it read the pool.
    pub(super) access: String,
    /// What must be said of its figures.
    pub(super) note: Option<String>,
    /// Rows that were gathered, and their raw bytes.
    pub(super) rows: u64,
    pub(super) raw_bytes: u64,
    /// Rows that the caches had, and rows that came from the pool.
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// Bytes that came over the bus, about: misses, times what a row of their tensor takes on average.
    pub(super) bus_bytes: u64,
    /// Rows in the caches, the bytes that they take there, tags aside, and their raw bytes.
    pub(super) cached_rows: u64,
    pub(super) cached_bytes: u64,
    pub(super) cached_raw_bytes: u64,
    /// Time from the launches to the rows; comparing does not count.
    pub(super) seconds: f64,
    /// Words of 8 bytes that differed from the source.
    pub(super) mismatches: u64,
}

/// A tensor that rows are gathered from.
struct Lane<'a> {
    source: &'a SourceTensor,
    device: DeviceHandle,
    hot: HotRows,
    /// What a row takes in the pool, on average.
    stored_row_bytes: u64,
    inserts: u64,
}

/// Gathers hot rows of every tensor of several rows in turn until `time` is over, and once at least.
///
/// # Errors
/// A gather fails.
pub(super) fn gather_all(
    gpu: &Gpu,
    pairs: &[(&SourceTensor, Handle)],
    entries: &[Entry],
    (time, seed): (Duration, u64),
) -> Result<DeviceTally> {
    let mut lanes = pairs
        .iter()
        .filter(|(_, handle)| handle.n_rows() > 1 && handle.row_bytes() > 0)
        .map(|(source, handle)| Lane::new(gpu, source, handle, entries))
        .collect::<Result<Vec<_>>>()?;
    let mut random = XorShift::new(seed);
    let mut tally = DeviceTally {
        device: gpu.name().to_owned(),
        note: device::note(gpu).map(str::to_owned),
        ..DeviceTally::default()
    };
    let start = Instant::now();
    while tally.rows == 0 || start.elapsed() < time {
        for lane in &mut lanes {
            lane.gather(gpu, &mut random, &mut tally)?;
        }
        if lanes.is_empty() {
            break;
        }
    }
    lanes.iter().for_each(|lane| lane.count_cached(&mut tally));
    tally.access = gpu.access().mode.name().to_owned();
    Ok(tally)
}

impl<'a> Lane<'a> {
    fn new(gpu: &Gpu, source: &'a SourceTensor, handle: &Handle, entries: &[Entry]) -> Result<Self> {
        let stored = entries.iter().find(|entry| entry.name == source.name).map(|entry| entry.stored_bytes);
        Ok(Self {
            source,
            device: handle.on_device(gpu, CacheConfig::new(ROOM * handle.raw_bytes()))?,
            hot: HotRows::new(handle.n_rows()),
            stored_row_bytes: stored.unwrap_or(handle.raw_bytes()) / handle.n_rows(),
            inserts: 0,
        })
    }

    fn gather(&mut self, gpu: &Gpu, random: &mut XorShift, tally: &mut DeviceTally) -> Result<()> {
        let handle = self.device.handle();
        let rows: Vec<u64> = (0..GATHER_ROWS).map(|_| self.hot.draw(|| random.next())).collect();
        let (ids, mut out) = (gpu.ids(&rows)?, self.device.output(rows.len())?);
        let start = Instant::now();
        let counts = self.device.gather_into(&ids, &mut out)?.wait()?;
        tally.seconds += start.elapsed().as_secs_f64();
        tally.rows += rows.len() as u64;
        tally.raw_bytes += out.len();
        tally.hits += counts.hits;
        tally.misses += counts.misses;
        self.inserts += counts.inserts;
        tally.bus_bytes += match gpu.access().mode {
            // The host decodes.
            DeviceAccess::Staged => out.len(),
            _ => counts.misses * self.stored_row_bytes,
        };
        let row_bytes = handle.row_bytes();
        tally.mismatches += differing_rows(&out.to_host()?, self.source.bytes, &rows, row_bytes)?;
        Ok(())
    }

    fn count_cached(&self, tally: &mut DeviceTally) {
        let facts = self.device.cache();
        let rows = self.inserts.min(facts.lines);
        tally.cached_rows += rows;
        tally.cached_bytes += rows * u64::from(facts.line_bytes);
        tally.cached_raw_bytes += rows * self.device.handle().row_bytes();
    }
}
