//! `tierpack-gpu-bench STAGE`: what reads to a GPU take, one row per figure, on the driver that a read would use.
//!
//! A stage is a process of its own, so that one that fails or hangs costs its own rows and no others.
//! Each figure is the median of several samples, each of so many launches that the host's clock can time them; what is
//! decoded, gathered or read is compared with what was encoded before anything is timed.
//! `--small` makes the work so short that the stand-in for the driver can do it; no such figure, and none of the
//! stand-in, says anything about a GPU, and each row says so.

#![deny(unsafe_code)]

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};

#[path = "gpu_bench/copies.rs"]
mod copies;
#[path = "gpu_bench/cublas.rs"]
mod cublas;
#[path = "gpu_bench/decode.rs"]
mod decode;
#[path = "gpu_bench/device.rs"]
mod device;
#[path = "gpu_bench/facts.rs"]
mod facts;
#[path = "gpu_bench/gather.rs"]
mod gather;
#[path = "gpu_bench/host.rs"]
mod host;
#[expect(dead_code, reason = "the simulation of cache policies needs all of it")]
#[path = "../../benches/cache_policy/numbers.rs"]
mod numbers;
#[path = "gpu_bench/nvcomp.rs"]
mod nvcomp;
#[path = "gpu_bench/product.rs"]
mod product;
#[path = "gpu_bench/reads.rs"]
mod reads;
#[path = "gpu_bench/registration.rs"]
mod registration;
#[path = "gpu_bench/report.rs"]
mod report;
#[path = "gpu_bench/table.rs"]
mod table;
#[path = "gpu_bench/timing.rs"]
mod timing;
#[path = "gpu_bench/work.rs"]
mod work;

use device::{Access, Bench};
use report::Report;
use timing::Effort;

/// Measures what reads to a GPU take.
#[derive(Debug, Parser)]
struct Args {
    /// What to measure
    #[arg(value_enum)]
    stage: Stage,
    /// The access mode to measure, where that matters; without it, each, or the first that works
    #[arg(long, value_enum)]
    access: Option<Access>,
    /// Do little, once: that it works, and no figure
    #[arg(long)]
    small: bool,
    /// Write the rows to the end of this file as well, as lines of JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stage {
    /// What the device is, and which access modes it has
    Facts,
    /// Decode kernels alone, from device memory
    Decode,
    /// Decode kernels alone, from memory of the host that they read in place
    InPlace,
    /// The copy engine alone, and the copy engine before the decode kernels
    Copies,
    /// Registration of segments
    Registration,
    /// Gathers of rows through the cache, next to gathers of rows that are stored raw
    Gather,
    /// A matrix product while blocks are decoded
    Product,
    /// Whole reads of the client library from a daemon
    Reads,
    /// nvCOMP's entropy coder over the same data
    Nvcomp,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let bench = Bench::open(args.access)?;
    let effort = if args.small { Effort::Small } else { Effort::Full };
    let caveat = match effort {
        _ if bench.is_stand_in() => Some("stand-in: not a GPU figure"),
        Effort::Small => Some("too little work for a figure"),
        Effort::Full => None,
    };
    let mut report = Report::new(args.json.as_deref(), caveat, args.access)?;
    match args.stage {
        Stage::Facts => facts::run(&bench, &mut report),
        Stage::Decode => decode::run(&bench, effort, &mut report),
        Stage::InPlace => decode::run_in_place(&bench, effort, &mut report),
        Stage::Copies => copies::run(&bench, effort, &mut report),
        Stage::Registration => registration::run(&bench, effort, &mut report),
        Stage::Gather => gather::run(&bench, effort, &mut report),
        Stage::Product => product::run(&bench, effort, &mut report),
        Stage::Reads => reads::run(&bench, effort, &mut report),
        Stage::Nvcomp => nvcomp::run(&bench, effort, &mut report),
    }
}
