//! A product of matrices while blocks are decoded: what reads take from the work that they are for.

use std::time::Instant;

use anyhow::Result;
use tierpack_kernels::cuda::driver::Event;
use tierpack_shm::types::CodecId;
use tierpack_tests::data::Random;

use crate::cublas::Cublas;
use crate::decode::{HostTensor, decoding, work};
use crate::device::{Bench, Decoding};
use crate::host::Way;
use crate::report::Report;
use crate::timing::Effort;

const UNIT: &str = "times";
const CODECS: [CodecId; 4] = [CodecId::Raw, CodecId::Ibp, CodecId::Planes3, CodecId::Planes222];

/// Sides of the matrices, and products that are timed as one.
const SIDE: u32 = 8192;
const PRODUCTS: usize = 30;
/// Times that a longer queue of decodes is tried, since one that ends before the products says nothing.
const TRIES: usize = 6;

fn name(codec: CodecId) -> String {
    format!("matrix product while {codec} is decoded from host memory")
}

pub(crate) fn run(bench: &Bench, effort: Effort, report: &mut Report) -> Result<()> {
    let missing = |report: &mut Report, why: &str| {
        report.missing("matrix product alone", "ms", why)?;
        CODECS.iter().try_for_each(|&codec| report.missing(&name(codec), UNIT, why))
    };
    if bench.is_stand_in() {
        return missing(report, "the stand-in multiplies no matrices");
    }
    let Some(cublas) = Cublas::open(bench)? else { return missing(report, "no cuBLAS") };
    let (side, products) = effort.of((512, 3), (SIDE, PRODUCTS));
    // Values near 1: what a product costs in power depends on them.
    let words = Random::new(9).bytes(usize::try_from(side)?.pow(2) * 2);
    let words: Vec<u8> =
        words.as_chunks::<2>().0.iter().flat_map(|[low, high]| [*low, high & 0x80 | 0x3F]).collect();
    let matrices = [bench.upload(&words)?, bench.upload(&words)?, bench.memory(words.len() as u64)?];
    let matrices = matrices.each_ref();
    let multiply = || (0..products).try_for_each(|_| cublas.multiply(bench, side, matrices));
    multiply()?;
    cublas.wait()?;
    let alone = median(|| {
        let start = Instant::now();
        multiply()?;
        cublas.wait()?;
        Ok(Some(start.elapsed().as_secs_f64()))
    })?;
    let Some(alone) = alone else { return missing(report, "no product was timed") };
    #[expect(clippy::cast_precision_loss, reason = "a figure has three digits")]
    let each = alone * 1e3 / products as f64;
    report.row("matrix product alone", each, "ms", &format!("BF16, {side} x {side}, cuBLAS"))?;
    let way = Way::find(bench)?;
    for codec in CODECS {
        let work = work(codec, effort)?;
        let host = HostTensor::new(bench, way, &work)?;
        let out = bench.memory(work.geometry.raw_bytes())?;
        let decoding = decoding(bench, &work, &host.places, &host.bases(), out.address())?;
        let busy = median(|| beside(bench, &decoding.0, || multiply().and_then(|()| cublas.wait())))?;
        match busy {
            Some(busy) => report.row(&name(codec), busy / alone, UNIT, "as long as alone")?,
            None => report.missing(&name(codec), UNIT, "the decodes ended before the products")?,
        }
    }
    Ok(())
}

/// Seconds of `work` while blocks are decoded all the time; none where that could not be had.
fn beside(bench: &Bench, decoding: &Decoding, work: impl Fn() -> Result<()>) -> Result<Option<f64>> {
    let over = Event::new(&bench.device)?;
    for tries in 0..TRIES {
        (0..8 << tries).try_for_each(|_| decoding.queue(bench))?;
        over.record(&bench.stream)?;
        let start = Instant::now();
        work()?;
        let seconds = start.elapsed().as_secs_f64();
        let is_beside = !over.is_done()?;
        bench.wait()?;
        if is_beside {
            return Ok(Some(seconds));
        }
    }
    Ok(None)
}

/// The median of three.
fn median(mut sample: impl FnMut() -> Result<Option<f64>>) -> Result<Option<f64>> {
    let samples = (0..3).map(|_| sample()).collect::<Result<Option<Vec<f64>>>>()?;
    Ok(samples.map(|mut samples| {
        samples.sort_by(f64::total_cmp);
        samples[1]
    }))
}
