//! Tests of the GPU path: each body runs in a process of its own, with a driver named by the environment.
//!
//! A driver is loaded once per process, its settings are environment variables, and an error of a kernel lasts as long
//! as the process; so a test starts itself again, once per setting, and looks at how that ends.
//! The driver is the stand-in next to the test executable, unless `TIERPACK_CUDA_DRIVER` says otherwise: with `system`
//! the same tests run on the installed driver, except for those that set the stand-in's variables.
//! With `TIERPACK_TEST_ACCESS=MODE` they run in that access mode alone, on either driver as they would on a GPU that has
//! it: `gpu-check` runs them once per mode of the device.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tierpack_client::{AccessChoice, Client, CodecChoice, CodecId, Dtype, GpuError, Handle, PutOptions};

use crate::data::{Random, Words};

const CHILD: &str = "TIERPACK_TEST_CHILD";
const DRIVER: &str = "TIERPACK_CUDA_DRIVER";
const ACCESS: &str = "TIERPACK_DEVICE_ACCESS";
/// The only access mode to run tests in.
const ONLY_ACCESS: &str = "TIERPACK_TEST_ACCESS";
/// How a setting has the stand-in read pageable memory; a device with that access mode does so by itself.
const READS_PAGEABLE: (&str, &str) = ("FAKE_CUDA_ATTR_88", "1");

/// Variables of a child; those that start with `FAKE_CUDA_` are the stand-in's.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

/// The stand-in, which cargo builds next to the tests.
///
/// # Panics
/// When the system does not say where this program is.
pub fn stand_in() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    program.parent().expect("a program lies in a folder").join("libfakecuda.so")
}

/// Whether the tests run on an installed driver.
pub fn is_real() -> bool {
    std::env::var_os(DRIVER).is_some_and(|driver| driver == "system")
}

/// Whether the tests are those that a GPU runs: on an installed driver, or in one access mode alone.
pub fn is_as_on_a_gpu() -> bool {
    is_real() || std::env::var_os(ONLY_ACCESS).is_some()
}

/// The access modes in which a test works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// In all.
    Nothing,
    /// Where kernels read the pool in place: only then there are caches and graphs.
    InPlace,
    /// Where segments are registered.
    Registered,
    /// Where bytes go through staging buffers.
    Staged,
}

impl Needs {
    fn has(self, access: &str) -> bool {
        match self {
            Self::Nothing => true,
            Self::InPlace => access != AccessChoice::Staged.name(),
            Self::Registered => access == AccessChoice::Registered.name(),
            Self::Staged => access == AccessChoice::Staged.name(),
        }
    }
}

/// Whether this process is a child of [`in_child`] or [`child`].
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs the test `name` once per setting, each in a child; `true` in such a child, which then does the work.
///
/// # Panics
/// When a child fails; what it wrote is in the message.
pub fn in_child(name: &str, settings: &[Settings<'_>]) -> bool {
    in_child_that(Needs::Nothing, name, settings)
}

/// As [`in_child`], for a test that does not work in every access mode.
///
/// # Panics
/// As [`in_child`].
pub fn in_child_that(needs: Needs, name: &str, settings: &[Settings<'_>]) -> bool {
    if is_child() {
        return true;
    }
    let only = std::env::var(ONLY_ACCESS).ok();
    for setting in settings {
        let setting = match adapted(setting, needs, is_real(), only.as_deref()) {
            Ok(setting) => setting,
            Err(reason) => {
                say(&format!("skipped: {setting:?}: {reason}"));
                continue;
            }
        };
        let (succeeded, text) = child(name, &setting);
        // A name that no test has would pass as well.
        let is_clean = succeeded && text.contains("1 passed") && !text.contains("fakecuda: ");
        assert!(is_clean, "{name} with {setting:?}:\n{text}");
        text.lines().filter(|line| line.contains("skipped: ")).for_each(say);
    }
    false
}

/// The setting as it is to be run, or why it is not.
fn adapted<'a>(
    setting: Settings<'a>,
    needs: Needs,
    is_real: bool,
    only: Option<&'a str>,
) -> Result<Vec<(&'a str, &'a str)>, String> {
    let mut adapted = setting.to_vec();
    if only.is_some() {
        adapted.retain(|pair| *pair != READS_PAGEABLE);
    }
    if (is_real || only.is_some()) && adapted.iter().any(|(variable, _)| variable.starts_with("FAKE_CUDA_")) {
        return Err("it is for the stand-in, and what a GPU runs is run".to_owned());
    }
    let Some(only) = only else { return Ok(adapted) };
    if !needs.has(only) {
        return Err(format!("the test needs another access mode than {only}: {needs:?}"));
    }
    let modes = [AccessChoice::Ats, AccessChoice::Registered, AccessChoice::Staged].map(AccessChoice::name);
    match adapted.iter().find(|(variable, _)| *variable == ACCESS) {
        Some((_, mode)) if *mode != only && modes.contains(mode) => {
            return Err(format!("access mode {only} is run"));
        }
        Some(_) => {}
        None => adapted.push((ACCESS, only)),
    }
    Ok(adapted)
}

/// Prints a line that is seen although the test succeeds: what is skipped is no secret.
pub fn say(line: &str) {
    // Not by the macros, whose output the harness keeps. Who has closed standard error does not want to know.
    let _ = writeln!(std::io::stderr(), "{line}").is_ok();
}

/// What was opened; `None`, and a line that says so, where there is no GPU and none is required.
///
/// # Panics
/// For every other error, and where `TIERPACK_REQUIRE_GPU` is set.
pub fn or_skip<T>(opened: &Result<T, GpuError>) -> Option<&T> {
    opened.as_ref().map_or_else(
        |error| {
            let is_missing = matches!(error, GpuError::NoDriver { .. } | GpuError::NoDevice);
            let may_be_missing = std::env::var_os("TIERPACK_REQUIRE_GPU").is_none();
            assert!(is_missing && may_be_missing, "{error}");
            say(&format!("skipped: no CUDA device: {error}"));
            None
        },
        Some,
    )
}

/// Runs the test `name` in a child; says whether it succeeded, and what it wrote.
///
/// # Panics
/// When the system starts no process.
pub fn child(name: &str, setting: Settings<'_>) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).stdin(Stdio::null());
    if std::env::var_os(DRIVER).is_none() {
        command.env(DRIVER, stand_in());
    }
    let defaults = [("FAKE_CUDA_LEAKS", "1")];
    let output = command.env(CHILD, "1").envs(defaults).envs(setting.iter().copied()).output();
    let output = output.expect("run this program");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The calls that a child has made of the stand-in.
#[derive(Debug)]
pub struct Trace(tempfile::NamedTempFile);

impl Trace {
    /// A trace for a child, whose `FAKE_CUDA_TRACE` is its path.
    ///
    /// # Panics
    /// When there is no room for a file.
    #[expect(clippy::new_without_default, reason = "it makes a file")]
    pub fn new() -> Self {
        Self(tempfile::NamedTempFile::new().expect("a temporary file"))
    }

    /// Its file.
    ///
    /// # Panics
    /// When the temporary folder's name is no text.
    pub fn path(&self) -> &str {
        self.0.path().to_str().expect("a path of a test")
    }

    /// In a child: how often it has called this function so far.
    ///
    /// # Panics
    /// When the child was started without a trace.
    pub fn count(call: &str) -> usize {
        let path = std::env::var_os("FAKE_CUDA_TRACE").expect("a child with a trace");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter(|line| line.split(' ').next() == Some(call)).count()
    }
}

/// Late, at once, and in between, with the GPU's lanes in each order.
pub const MODES: &[Settings<'static>] = &[
    &[],
    &[("FAKE_CUDA_MODE", "sync"), ("FAKE_CUDA_ORDER", "1")],
    &[("FAKE_CUDA_ORDER", "2")],
    &[("FAKE_CUDA_MODE", "random"), ("FAKE_CUDA_SEED", "3")],
    &[("FAKE_CUDA_MODE", "worker")],
];

/// Every way in which a GPU may read the pool.
pub const ACCESSES: &[Settings<'static>] =
    &[&[(ACCESS, "registered")], &[(ACCESS, "staged")], &[(ACCESS, "ats"), READS_PAGEABLE]];

/// A dtype that the codec knows, and words that it shortens in it.
pub fn words_for(codec: CodecId, len: usize, version: u16) -> (Dtype, Vec<u8>) {
    let mut bytes = vec![0; len];
    match codec {
        CodecId::Planes4 | CodecId::Planes3 | CodecId::Planes222 => {
            let mut random = Random::new(u64::from(version) + 1);
            for (n, word) in bytes.chunks_exact_mut(2).enumerate() {
                let any = random.next_u64();
                // bf16: exponents that differ little, and every 64th any bits.
                let exponent = 126 - u64::from(random.next_u64().trailing_zeros() % 8);
                let value = if n % 64 == 0 { any } else { any & !0x7F80 | exponent << 7 };
                word.copy_from_slice(&value.to_le_bytes()[..2]);
            }
            (Dtype::Bf16, bytes)
        }
        CodecId::Sparse => {
            let mut random = Random::new(u64::from(version) + 1);
            for word in bytes.chunks_exact_mut(4).step_by(9) {
                word.copy_from_slice(&random.next_u64().to_le_bytes()[..4]);
            }
            (Dtype::F32, bytes)
        }
        _ => {
            Words::Compressible.fill(&mut bytes, 7, version, 0);
            (Dtype::U64, bytes)
        }
    }
}

/// Puts a tensor of that codec, and opens it; its bytes are those of [`words_for`].
///
/// # Panics
/// When it cannot be put.
pub fn put_with(client: &Client, name: &str, codec: CodecId, rows: u64, row_bytes: u64) -> (Handle, Vec<u8>) {
    let len = usize::try_from(rows * row_bytes).expect("a tensor of a test");
    let (dtype, bytes) = words_for(codec, len, 1);
    let options = PutOptions::new().codec(CodecChoice::Only(codec)).overwrite(true);
    let shape = [rows, row_bytes * 8 / u64::from(dtype.bits())];
    client.put_with(name, dtype, &shape, &mut &bytes[..], &options).expect("put a tensor");
    (client.open(name).expect("it was put"), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings that are left of `settings`, as `variable=value`.
    fn left(settings: &[Settings<'_>], needs: Needs, is_real: bool, only: Option<&str>) -> Vec<String> {
        let run = settings.iter().filter_map(|setting| adapted(setting, needs, is_real, only).ok());
        run.map(|setting| setting.iter().map(|(name, value)| format!("{name}={value} ")).collect()).collect()
    }

    #[test]
    fn one_access_mode_runs_what_a_gpu_with_it_runs() {
        for is_real in [false, true] {
            for mode in ["ats", "registered", "staged"] {
                let wanted = [format!("TIERPACK_DEVICE_ACCESS={mode} ")];
                assert_eq!(left(ACCESSES, Needs::Nothing, is_real, Some(mode)), wanted);
                assert_eq!(left(MODES, Needs::Nothing, is_real, Some(mode)), wanted);
                assert_eq!(
                    left(MODES, Needs::InPlace, is_real, Some(mode)).len(),
                    usize::from(mode != "staged")
                );
                let runs = usize::from(mode == "registered");
                assert_eq!(left(MODES, Needs::Registered, is_real, Some(mode)).len(), runs);
            }
        }
        let refused: Settings<'_> = &[(ACCESS, "ats"), ("FAKE_CUDA_ATTR_88", "0")];
        assert!(left(&[refused], Needs::Nothing, false, Some("ats")).is_empty());
        assert_eq!(left(&[&[(ACCESS, "fast")]], Needs::Nothing, false, Some("ats")).len(), 1);
    }

    #[test]
    fn without_a_mode_only_the_driver_decides() {
        assert_eq!(left(ACCESSES, Needs::Nothing, false, None).len(), 3);
        assert_eq!(left(MODES, Needs::InPlace, false, None).len(), MODES.len());
        assert_eq!(left(ACCESSES, Needs::Nothing, true, None).len(), 2);
        assert_eq!(left(MODES, Needs::Registered, true, None), [""]);
    }
}
