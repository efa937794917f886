//! The device, as its driver describes it.

use anyhow::Result;
use tierpack_kernels::cuda::images::{Module, choose};

use crate::device::Bench;
use crate::report::Report;

pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let facts = bench.device.facts();
    let (major, minor) = facts.capability;
    let (free, total) = bench.device.memory()?;
    let image = choose(Module::Decode, major, minor).arch;
    let note = format!(
        "{}, compute capability {major}.{minor}, image {image}, {} of {} MiB free",
        facts.name,
        free >> 20,
        total >> 20
    );
    report.row("multiprocessors", f64::from(facts.n_multiprocessors), "", &note)?;
    let [pageable, tables, registers] =
        [facts.reads_pageable, facts.uses_host_page_tables, facts.registers].map(u8::from);
    let note = format!("attributes 88: {pageable}, 100: {tables}, 99: {registers}");
    let read_only = f64::from(u8::from(facts.registers_read_only));
    report.row("registers read-only memory (attribute 113)", read_only, "0 or 1", &note)
}
