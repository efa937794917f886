//! The pack: one folder with all that a machine with a GPU and without Rust needs, and one script to run there.
//!
//! ```text
//! gpu-check         the script, tests/gpu/gpu-check
//! programs.tar.gz   the tests that a GPU runs, the programs that they start, the files that they read, the benchmark
//! manifest.txt      SHA-256, bytes and name of each of them
//! ```
//!
//! The programs are in an archive since each of them has the images of the kernels, 12 MB.
//! The stand-in for the driver is no part of it: what the script finds there is a GPU, or nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::images;

/// The most that all files have together: what can be brought to such a machine.
const MOST_BYTES: u64 = 64 << 20;

const SCRIPT: &str = "gpu-check";
const ARCHIVE: &str = "programs.tar.gz";
const MANIFEST: &str = "manifest.txt";

/// Tests that a GPU runs: what the names of their files start with.
const TESTS: [&str; 2] = ["conformance_driver", "device"];
/// A test of these whose settings are all the stand-in's: on a GPU it would run nothing.
const STAND_IN_ONLY: &str = "device_coherence";

/// Programs of the package of the tests, which cargo builds with the tests.
const PROGRAMS: [&str; 3] = ["tierpack-under-test", "tierpack-test-client", "tierpack-gpu-bench"];

/// Files that the tests read, by folder and ending.
const FILES: [(&str, &[&str]); 2] =
    [("tests/golden/v1", &["block", "metadata", "raw"]), ("tests/data", &["safetensors"])];

/// Builds the programs, and makes the folder.
pub(crate) fn pack(folder: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    let root = images::root();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = folder.map_or_else(|| target.join("gpu-check"), Path::to_owned);
    let built = build(&root, &gpu_tests(&root.join("tests/tests"))?)?;
    if folder.exists() {
        clear(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let programs = tempfile::tempdir().context("make a temporary folder")?;
    for (name, path) in &built {
        copy(path, &programs.path().join(name))?;
    }
    let files = copy_files(&root, programs.path())?;
    copy(&root.join("tests/gpu").join(SCRIPT), &folder.join(SCRIPT))?;
    let mut manifest = checksums(programs.path(), built.keys().chain(&files).map(String::as_str))?;
    manifest.push_str(&checksums(&folder, [SCRIPT])?);
    write(&folder.join(MANIFEST), &manifest)?;
    archive(programs.path(), &folder.join(ARCHIVE))?;
    let bytes =
        [SCRIPT, ARCHIVE, MANIFEST].into_iter().map(|name| len(&folder.join(name))).sum::<Result<u64>>()?;
    for line in manifest.lines().filter(|line| !line.contains('/')) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "and {} files that the tests read", files.len())?;
    writeln!(out, "needs {}", newest_glibc(built.values())?)?;
    writeln!(
        out,
        "{}: {bytes} bytes, {:.1} MiB of at most {}",
        folder.display(),
        mib(bytes),
        MOST_BYTES >> 20
    )?;
    ensure!(bytes <= MOST_BYTES, "the pack has {:.1} MiB: leave out tests, or images", mib(bytes));
    Ok(())
}

/// Names of the tests that a GPU runs, sorted.
fn gpu_tests(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter_map(|name| test_of(&name)).collect();
    names.sort();
    ensure!(names.len() >= TESTS.len(), "{}: only {names:?} are tests for a GPU", folder.display());
    Ok(names)
}

/// The test that a file holds, if a GPU runs it.
fn test_of(file: &str) -> Option<String> {
    let name = file.strip_suffix(".rs")?;
    let is_one = name != STAND_IN_ONLY && TESTS.iter().any(|start| name.starts_with(start));
    is_one.then(|| name.to_owned())
}

/// Builds the tests, and with them all programs of their package; returns where each is.
fn build(root: &Path, tests: &[String]) -> Result<BTreeMap<String, PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args([
        "test",
        "--profile",
        "pack",
        "--no-run",
        "--locked",
        "-p",
        "tierpack-tests",
    ]);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    for test in tests {
        command.args(["--test", test]);
    }
    let output = command.output().context("run cargo")?;
    ensure!(output.status.success(), "cargo ended with {}", output.status);
    let text = String::from_utf8(output.stdout).context("what cargo says is text")?;
    let mut built: BTreeMap<_, _> = text.lines().filter_map(executable).collect();
    let wanted = tests.iter().map(String::as_str).chain(PROGRAMS);
    let missing: Vec<_> = wanted.filter(|name| !built.contains_key(*name)).collect();
    ensure!(missing.is_empty(), "cargo has not built {missing:?}");
    built.retain(|name, _| PROGRAMS.contains(&name.as_str()) || tests.contains(name));
    Ok(built)
}

/// Copies the files that the tests read, to the same place below `to`; returns their names, sorted.
fn copy_files(root: &Path, to: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (folder, endings) in FILES {
        fs::create_dir_all(to.join(folder)).with_context(|| format!("make {folder}"))?;
        let entries = fs::read_dir(root.join(folder)).with_context(|| format!("list {folder}"))?;
        let wanted =
            |path: &PathBuf| endings.iter().any(|ending| path.extension().is_some_and(|own| own == *ending));
        for path in entries.flatten().map(|entry| entry.path()).filter(wanted) {
            let name = path.strip_prefix(root).context("a file of the folder")?;
            copy(&path, &to.join(name))?;
            names.push(name.display().to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// The program that a line of cargo's is about, and where it is.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let (path, target) = (message["executable"].as_str()?, &message["target"]);
    Some((target["name"].as_str()?.to_owned(), path.into()))
}

/// Removes the files of an older pack; a folder with anything else in it is not ours.
fn clear(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let ours = [SCRIPT, ARCHIVE, MANIFEST];
    if let Some(other) = names.iter().find(|name| !ours.iter().any(|ours| name == ours)) {
        bail!(
            "{} has a file {}, which is of no pack: name another folder",
            folder.display(),
            other.display()
        );
    }
    let removed = names.iter().try_for_each(|name| fs::remove_file(folder.join(name)));
    removed.with_context(|| format!("clear {}", folder.display()))
}

/// A line per file: SHA-256, bytes, name.
fn checksums<'a>(folder: &Path, names: impl IntoIterator<Item = &'a str>) -> Result<String> {
    let mut text = String::new();
    for name in names {
        let output = Command::new("sha256sum").arg(folder.join(name)).output().context("run sha256sum")?;
        ensure!(output.status.success(), "sha256sum ended with {}", output.status);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let sum = said.split_whitespace().next().filter(|sum| sum.len() == 64);
        let sum = sum.with_context(|| format!("no checksum in {said:?}"))?;
        text.push_str(&format!("{sum} {} {name}\n", len(&folder.join(name))?));
    }
    Ok(text)
}

/// The same programs lead to the same archive.
fn archive(folder: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-czf"]).arg(to);
    let status = command.arg("-C").arg(folder).arg(".").status().context("run tar")?;
    ensure!(status.success(), "tar ended with {status}");
    Ok(())
}

/// The newest version of the C library that a program asks for.
fn newest_glibc<'a>(programs: impl Iterator<Item = &'a PathBuf>) -> Result<String> {
    let mut newest = (0, 0);
    for path in programs {
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        newest = newest.max(glibc_of(&bytes));
    }
    Ok(format!("GLIBC_{}.{}", newest.0, newest.1))
}

fn glibc_of(program: &[u8]) -> (u32, u32) {
    const HEAD: &[u8] = b"GLIBC_";
    let version = |at: usize| {
        let rest = program.get(at + HEAD.len()..)?;
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let (major, minor) = str::from_utf8(&rest[..end]).ok()?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    let starts = program.windows(HEAD.len()).enumerate().filter(|(_, window)| *window == HEAD);
    starts.filter_map(|(at, _)| version(at)).max().unwrap_or_default()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

fn write(to: &Path, text: &str) -> Result<()> {
    fs::write(to, text).with_context(|| format!("write {}", to.display()))
}

fn len(path: &Path) -> Result<u64> {
    fs::metadata(path).map(|found| found.len()).with_context(|| format!("look at {}", path.display()))
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_for_a_gpu_are_told_by_their_names() {
        assert_eq!(test_of("device_raw.rs").as_deref(), Some("device_raw"));
        assert_eq!(test_of("conformance_driver.rs").as_deref(), Some("conformance_driver"));
        assert_eq!(
            ["conformance.rs", "conformance_driver", "cli.rs", "device_coherence.rs"].map(test_of),
            [None, None, None, None]
        );
        let found = gpu_tests(&images::root().join("tests/tests")).expect("the folder of the tests");
        assert!(found.contains(&"device".to_owned()) && !found.contains(&"tidy".to_owned()), "{found:?}");
    }

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"device","kind":["test"]},"executable":"/t/device-1"}"#;
        assert_eq!(executable(line), Some(("device".to_owned(), "/t/device-1".into())));
        for other in [r#"{"reason":"compiler-artifact","target":{"name":"x"},"executable":null}"#, "", "{}"] {
            assert_eq!(executable(other), None, "{other}");
        }
    }

    #[test]
    fn a_folder_with_other_files_is_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join(SCRIPT), "").expect("a file of a test");
        clear(folder.path()).expect("a pack");
        assert!(!folder.path().join(SCRIPT).exists());
        fs::write(folder.path().join("thesis.tex"), "").expect("a file of a test");
        assert!(clear(folder.path()).expect_err("another file").to_string().contains("thesis.tex"));
    }

    #[test]
    fn checksums_are_those_of_the_files() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("a"), "abc").expect("a file of a test");
        let line = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 3 a\n";
        assert_eq!(checksums(folder.path(), ["a"]).expect("a checksum"), line);
    }

    #[test]
    fn the_newest_version_of_the_c_library_counts() {
        assert_eq!(glibc_of(b"..GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0"), (2, 34));
        assert_eq!(glibc_of(b"GLIBC"), (0, 0));
    }
}
