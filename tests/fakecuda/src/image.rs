//! Images of modules: which kernels a PTX text or a cubin has, and the sizes of their parameters.
//!
//! Source for cubins: the sections that `readelf` shows, `.text.KERNEL` and `.nv.info.KERNEL`.

use crate::code::Code;
use crate::raw;

/// A kernel in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Sizes of its parameters in bytes.
    pub(crate) sizes: Vec<u32>,
}

/// The PTX version that a driver for CUDA 13.0 reads.
const PTX_VERSION: (u32, u32) = (9, 0);
const ELF: &[u8; 4] = b"\x7fELF";

/// The kernels of the image at an address of the caller, for a device of this compute capability.
pub(crate) fn at(address: u64, capability: (u32, u32)) -> Result<Vec<Entry>, Code> {
    if raw::read(address, 1) == ELF[..1] && raw::read(address, ELF.len()) == ELF {
        let head = raw::read(address, HEADER);
        let sections = Sections::of(&head).ok_or(Code::INVALID_IMAGE)?;
        let table = raw::read(address, sections.table_end().ok_or(Code::INVALID_IMAGE)?);
        let image = raw::read(address, sections.image_end(&table).ok_or(Code::INVALID_IMAGE)?);
        return cubin(&image, capability);
    }
    let text = String::from_utf8(raw::text(address)).map_err(|_| Code::INVALID_IMAGE)?;
    ptx(&text, capability)
}

/// The kernels of an image in memory of ours.
pub(crate) fn of(mut bytes: Vec<u8>, capability: (u32, u32)) -> Result<Vec<Entry>, Code> {
    if bytes.starts_with(ELF) {
        return cubin(&bytes, capability);
    }
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    ptx(&String::from_utf8(bytes).map_err(|_| Code::INVALID_IMAGE)?, capability)
}

fn ptx(text: &str, capability: (u32, u32)) -> Result<Vec<Entry>, Code> {
    let after = |word: &str| text.split(word).nth(1)?.split_whitespace().next();
    let (major, minor) =
        after(".version ").and_then(|text| text.split_once('.')).ok_or(Code::INVALID_IMAGE)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| Code::INVALID_IMAGE);
    if (number(major)?, number(minor)?) > PTX_VERSION {
        return Err(Code::UNSUPPORTED_PTX_VERSION);
    }
    let target = after(".target ").and_then(|text| text.strip_prefix("sm_")).ok_or(Code::INVALID_IMAGE)?;
    let target = number(target.trim_end_matches(','))?;
    if (target / 10, target % 10) > capability {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    text.split(".entry ").skip(1).map(|text| entry(text).ok_or(Code::INVALID_IMAGE)).collect()
}

/// The kernel whose declaration starts there.
fn entry(text: &str) -> Option<Entry> {
    let name = text.split(['(', ' ', '\n']).next()?.to_owned();
    let head = text.split(')').next()?;
    let sizes = head.lines().filter(|line| line.contains(".param")).map(param).collect::<Option<_>>()?;
    Some(Entry { name, sizes })
}

/// The size of `.param .u64 name` or `.param .align 8 .b8 name[64]`.
fn param(line: &str) -> Option<u32> {
    if let Some((_, array)) = line.split_once('[') {
        return array.split(']').next()?.parse().ok();
    }
    let kind = line.split('.').nth(2)?.split_whitespace().next()?;
    let bits: u32 = kind.trim_start_matches(['u', 's', 'b', 'f']).parse().ok()?;
    Some(bits / 8)
}

const HEADER: usize = 64;
const SECTION: usize = 64;
/// From this version of the ABI on, the flags have the architecture one byte further.
const ABI_WITH_ARCH_IN_SECOND_BYTE: u8 = 8;
/// A section without bytes in the file.
const NO_BITS: u64 = 8;
/// Records of `.nv.info`: this format has a length and bytes, and this attribute is a parameter.
const SIZED: u8 = 4;
const KERNEL_PARAMETER: u8 = 0x17;

/// `len` bytes at `at`, as a number.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn offset(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    usize::try_from(number(bytes, at, len)?).ok()
}

/// Where the table of sections is.
struct Sections {
    start: usize,
    count: usize,
    names: usize,
}

struct Section<'a> {
    name: &'a str,
    bytes: &'a [u8],
}

impl Sections {
    fn of(head: &[u8]) -> Option<Self> {
        Some(Self {
            start: offset(head, 0x28, 8)?,
            count: offset(head, 0x3C, 2)?,
            names: offset(head, 0x3E, 2)?,
        })
    }

    fn table_end(&self) -> Option<usize> {
        self.start.checked_add(self.count * SECTION)
    }

    /// Start and length in the file.
    fn place(&self, image: &[u8], idx: usize) -> Option<(usize, usize)> {
        let head = self.start + idx * SECTION;
        let len = if number(image, head + 4, 4)? == NO_BITS { 0 } else { offset(image, head + 0x20, 8)? };
        Some((offset(image, head + 0x18, 8)?, len))
    }

    fn image_end(&self, table: &[u8]) -> Option<usize> {
        let mut end = self.table_end()?;
        for idx in 0..self.count {
            let (start, len) = self.place(table, idx)?;
            end = end.max(start.checked_add(len)?);
        }
        Some(end)
    }

    fn section<'a>(&self, image: &'a [u8], idx: usize) -> Option<Section<'a>> {
        let (names, _) = self.place(image, self.names)?;
        let name = image.get(names + offset(image, self.start + idx * SECTION, 4)?..)?;
        let name = std::str::from_utf8(name.split(|byte| *byte == 0).next()?).ok()?;
        let (start, len) = self.place(image, idx)?;
        Some(Section { name, bytes: image.get(start..start.checked_add(len)?)? })
    }
}

fn cubin(image: &[u8], capability: (u32, u32)) -> Result<Vec<Entry>, Code> {
    let arch = arch(image).ok_or(Code::INVALID_IMAGE)?;
    if arch.0 != capability.0 || arch.1 > capability.1 {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    entries(image).ok_or(Code::INVALID_IMAGE)
}

/// The compute capability that it was built for.
fn arch(image: &[u8]) -> Option<(u32, u32)> {
    let at = if *image.get(8)? >= ABI_WITH_ARCH_IN_SECOND_BYTE { 0x31 } else { 0x30 };
    let arch = u32::from(*image.get(at)?);
    Some((arch / 10, arch % 10))
}

fn entries(image: &[u8]) -> Option<Vec<Entry>> {
    let sections = Sections::of(image)?;
    let all = (0..sections.count).map(|idx| sections.section(image, idx)).collect::<Option<Vec<_>>>()?;
    let kernels = all.iter().filter_map(|section| section.name.strip_prefix(".text."));
    kernels
        .map(|name| {
            let wanted = format!(".nv.info.{name}");
            let info = all.iter().find(|section| section.name == wanted);
            let sizes = params(info.map_or(&[], |section| section.bytes))?;
            Some(Entry { name: name.to_owned(), sizes })
        })
        .collect()
}

/// Sizes of parameters, from records that are in any order.
fn params(info: &[u8]) -> Option<Vec<u32>> {
    let (mut at, mut found) = (0, Vec::new());
    while at < info.len() {
        let (format, attribute) = (*info.get(at)?, *info.get(at + 1)?);
        let len = if format == SIZED { offset(info, at + 2, 2)? } else { 0 };
        if (format, attribute) == (SIZED, KERNEL_PARAMETER) {
            // Its number at 4, its offset at 6, and its size in the upper bits of the last word.
            let size = u32::try_from(number(info, at + 12, 4)? >> 18).ok()?;
            found.push((number(info, at + 8, 2)?, size));
        }
        at += 4 + len;
    }
    found.sort_unstable();
    Some(found.into_iter().map(|(_, size)| size).collect())
}
