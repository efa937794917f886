//! `cargo run -p xtask -- gen | check | sass | pack`: the images of the CUDA kernels, and the check on a GPU.
//!
//! `gen` compiles `kernels/cuda` with NVRTC into `kernels/images`; `check` compiles again and compares every byte;
//! `sass` counts the instructions of what was compiled.
//! `pack` makes the folder that checks and measures all of it on a machine with a GPU.
//! No GPU and no driver is needed, and building TierPack needs none of this: the images are committed.

#![deny(unsafe_code)]

mod images;
mod loops;
mod nvrtc;
mod pack;
mod report;
mod sass;
mod sources;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};

use crate::images::Folders;
use crate::nvrtc::Nvrtc;

/// The images of TierPack's CUDA kernels.
#[derive(Debug, Parser)]
#[command(name = "xtask", after_help = nvrtc::HELP)]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Compile kernels/cuda/*.cu into kernels/images.
    Gen {
        #[command(flatten)]
        toolkit: Toolkit,
        /// Compile with line information, for a profiler, into this folder instead.
        #[arg(long, value_name = "DIR")]
        line_info: Option<PathBuf>,
    },
    /// Compile again and compare with kernels/images; look for spills, stacks and local memory.
    Check {
        #[command(flatten)]
        toolkit: Toolkit,
    },
    /// Count the instructions of every kernel and of its loops, from the committed images.
    Sass {
        #[command(flatten)]
        toolkit: Toolkit,
        /// The architecture of the images.
        #[arg(long, default_value = "sm_90")]
        arch: String,
        /// Compile this file, and count in it instead.
        #[arg(long, value_name = "FILE")]
        source: Option<PathBuf>,
        /// Only kernels whose names contain this; their opcodes are counted too.
        kernel: Option<String>,
    },
    /// Build what checks and measures TierPack on a GPU, and put it into one folder with one script: gpu-check.
    Pack {
        /// The folder; without it, `gpu-check` in the target folder.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Where the compiler is.
#[derive(Debug, Args)]
struct Toolkit {
    /// Folder of libnvrtc.so.13; without it, that of a wheel in `.venv-cuda`, then the usual library search.
    #[arg(long, env = "NVRTC_DIR", value_name = "DIR")]
    nvrtc: Option<PathBuf>,
}

impl Toolkit {
    /// The folder that was named, or that a wheel has below the repository.
    fn folder(&self) -> Option<PathBuf> {
        self.nvrtc.clone().or_else(|| nvrtc::wheel_folder(&images::root().join(".venv-cuda")))
    }
}

fn main() -> ExitCode {
    let run = run(&Command::parse().what, &mut std::io::stdout().lock());
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do where standard error is closed.
            drop(writeln!(std::io::stderr().lock(), "xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing may be skipped for want of a tool: so in CI.
fn tools_are_required() -> bool {
    std::env::var_os("TIERPACK_REQUIRE_TOOLS").is_some_and(|value| value == "1")
}

/// An error that lists what was found, unless that is nothing.
fn refuse(what: &str, found: &[String]) -> Result<()> {
    ensure!(found.is_empty(), "{} {what}\n{}", found.len(), found.join("\n"));
    Ok(())
}

fn run(what: &What, out: &mut dyn Write) -> Result<()> {
    match what {
        What::Gen { toolkit, line_info } => {
            let Some(nvrtc) = Nvrtc::open(toolkit.folder().as_deref())? else {
                bail!("no NVRTC library is found\n{}", nvrtc::HELP);
            };
            let folders = Folders::of_repository();
            let (to, options) = match line_info {
                Some(folder) => (folder.as_path(), &["--generate-line-info"][..]),
                None => (folders.images.as_path(), &[][..]),
            };
            let warnings = images::generate(&nvrtc, &folders.sources, to, options)?;
            writeln!(out, "wrote {}", to.display())?;
            refuse("warnings", &warnings)
        }
        What::Check { toolkit } => {
            let folder = toolkit.folder();
            let Some(nvrtc) = Nvrtc::open(folder.as_deref())? else {
                if tools_are_required() {
                    bail!("no NVRTC library is found, and TIERPACK_REQUIRE_TOOLS is 1\n{}", nvrtc::HELP);
                }
                writeln!(out, "skipped: no NVRTC library is found, so the images are not checked")?;
                return Ok(());
            };
            let findings = images::check(&nvrtc, &Folders::of_repository(), folder.as_deref(), out)?;
            refuse("findings", &findings)?;
            writeln!(out, "the images are what the sources compile to")?;
            Ok(())
        }
        What::Sass { toolkit, arch, source, kernel } => {
            let (folders, folder) = (Folders::of_repository(), toolkit.folder());
            let made = tempfile::tempdir().context("make a temporary folder")?;
            let cubins = match source {
                Some(source) => {
                    let Some(nvrtc) = Nvrtc::open(folder.as_deref())? else {
                        bail!("no NVRTC library is found\n{}", nvrtc::HELP);
                    };
                    vec![images::compile_one(&nvrtc, &folders.sources, source, arch, made.path())?]
                }
                None => images::cubins(&folders.images, arch)?,
            };
            sass::print(&cubins, kernel.as_deref(), folder.as_deref(), out)
        }
        What::Pack { out: folder } => pack::pack(folder.as_deref(), out),
    }
}
