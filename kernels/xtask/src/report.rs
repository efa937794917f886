//! What the assembler says about the kernels: registers, stack, shared memory, spills.

use anyhow::{Context, Result, ensure};

/// One kernel on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Usage {
    pub(crate) kernel: String,
    pub(crate) arch: u32,
    pub(crate) registers: u32,
    pub(crate) stack_bytes: u32,
    /// Static shared memory.
    pub(crate) shared_bytes: u32,
    pub(crate) spill_bytes: u32,
}

/// Reads the log of one compilation.
///
/// # Errors
/// A kernel whose lines are not there, or a number that is none.
pub(crate) fn usages(log: &str) -> Result<Vec<Usage>> {
    let mut found: Vec<Usage> = Vec::new();
    // The kernel that the next lines are about; functions that are no kernels have lines too.
    let mut current: Option<Usage> = None;
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let (kernel, rest) = rest.split_once('\'').context("a kernel's name has no end")?;
            let arch = rest.split('\'').nth(1).and_then(|arch| arch.strip_prefix("sm_"));
            let arch = arch.context("an architecture is no sm_")?.parse()?;
            current = Some(Usage { kernel: kernel.to_owned(), arch, ..Usage::default() });
        } else if let Some(usage) = &mut current {
            if line.contains("bytes stack frame") {
                usage.stack_bytes += number_before(line, "bytes stack frame")?;
                usage.spill_bytes += number_before(line, "bytes spill stores")?;
                usage.spill_bytes += number_before(line, "bytes spill loads")?;
            } else if line.contains("registers") {
                usage.registers = number_before(line, "registers")?;
                if line.contains("bytes smem") {
                    usage.shared_bytes = number_before(line, "bytes smem")?;
                }
                found.extend(current.take());
            }
        }
    }
    let announced = log.matches("Compiling entry function").count();
    ensure!(found.len() == announced, "{announced} kernels were compiled, and {} have numbers", found.len());
    Ok(found)
}

/// The number that is before some words.
fn number_before(line: &str, words: &str) -> Result<u32> {
    let before = line.split(words).next().unwrap_or_default().trim_end();
    let number = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    number.parse().with_context(|| format!("no number before `{words}` in `{line}`"))
}

/// Warnings of the assembler.
pub(crate) fn warnings(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| line.contains("ptxas") && line.contains("warning"))
}

/// The committed table: one line per kernel and architecture, sorted.
pub(crate) fn table(usages: &[Usage]) -> String {
    let mut sorted: Vec<_> = usages.iter().collect();
    sorted.sort();
    let width = sorted.iter().map(|usage| usage.kernel.len()).max().unwrap_or(0).max("kernel".len());
    let mut table =
        String::from("# What the assembler of NVRTC says; written by `cargo run -p xtask -- gen`.\n");
    let row = |kernel: &str, rest: [&str; 5]| {
        let [arch, registers, stack, shared, spills] = rest;
        format!("{kernel:width$}  {arch:6}  {registers:>9}  {stack:>5}  {shared:>6}  {spills:>6}\n")
    };
    table += &row("kernel", ["arch", "registers", "stack", "shared", "spills"]);
    for usage in sorted {
        let Usage { kernel, arch, registers, stack_bytes, shared_bytes, spill_bytes } = usage;
        let numbers = [registers, stack_bytes, shared_bytes, spill_bytes].map(u32::to_string);
        let [registers, stack, shared, spills] = numbers.each_ref().map(String::as_str);
        table += &row(kernel, [&format!("sm_{arch}"), registers, stack, shared, spills]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas info    : Function properties for b
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 16 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 3.141 ms
ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers, 384 bytes cmem[0]
";

    #[test]
    fn the_log_is_read() {
        let found = usages(LOG).unwrap();
        let b = Usage {
            kernel: "b".to_owned(),
            arch: 90,
            registers: 32,
            stack_bytes: 16,
            shared_bytes: 128,
            spill_bytes: 20,
        };
        let a = Usage { kernel: "a".to_owned(), arch: 90, registers: 18, ..Usage::default() };
        assert_eq!(found, [b, a]);
        let table = table(&found);
        let lines: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "a       sm_90          18      0       0       0",
                "b       sm_90          32     16     128      20"
            ]
        );
        assert!(!table.contains("3.141"));
    }

    #[test]
    fn a_kernel_without_numbers_is_an_error() {
        let cut = LOG.split("ptxas info    : Used 18").next().unwrap();
        assert!(usages(cut).is_err());
        assert!(usages("Compiling entry function 'b' for 'sm_90'\nUsed many registers").is_err());
    }

    #[test]
    fn warnings_are_found() {
        let warning = "ptxas warning : Registers are spilled to local memory in function 'b'";
        assert_eq!(warnings(&format!("{LOG}{warning}\n")).collect::<Vec<_>>(), [warning]);
        assert_eq!(warnings(LOG).count(), 0);
    }
}
