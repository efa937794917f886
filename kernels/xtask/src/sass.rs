//! Disassembled cubins: local memory that must not be, and instructions that are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::loops::{self, Flow, Loop};

/// Opcodes that move bytes.
const MEMORY: [&str; 10] = ["LDG", "LD", "LDS", "LDGSTS", "STG", "ST", "STS", "ATOMS", "ATOMG", "REDG"];

/// The program that prints a cubin's instructions.
#[derive(Debug)]
pub(crate) struct Disassembler {
    program: PathBuf,
    arguments: &'static [&'static str],
}

impl Disassembler {
    /// Looks next to the libraries of the compiler, then on the path.
    pub(crate) fn find(toolkit: Option<&Path>) -> Option<Self> {
        let beside = toolkit.map(|lib| lib.join("../bin"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = beside.into_iter().chain(std::env::split_paths(&path)).collect();
        [("nvdisasm", &["-c"][..]), ("cuobjdump", &["--dump-sass"])].into_iter().find_map(
            |(name, arguments)| {
                let program = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())?;
                Some(Self { program, arguments })
            },
        )
    }

    /// The text of one cubin.
    pub(crate) fn dump(&self, cubin: &Path) -> Result<String> {
        let program = self.program.display();
        let output = Command::new(&self.program).args(self.arguments).arg(cubin).output();
        let output = output.with_context(|| format!("run {program}"))?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} {}: {error}", cubin.display());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Instruction {
    at: u32,
    /// The opcode with its modifiers: `LDG.E.128`.
    opcode: String,
    /// Where a branch goes to.
    target: Option<Target>,
    /// The next instruction may follow.
    goes_on: bool,
}

/// As the two disassemblers name it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    At(u32),
    Label(String),
}

/// One kernel's instructions.
#[derive(Debug, Default)]
struct Kernel {
    name: String,
    code: Vec<Instruction>,
    labels: BTreeMap<String, u32>,
}

/// Reads what `nvdisasm -c` or `cuobjdump --dump-sass` print.
fn parse(text: &str) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut labels = Vec::new();
    for line in text.lines().map(str::trim) {
        let section = line
            .strip_prefix(".section")
            .map(str::trim_start)
            .and_then(|line| line.strip_prefix(".text.")?.split(',').next());
        if let Some(name) = section.or_else(|| line.strip_prefix("Function : ")) {
            kernels.push(Kernel { name: name.trim_matches('"').to_owned(), ..Kernel::default() });
        } else if let Some(label) = line.strip_suffix(':').filter(|line| line.starts_with(".L")) {
            labels.push(label.to_owned());
        } else if let (Some(kernel), Some(instruction)) = (kernels.last_mut(), instruction(line)) {
            kernel.labels.extend(labels.drain(..).map(|label| (label, instruction.at)));
            kernel.code.push(instruction);
        }
    }
    kernels.retain(|kernel| !kernel.code.is_empty());
    kernels
}

/// `/*0010*/  @!P0 BRA 0x120 ;`, or with a label instead of the address.
fn instruction(line: &str) -> Option<Instruction> {
    let (at, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let at = u32::from_str_radix(at, 16).ok()?;
    let code = rest.split(';').next()?.trim();
    let is_conditional = code.starts_with('@');
    let mut words = code.split_whitespace().filter(|word| !word.starts_with(['@', '{']));
    let opcode = words.next()?.to_owned();
    let operands: Vec<_> = words.collect();
    let last = operands.last().copied().unwrap_or_default();
    let label = last.trim_matches(|c| "`()".contains(c));
    let target = match last.strip_prefix("0x") {
        _ if !opcode.starts_with("BRA") => None,
        Some(number) => u32::from_str_radix(number, 16).ok().map(Target::At),
        None => label.starts_with(".L").then(|| Target::Label(label.to_owned())),
    };
    let ends = opcode == "EXIT" || opcode == "BRA" && operands.len() == 1;
    let goes_on = is_conditional || !ends;
    opcode.starts_with(|c: char| c.is_ascii_uppercase()).then_some(Instruction {
        at,
        opcode,
        target,
        goes_on,
    })
}

impl Kernel {
    fn loops(&self) -> Vec<Loop> {
        let index_of = |at: u32| self.code.binary_search_by_key(&at, |instruction| instruction.at).ok();
        let flow = |instruction: &Instruction| {
            let to = match &instruction.target {
                Some(Target::At(at)) => index_of(*at),
                Some(Target::Label(label)) => self.labels.get(label).and_then(|&at| index_of(at)),
                None => None,
            };
            match to {
                Some(to) => Flow::Branch { to, perhaps: instruction.goes_on },
                None if instruction.goes_on => Flow::Next,
                None => Flow::End,
            }
        };
        loops::loops(&self.code.iter().map(flow).collect::<Vec<_>>())
    }

    /// Instructions of these, by the first part of their opcode.
    fn opcodes<'a>(code: impl Iterator<Item = &'a Instruction>) -> BTreeMap<&'a str, usize> {
        let mut counts = BTreeMap::new();
        for instruction in code {
            *counts.entry(instruction.opcode.split('.').next().unwrap_or_default()).or_default() += 1;
        }
        counts
    }

    /// Instructions without the filling behind the end.
    fn len(&self) -> usize {
        self.code.iter().filter(|instruction| instruction.opcode != "NOP").count()
    }
}

/// Instructions that use local memory, each with its kernel.
pub(crate) fn local_memory(text: &str) -> Vec<String> {
    let is_local = |opcode: &str| ["LDL", "STL"].contains(&opcode.split('.').next().unwrap_or_default());
    let mut found = Vec::new();
    for kernel in parse(text) {
        let local = kernel.code.iter().filter(|instruction| is_local(&instruction.opcode));
        found.extend(
            local.map(|one| format!("{} uses local memory: {} at {:#x}", kernel.name, one.opcode, one.at)),
        );
    }
    found
}

/// Prints instructions per kernel and loop.
pub(crate) fn print(
    cubins: &[PathBuf],
    only: Option<&str>,
    toolkit: Option<&Path>,
    out: &mut dyn Write,
) -> Result<()> {
    let Some(disassembler) = Disassembler::find(toolkit) else {
        bail!("neither nvdisasm nor cuobjdump is found\n{}", crate::nvrtc::HELP);
    };
    for cubin in cubins {
        let mut kernels = parse(&disassembler.dump(cubin)?);
        kernels.sort_by(|a, b| a.name.cmp(&b.name));
        for kernel in kernels.iter().filter(|kernel| only.is_none_or(|only| kernel.name.contains(only))) {
            print_kernel(kernel, only.is_some(), out)?;
        }
    }
    Ok(())
}

fn print_kernel(kernel: &Kernel, opcodes: bool, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{}: {} instructions", kernel.name, kernel.len())?;
    let loops = kernel.loops();
    for Loop { body, depth } in &loops {
        let is_inner = |other: &&Loop| other.depth > *depth && body.contains(&other.body[0]);
        let inner: BTreeSet<_> = loops.iter().filter(is_inner).flat_map(|inner| &inner.body).collect();
        let own = body.iter().filter(|at| !inner.contains(at));
        let counts = Kernel::opcodes(body.iter().map(|&at| &kernel.code[at]));
        let memory: Vec<_> =
            MEMORY.iter().filter_map(|opcode| Some(format!("{opcode} {}", counts.get(opcode)?))).collect();
        let (indent, at, own) = (2 + 2 * depth, kernel.code[body[0]].at, own.count());
        let (all, memory) = (body.len(), memory.join(", "));
        writeln!(
            out,
            "{:indent$}loop at {at:#06x}: {all} instructions, {own} in no inner loop; {memory}",
            ""
        )?;
    }
    if opcodes {
        for (opcode, n) in Kernel::opcodes(kernel.code.iter()) {
            writeln!(out, "  {opcode:8} {n:5}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUOBJDUMP: &str = "
\tcode for sm_90
\t\tFunction : f
\t.headerflags\t@\"EF_CUDA_SM90\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;    /* 0x00000a00ff017b82 */
                                                             /* 0x000fe20000000800 */
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   IADD3 R0, R0, 0x1, RZ ;
        /*0030*/              @!P0 BRA 0x20 ;
        /*0040*/               @P1 BRA 0x10 ;
        /*0050*/                   EXIT ;
        /*0060*/                   BRA 0x60;
        /*0070*/                   NOP;
";

    const NVDISASM: &str = "
//--------------------- .text.f --------------------------
\t.section\t.text.f,\"ax\",@progbits
.text.f:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
.L_x_0:
        /*0020*/                   IADD3 R0, R0, 0x1, RZ ;
        /*0030*/              @!P0 BRA `(.L_x_0) ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
        /*0070*/                   NOP;
.L_x_3:
";

    #[test]
    fn loops_are_counted_in_either_text() {
        for text in [CUOBJDUMP, NVDISASM] {
            let kernels = parse(text);
            assert_eq!(kernels.len(), 1, "{text}");
            assert_eq!((kernels[0].name.as_str(), kernels[0].len()), ("f", 7));
            let outer = Loop { body: vec![1, 2, 3, 4], depth: 0 };
            let inner = Loop { body: vec![2, 3], depth: 1 };
            assert_eq!(kernels[0].loops(), [outer, inner]);
            assert_eq!(Kernel::opcodes(kernels[0].code.iter())["BRA"], 3);
            let mut printed = Vec::new();
            print_kernel(&kernels[0], false, &mut printed).unwrap();
            let printed = String::from_utf8(printed).unwrap();
            let expected = "f: 7 instructions\n\
                \x20 loop at 0x0010: 4 instructions, 2 in no inner loop; LDG 1\n\
                \x20   loop at 0x0020: 2 instructions, 2 in no inner loop; \n";
            assert_eq!(printed, expected);
        }
    }

    #[test]
    fn local_memory_is_found_in_either_text() {
        for text in [CUOBJDUMP, NVDISASM] {
            assert_eq!(local_memory(text), [""; 0]);
            let planted = text.replace("LDG.E.128 R4, desc[UR4][R2.64]", "STL.64 [R1], R2");
            assert_eq!(local_memory(&planted), ["f uses local memory: STL.64 at 0x10"]);
            let planted = text.replace("IADD3 R0", "@P0 LDL R0, [R1+0x8], R0");
            assert_eq!(local_memory(&planted), ["f uses local memory: LDL at 0x20"]);
        }
    }
}
