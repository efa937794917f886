//! The copy engine: alone, and with decode kernels behind it, as access `staged` has them.
//!
//! What access `staged` does besides, the processor's copy into the page-locked buffers, is not in these figures.

use anyhow::{Result, ensure};
use tierpack_kernels::cuda::driver::{DeviceBuffer, Stage};
use tierpack_shm::types::CodecId;

use crate::decode::{decoding, work};
use crate::device::{Bench, Decoding};
use crate::report::Report;
use crate::timing::{Effort, gib_per_s};
use crate::work::{CODECS, Work};

/// Bytes of a buffer, and how many take turns.
const STAGE_BYTES: u64 = 64 << 20;
const STAGES: usize = 3;
/// Turns that are timed as one.
const TURNS: usize = 12;

pub(crate) fn run(bench: &Bench, effort: Effort, report: &mut Report) -> Result<()> {
    let bytes = effort.of(1 << 16, STAGE_BYTES);
    let speed = alone(bench, effort, bytes)?;
    report.row("copy engine alone", speed, "GiB/s", "page-locked host memory to device memory")?;
    for codec in CODECS {
        let (speed, ratio) = before_decode(bench, effort, codec)?;
        let note = format!("ratio {ratio:.3}, {:.1} GiB/s of stored bytes", speed / ratio);
        report.row(&format!("copy engine, then decode {codec}"), speed, "GiB/s", &note)?;
    }
    Ok(())
}

fn alone(bench: &Bench, effort: Effort, bytes: u64) -> Result<f64> {
    let stages = (0..STAGES).map(|_| Stage::new(&bench.device, bytes)).collect::<Result<Vec<_>, _>>();
    let mut stages = stages?;
    let turns = effort.of(STAGES, TURNS);
    let queue = || {
        for turn in 0..turns {
            let stage = &mut stages[turn % STAGES];
            stage.fill()?;
            stage.upload(bytes, &bench.copies, &bench.stream)?;
        }
        Ok(())
    };
    let wait = || bench.copies.synchronize().map_err(Into::into);
    let seconds = effort.seconds(queue, wait)?;
    Ok(gib_per_s(bytes * turns as u64, seconds))
}

/// One buffer with blocks in it, and where they are decoded to.
struct Turn {
    stage: Stage,
    len: u64,
    decoding: (Decoding, Option<DeviceBuffer>),
    out: DeviceBuffer,
}

impl Turn {
    fn new(bench: &Bench, work: &Work, effort: Effort) -> Result<Self> {
        let room = effort.of(1 << 20, STAGE_BYTES);
        let mut places = work.places(work.geometry.n_blocks(), room).0;
        places.retain(|place| place.segment == 0);
        let (_, lens) = work.places(places.len() as u64, room);
        let mut stage = Stage::new(&bench.device, room)?;
        let (address, bytes) = stage.fill()?;
        let stored = work.segment(&places, 0, lens[0]);
        bytes[..stored.len()].copy_from_slice(&stored);
        let blocks = (0..places.len() as u64).map(|block_idx| work.geometry.block(block_idx).raw_bytes);
        let out = bench.memory(blocks.sum())?;
        let decoding = decoding(bench, work, &places, &[address], out.address())?;
        Ok(Self { stage, len: lens[0], decoding, out })
    }

    fn queue(&mut self, bench: &Bench) -> Result<()> {
        self.stage.fill()?;
        self.stage.upload(self.len, &bench.copies, &bench.stream)?;
        self.decoding.0.queue(bench)?;
        Ok(self.stage.mark_used(&bench.stream)?)
    }
}

/// GiB/s of raw bytes, and the ratio.
fn before_decode(bench: &Bench, effort: Effort, codec: CodecId) -> Result<(f64, f64)> {
    let work = work(codec, effort)?;
    let turns = (0..STAGES).map(|_| Turn::new(bench, &work, effort));
    let mut turns = turns.collect::<Result<Vec<_>>>()?;
    for turn in &mut turns {
        turn.queue(bench)?;
        turn.decoding.0.check(bench)?;
        let raw = bench.download(&turn.out, turn.out.len())?;
        ensure!(work.starts_with(&raw), "{codec}: other bytes than were encoded");
    }
    let (n, raw_bytes) = (effort.of(STAGES, TURNS), turns[0].out.len());
    let queue = || (0..n).try_for_each(|turn| turns[turn % STAGES].queue(bench));
    let seconds = effort.seconds(queue, || bench.wait())?;
    Ok((gib_per_s(raw_bytes * n as u64, seconds), work.ratio()))
}
