//! The images: compiled from `kernels/cuda`, and compared with what is committed in `kernels/images`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};

use crate::nvrtc::{self, Compiled, Nvrtc};
use crate::report::{self, Usage};
use crate::{sass, sources};

/// Each module is a source file of this name.
const MODULES: [&str; 2] = ["decode", "gather"];

/// The virtual architecture of the PTX, and the real ones of the cubins.
const ARCHS: [&str; 5] = ["compute_80", "sm_80", "sm_90", "sm_100", "sm_120"];

const TABLE: &str = "resources.txt";

/// Where sources and images are.
#[derive(Debug)]
pub(crate) struct Folders {
    pub(crate) sources: PathBuf,
    pub(crate) images: PathBuf,
}

/// The folder of the repository, which the environment of `cargo run` names.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| "kernels/xtask".into(), PathBuf::from);
    let root = here.join("../..");
    fs::canonicalize(&root).unwrap_or(root)
}

impl Folders {
    pub(crate) fn of_repository() -> Self {
        let kernels = root().join("kernels");
        Self { sources: kernels.join("cuda"), images: kernels.join("images") }
    }
}

/// The name of an image's file.
fn image_name(module: &str, arch: &str) -> String {
    let extension = if arch.starts_with("sm_") { "cubin" } else { "ptx" };
    format!("{module}.{arch}.{extension}")
}

/// Compiles every module for every architecture into a folder; returns warnings: of the assembler, spills, stacks.
pub(crate) fn generate(nvrtc: &Nvrtc, sources: &Path, to: &Path, more: &[&str]) -> Result<Vec<String>> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    let jobs: Vec<_> = MODULES.iter().flat_map(|module| ARCHS.map(|arch| (*module, arch))).collect();
    // One after the other they take a minute; each thread takes the next that no other has.
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(Vec<Usage>, Vec<String>)>> {
        let taken = std::iter::from_fn(|| jobs.get(next.fetch_add(1, Ordering::Relaxed)));
        taken.map(|&(module, arch)| compile(nvrtc, sources, to, more, module, arch)).collect()
    };
    let made: Vec<_> = std::thread::scope(|scope| {
        let n = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..n).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a compilation panicked")))
            .collect()
    });
    let (mut usages, mut warnings): (Vec<Usage>, Vec<String>) = (Vec::new(), Vec::new());
    for made in made {
        for (its_usages, its_warnings) in made? {
            usages.extend(its_usages);
            warnings.extend(its_warnings);
        }
    }
    let path = to.join(TABLE);
    fs::write(&path, report::table(&usages)).with_context(|| format!("write {}", path.display()))?;
    warnings.extend(
        usages
            .iter()
            .filter(|usage| usage.spill_bytes > 0)
            .map(|usage| format!("{} spills {} bytes on sm_{}", usage.kernel, usage.spill_bytes, usage.arch)),
    );
    warnings.extend(usages.iter().filter(|usage| usage.stack_bytes > 0).map(|usage| {
        format!("{} has a stack of {} bytes on sm_{}", usage.kernel, usage.stack_bytes, usage.arch)
    }));
    warnings.sort();
    Ok(warnings)
}

/// Compiles one module for one architecture.
fn compile(
    nvrtc: &Nvrtc,
    sources: &Path,
    to: &Path,
    more: &[&str],
    module: &str,
    arch: &str,
) -> Result<(Vec<Usage>, Vec<String>)> {
    let path = sources.join(format!("{module}.cu"));
    let source = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut options = options(arch, sources);
    options.extend(more.iter().map(|&option| option.to_owned()));
    let Compiled { image, log } = nvrtc.compile(&source, &format!("{module}.cu"), &options)?;
    let usages = report::usages(&log).with_context(|| format!("the log of {module} for {arch}"))?;
    let warnings = report::warnings(&log).map(|warning| format!("{module} for {arch}: {warning}")).collect();
    let path = to.join(image_name(module, arch));
    fs::write(&path, image).with_context(|| format!("write {}", path.display()))?;
    Ok((usages, warnings))
}

/// Compiles one file for one architecture into a folder.
pub(crate) fn compile_one(
    nvrtc: &Nvrtc,
    sources: &Path,
    source: &Path,
    arch: &str,
    to: &Path,
) -> Result<PathBuf> {
    let text = fs::read_to_string(source).with_context(|| format!("read {}", source.display()))?;
    let options = options(arch, sources);
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let path = to.join("one.cubin");
    fs::write(&path, nvrtc.compile(&text, &name, &options)?.image)
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// The committed cubins of one architecture.
pub(crate) fn cubins(images: &Path, arch: &str) -> Result<Vec<PathBuf>> {
    ensure!(ARCHS[1..].contains(&arch), "there is no cubin for {arch}: {}", ARCHS[1..].join(", "));
    Ok(MODULES.map(|module| images.join(image_name(module, arch))).to_vec())
}

fn options(arch: &str, sources: &Path) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        format!("--include-path={}", sources.display()),
    ];
    if arch.starts_with("sm_") {
        options.extend(["--ptxas-options=-v", "--ptxas-options=--warn-on-spills"].map(str::to_owned));
    }
    options
}

/// Everything that is wrong with the committed images.
pub(crate) fn check(
    nvrtc: &Nvrtc,
    folders: &Folders,
    toolkit: Option<&Path>,
    out: &mut dyn Write,
) -> Result<Vec<String>> {
    let fresh = tempfile::tempdir().context("make a temporary folder")?;
    let mut findings = generate(nvrtc, &folders.sources, fresh.path(), &[])?;
    findings.extend(differences(&folders.images, fresh.path())?);
    findings.extend(kernel_findings(&folders.sources, &folders.images)?);
    let Some(disassembler) = sass::Disassembler::find(toolkit) else {
        if crate::tools_are_required() {
            bail!(
                "neither nvdisasm nor cuobjdump is found, and TIERPACK_REQUIRE_TOOLS is 1\n{}",
                nvrtc::HELP
            );
        }
        writeln!(out, "skipped: neither cuobjdump nor nvdisasm is found, so SASS is not looked at")?;
        return Ok(findings);
    };
    for (module, arch) in MODULES.iter().flat_map(|module| ARCHS.map(|arch| (module, arch))) {
        if arch.starts_with("sm_") {
            let text = disassembler.dump(&fresh.path().join(image_name(module, arch)))?;
            let found = sass::local_memory(&text);
            findings.extend(found.into_iter().map(|line| format!("{module} for {arch}: {line}")));
        }
    }
    Ok(findings)
}

fn names_in(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Files that the committed folder and the fresh one do not share, byte for byte.
fn differences(committed: &Path, fresh: &Path) -> Result<Vec<String>> {
    const REMEDY: &str = "run `cargo run -p xtask -- gen` and commit the images";
    let (old, new) = (names_in(committed)?, names_in(fresh)?);
    let mut findings = Vec::new();
    for name in old.union(&new) {
        if !new.contains(name) {
            findings.push(format!("kernels/images/{name} is made by no source: remove it"));
        } else if !old.contains(name) {
            findings.push(format!("kernels/images/{name} is missing: {REMEDY}"));
        } else if fs::read(committed.join(name))? != fs::read(fresh.join(name))? {
            findings.push(format!("kernels/images/{name} is not what the sources compile to: {REMEDY}"));
        }
    }
    Ok(findings)
}

/// Kernels that only the sources have, only the images, or that the simulator does not know.
fn kernel_findings(sources: &Path, images: &Path) -> Result<Vec<String>> {
    let (mut defined, mut exported) = (BTreeSet::new(), BTreeSet::new());
    for name in names_in(sources)?.iter().filter(|name| name.ends_with(".cu") || name.ends_with(".cuh")) {
        let text = fs::read_to_string(sources.join(name))?;
        defined.extend(sources::defined(&text));
        exported.extend(sources::exported(&text));
    }
    let mut findings = unlike(&defined, &exported, "in kernels/cuda", "in an EXPORT_KERNEL");
    for arch in ARCHS {
        let mut held = BTreeSet::new();
        for module in MODULES {
            let path = images.join(image_name(module, arch));
            held.extend(sources::in_image(&fs::read(&path).unwrap_or_default()));
        }
        findings.extend(unlike(&defined, &held, "in kernels/cuda", &format!("in an image for {arch}")));
    }
    Ok(findings)
}

fn unlike(these: &BTreeSet<String>, those: &BTreeSet<String>, here: &str, there: &str) -> Vec<String> {
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>, has: &str, lacks: &str| -> Vec<String> {
        a.difference(b).map(|kernel| format!("kernel {kernel} is {has} and not {lacks}")).collect()
    };
    let mut findings = only(these, those, here, there);
    findings.extend(only(those, these, there, here));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_difference_of_the_folders_is_found() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [&old, &new] {
            fs::write(folder.path().join("a"), [1, 2, 3]).unwrap();
        }
        assert_eq!(differences(old.path(), new.path()).unwrap().len(), 0);
        fs::write(old.path().join("a"), [1, 2, 4]).unwrap();
        fs::write(old.path().join("b"), []).unwrap();
        fs::write(new.path().join("c"), []).unwrap();
        let found = differences(old.path(), new.path()).unwrap();
        assert_eq!(found.len(), 3);
        assert!(found[0].contains("a is not what"), "{found:?}");
        assert!(found[1].contains("b is made by no source"), "{found:?}");
        assert!(found[2].contains("c is missing"), "{found:?}");
    }

    #[test]
    fn a_kernel_that_one_side_lacks_is_found() {
        let (sources, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write_images = |ptx: &str| {
            for arch in ARCHS {
                fs::write(images.path().join(image_name("gather", arch)), ptx).unwrap();
            }
        };
        fs::write(sources.path().join("x.cuh"), "KERNEL void a(int n) {}\nEXPORT_KERNEL(a)\n").unwrap();
        write_images(".visible .entry a(");
        assert_eq!(kernel_findings(sources.path(), images.path()).unwrap(), [""; 0]);
        write_images(".visible .entry b(");
        assert_eq!(kernel_findings(sources.path(), images.path()).unwrap().len(), 2 * ARCHS.len());
        fs::write(sources.path().join("x.cuh"), "KERNEL void b(int n) {}\n").unwrap();
        let found = kernel_findings(sources.path(), images.path()).unwrap();
        assert_eq!(found, ["kernel b is in kernels/cuda and not in an EXPORT_KERNEL"]);
    }
}
