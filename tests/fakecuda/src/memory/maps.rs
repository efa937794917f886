//! The mappings of this process: `/proc/self/maps`.

use std::fs;

/// What a line says: which bytes of which file are mapped there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    start: u64,
    end: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// File and, for bytes of a file, where address 0 would be in it: equal for neighbors of one mapping.
    identity: (String, u64, u64),
}

fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let rights = fields.next()?;
    let offset = hex(fields.next()?)?;
    let (device, inode) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?);
    let origin = if inode == 0 { 0 } else { offset.wrapping_sub(start) };
    let (readable, writable) = (rights.starts_with('r'), rights[1..].starts_with('w'));
    Some(Mapping { start, end, readable, writable, identity: (device, inode, origin) })
}

/// The mappings that cover the range, cut to it; `None` if a byte of it is not mapped.
pub(crate) fn covering(start: u64, end: u64) -> Option<Vec<Mapping>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mut covered: Vec<Mapping> = Vec::new();
    let mut at = start;
    for mapping in maps.lines().filter_map(parse).filter(|mapping| mapping.end > start) {
        if at >= end || mapping.start > at {
            break;
        }
        let piece = Mapping { start: at, end: mapping.end.min(end), ..mapping };
        at = piece.end;
        match covered.last_mut() {
            Some(last) if last.identity == piece.identity && last.writable == piece.writable => last.end = at,
            _ => covered.push(piece),
        }
    }
    (at >= end).then_some(covered)
}

/// Whether the same bytes of the same files are still there.
pub(crate) fn same(then: &[Mapping], now: &[Mapping]) -> bool {
    let identities = |maps: &[Mapping]| -> Vec<_> {
        let mut found: Vec<_> = maps.iter().map(|mapping| mapping.identity.clone()).collect();
        found.dedup();
        found
    };
    identities(then) == identities(now)
}
