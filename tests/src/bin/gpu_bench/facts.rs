//! The facts that decide how this device can read the pool, asked before anything else runs: what the driver says of
//! it, what the driver answers to each kind of registration, and whether kernels read what is not registered.
//!
//! Each fact is a row as soon as it is known, and what can end the context, or hang, comes last: whatever happens there,
//! the rows before it have been written.
//! `gpu-check` runs its stages in each access mode whose row says `yes`.

use anyhow::{Result, ensure};
use tierpack_kernels::cuda::driver::{Facts, GpuError};
use tierpack_kernels::cuda::images::{Module, choose};
use tierpack_shm::types::CodecId;

use crate::decode::{COLUMNS, decoding};
use crate::device::{Access, Bench};
use crate::host::{Kind, Mapped, Registered};
use crate::report::Report;
use crate::work::{Place, Work};

/// Attributes by number, and what a value other than 0 means.
const ATTRIBUTES: [(u32, &str); 5] = [
    (88, "kernels read pageable memory"),
    (91, "registered memory has the host's address on the device"),
    (99, "memory of the host can be registered"),
    (100, "pageable memory is read through the processor's page tables"),
    (113, "memory that the process may only read can be registered"),
];

/// Registrations: name, mapping, whether it is registered as read-only memory, what it is good for.
const REGISTRATIONS: [(&str, Kind, bool, &str); 5] = [
    ("registers a sealed file, read-only", Kind::Sealed, true, "access mode registered"),
    ("registers a sealed file, read-write", Kind::Sealed, false, "would need no attribute 113"),
    ("registers a writable file, read-write", Kind::Writable, false, "no access mode of TierPack yet"),
    ("registers a private mapping of a sealed file", Kind::Private, false, "never used: a copy of the pool"),
    ("registers a private copy", Kind::Copy, false, "that registration works at all"),
];

/// Blocks that a kernel reads where they are.
struct Probe {
    work: Work,
    places: Vec<Place>,
    bytes: Vec<u8>,
}

impl Probe {
    fn new() -> Result<Self> {
        let work = Work::new(CodecId::Raw, COLUMNS, 0, 0)?;
        let (places, lens) = work.places(work.geometry.n_blocks(), u64::MAX);
        let bytes = work.segment(&places, 0, lens[0]);
        Ok(Self { work, places, bytes })
    }

    /// Lets kernels read them at this address of the device.
    fn read(&self, bench: &Bench, address: u64) -> Result<()> {
        let out = bench.memory(self.work.geometry.raw_bytes())?;
        let (decoding, _form) = decoding(bench, &self.work, &self.places, &[address], out.address())?;
        decoding.queue(bench)?;
        bench.wait()?;
        decoding.check(bench)?;
        let raw = bench.download(&out, out.len())?;
        ensure!(self.work.starts_with(&raw), "other bytes than are there");
        Ok(())
    }

    /// Registers them in such a mapping, and lets kernels read them.
    fn register(&self, bench: &Bench, kind: Kind, is_read_only: bool) -> Result<()> {
        let registered = Registered::attempt(bench, Mapped::new(&self.bytes, kind)?, is_read_only)?;
        if kind == Kind::Writable {
            // As a client would have it: no stray store reaches the pool.
            registered.map.protect()?;
        }
        let read = self.read(bench, registered.address);
        read.map_err(|error| error.context("registered, but not read by a kernel"))
    }

    /// Lets kernels read them in a sealed file that is not registered.
    fn read_pageable(&self, bench: &Bench) -> Result<()> {
        let map = Mapped::new(&self.bytes, Kind::Sealed)?;
        self.read(bench, map.address())
    }
}

pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    describe(bench, report)?;
    mode(report, Access::Staged, &Ok(()), "always")?;
    let probe = Probe::new()?;
    let facts = bench.device.facts();
    for (name, kind, is_read_only, purpose) in REGISTRATIONS {
        let answer = probe.register(bench, kind, is_read_only);
        report.fact(name, answer.is_ok(), &note(&answer, purpose))?;
        if is_read_only {
            let answer = match facts.cannot_register() {
                Some(reason) => Err(anyhow::anyhow!(reason)),
                None => answer,
            };
            mode(report, Access::Registered, &answer, "")?;
        }
    }
    let name = "reads a sealed file as pageable memory";
    if !facts.reads_pageable {
        let answer = Err(anyhow::anyhow!("not tried: attribute 88 is 0"));
        report.fact(name, false, &note(&answer, ""))?;
        return mode(report, Access::Ats, &answer, "");
    }
    let answer = probe.read_pageable(bench);
    report.fact(name, answer.is_ok(), &note(&answer, pageable_by(facts)))?;
    mode(report, Access::Ats, &answer, pageable_by(facts))
}

/// What the driver says.
fn describe(bench: &Bench, report: &mut Report) -> Result<()> {
    let facts = bench.device.facts();
    let version = bench.device.driver_version()?;
    report.row(
        "driver",
        f64::from(version),
        "",
        &format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
    )?;
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
    for (number, meaning) in ATTRIBUTES {
        let name = format!("attribute {number}");
        match bench.device.attribute(number) {
            Ok(value) => report.row(&name, f64::from(value), "", meaning)?,
            Err(error) => report.missing(&name, "", &said(&error.into()))?,
        }
    }
    Ok(())
}

fn mode(report: &mut Report, access: Access, answer: &Result<()>, note: &str) -> Result<()> {
    report.fact(&format!("access mode {}", access.name()), answer.is_ok(), &self::note(answer, note))
}

/// How pageable memory is reached.
fn pageable_by(facts: &Facts) -> &'static str {
    if facts.uses_host_page_tables { "ATS: the processor's page tables" } else { "HMM: faults of the GPU" }
}

fn note(answer: &Result<()>, otherwise: &str) -> String {
    answer.as_ref().map_or_else(said, |()| otherwise.to_owned())
}

/// The driver's name of an error, or what it is.
fn said(error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(
            GpuError::Registration { code, name, .. }
            | GpuError::Driver { code, name, .. }
            | GpuError::Lost { code, name, .. }
            | GpuError::Launch { code, name, .. }
            | GpuError::Module { code, name, .. },
        ) => {
            let outer = error.to_string();
            // What was added to it stays.
            let context = if error.chain().count() > 1 { format!("{outer}: ") } else { String::new() };
            format!("{context}{name} ({code})")
        }
        _ => format!("{error:#}"),
    }
}
