//! Metadata as kernels read them: masks with the plans of their deposits, tables, bases, as bytes of device memory.
//!
//! A GPU has no `pdep`.
//! Its kernels move packed bits to their places by at most six steps of shift and select, whose masks are worked
//! out here once per generation; where the kept bits of every chunk are one run at the same place, a plain shift
//! does, and there are no steps.
//! What a row repeats is here once more behind it, as much as a record may have, so that a kernel looks up a
//! record's first column once and goes on from there.
//! The same structs are in `kernels/cuda/shared.h`.

use tierpack_shm::types::index;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::bits::low;
use crate::coder::{Coder, Form, GROUP_BYTES, Group, Ibp};
use crate::cut::RECORD_ELEMS;
use crate::planes::Planes;
use crate::sparse::{MAX_DICTIONARY, Sparse};
use crate::window::Bases;

/// [`IbpForm::shift`]: the kept bits are not one run at the same place in every chunk.
pub const NO_SHIFT: u32 = u32::MAX;

/// What a form's arrays start at a multiple of, and what it ends with at least so many zeros of.
const UNIT: usize = 64;

/// Steps of a deposit into 64 bits.
const STEPS: usize = 6;

/// `ibp` and `ibp:window`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IbpForm {
    /// The one base, in every word of the 8 bytes; 0 without.
    pub base: u64,
    /// Bits of an element.
    pub elem_bits: u32,
    /// Bytes of a word of the window: 1, 2, 4 or 8.
    pub word_bytes: u32,
    /// Whether words were rotated.
    pub rotate: u32,
    /// Bytes of the bases before they repeat; 0 where there is none per column.
    pub bases_len: u32,
    /// Where the bases start, from the form.
    pub bases_at: u32,
    /// 2, 4 or 8.
    pub chunk_bytes: u32,
    /// Groups of 8 bytes before they repeat.
    pub period: u32,
    /// Where the kept bits of each chunk start, if they are one run there; else [`NO_SHIFT`].
    pub shift: u32,
    /// Where the groups start, from the form: 8 bytes of kept bits, 8 of values of the others, each.
    pub groups_at: u32,
    /// Where the steps of the groups start, from the form: 6 words of 8 bytes each; 0 where
    /// [`IbpForm::shift`] does.
    pub steps_at: u32,
    /// 0.
    pub reserved: [u32; 4],
}

/// `planes:4`, `planes:3` and `planes:2-2-2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct PlanesForm {
    /// The dropped bits, at their place.
    pub dropped_value: u64,
    /// Bits of a word.
    pub elem_bits: u32,
    /// Bits of an exponent.
    pub exponent_bits: u32,
    /// Planes of one byte per element.
    pub byte_planes: u32,
    /// Planes of one bit per element.
    pub bit_planes: u32,
    /// The first dropped bit.
    pub dropped_first: u32,
    /// Dropped bits.
    pub dropped_bits: u32,
    /// Columns of the bases before they repeat; 0 without bases.
    pub columns: u32,
    /// Where the bases start, from the form: 1 byte each, 2 where exponents have more than 8 bits.
    pub bases_at: u32,
    /// The low bytes of the exponents by their rank.
    pub low: [u8; 16],
    /// The high bytes.
    pub high: [u8; 16],
    /// 0.
    pub reserved: [u32; 2],
}

/// `sparse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SparseForm {
    /// The common word, in every word of the 8 bytes.
    pub common: u64,
    /// Bits of an element.
    pub elem_bits: u32,
    /// Bytes of a word: 1, 2, 4 or 8.
    pub word_bytes: u32,
    /// Words of a group: 8, 16, 32 or 64.
    pub group_elems: u32,
    /// Bits of an index.
    pub index_bits: u32,
    /// Where the 256 words of 8 bytes of the dictionary start, from the form; 0 without.
    pub dictionary_at: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<IbpForm>() == 64);
    assert!(size_of::<PlanesForm>() == 80);
    assert!(size_of::<SparseForm>() == 32);
};

/// The form of these metadata: what is in device memory at an address that is a multiple of 16.
///
/// Its length is a multiple of 64 bytes, and at most 704 KiB.
#[must_use]
pub fn device_form(coder: &Coder) -> Vec<u8> {
    let elem_bits = coder.geometry().dtype().bits();
    match coder.form() {
        Form::Ibp(ibp) => ibp_form(ibp, elem_bits),
        Form::Planes(planes) => planes_form(planes),
        Form::Sparse(sparse) => sparse_form(sparse, elem_bits),
    }
}

fn ibp_form(ibp: &Ibp, elem_bits: u32) -> Vec<u8> {
    let mut blob = Blob::new(size_of::<IbpForm>());
    let shift = common_shift(&ibp.groups, ibp.chunk_bytes);
    let groups_at = blob.push(ibp.groups.iter().flat_map(|group| [!group.mask, group.bitval]));
    let steps_at = match shift {
        Some(_) => 0,
        None => blob.push(ibp.groups.iter().flat_map(|group| deposit_steps(!group.mask, ibp.chunk_bytes))),
    };
    let record_bytes = index(RECORD_ELEMS * u64::from(elem_bits) / 8);
    let (base, bases_len, bases_at) = match &ibp.window.bases {
        Bases::Zero => (0, 0, 0),
        Bases::One(base) => (repeated(*base, ibp.window.word_bytes), 0, 0),
        Bases::Columns(bases) => {
            let len = bases.len() + record_bytes + UNIT;
            (0, bases.len(), blob.push_bytes(bases.iter().copied().cycle().take(len)))
        }
    };
    let head = IbpForm {
        base,
        elem_bits,
        word_bytes: small(ibp.window.word_bytes),
        rotate: u32::from(ibp.window.rotate),
        bases_len: small(bases_len),
        bases_at,
        chunk_bytes: small(ibp.chunk_bytes),
        period: small(ibp.period),
        shift: shift.unwrap_or(NO_SHIFT),
        groups_at,
        steps_at,
        reserved: [0; 4],
    };
    blob.finish(head.as_bytes())
}

fn planes_form(planes: &Planes) -> Vec<u8> {
    let mut blob = Blob::new(size_of::<PlanesForm>());
    let wide = planes.parts.exponent_bits > 8;
    let bases = planes.bases.as_deref().unwrap_or(&[]);
    let len = if bases.is_empty() { 0 } else { bases.len() + index(RECORD_ELEMS) + UNIT };
    let bases_at = blob.push_bytes(
        bases
            .iter()
            .cycle()
            .take(len)
            .flat_map(|base| base.to_le_bytes().into_iter().take(1 + usize::from(wide))),
    );
    let n_codes = planes.schedule.n_codes();
    let byte = |byte: usize| {
        std::array::from_fn(|rank| if rank < n_codes { planes.table[rank].to_le_bytes()[byte] } else { 0 })
    };
    let head = PlanesForm {
        dropped_value: planes.dropped.value << planes.dropped.first,
        elem_bits: planes.parts.word_bits,
        exponent_bits: planes.parts.exponent_bits,
        byte_planes: small(planes.shape.byte_planes),
        bit_planes: planes.shape.bit_planes,
        dropped_first: planes.dropped.first,
        dropped_bits: planes.dropped.bits,
        columns: small(bases.len()),
        bases_at,
        low: byte(0),
        high: byte(1),
        reserved: [0; 2],
    };
    blob.finish(head.as_bytes())
}

fn sparse_form(sparse: &Sparse, elem_bits: u32) -> Vec<u8> {
    let mut blob = Blob::new(size_of::<SparseForm>());
    let dictionary = sparse.dictionary.as_ref();
    let words = dictionary.map(|dictionary| (0..MAX_DICTIONARY as u64).map(|number| dictionary.word(number)));
    let dictionary_at = words.map_or(0, |words| blob.push(words));
    let head = SparseForm {
        common: repeated(sparse.common, sparse.word_bytes),
        elem_bits,
        word_bytes: small(sparse.word_bytes),
        group_elems: small(sparse.group_elems),
        index_bits: dictionary.map_or(0, |dictionary| dictionary.index_bits),
        dictionary_at,
        reserved: 0,
    };
    blob.finish(head.as_bytes())
}

/// Collects what follows the struct at the start of a form.
struct Blob(Vec<u8>);

impl Blob {
    fn new(head: usize) -> Self {
        Self(vec![0; head.next_multiple_of(UNIT)])
    }

    /// Adds words; returns where they start.
    fn push(&mut self, words: impl IntoIterator<Item = u64>) -> u32 {
        self.push_bytes(words.into_iter().flat_map(u64::to_le_bytes))
    }

    fn push_bytes(&mut self, bytes: impl IntoIterator<Item = u8>) -> u32 {
        let at = small(self.0.len());
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(UNIT), 0);
        at
    }

    fn finish(mut self, head: &[u8]) -> Vec<u8> {
        self.0[..head.len()].copy_from_slice(head);
        self.0.resize(self.0.len() + UNIT, 0);
        self.0
    }
}

fn small(value: usize) -> u32 {
    u32::try_from(value)
        .expect("metadata are at most MAX_METADATA_BYTES long, and a form less than four times that")
}

/// A word of some bytes, as often as it fits into 8.
fn repeated(word: u64, word_bytes: usize) -> u64 {
    (0..GROUP_BYTES / word_bytes).fold(0, |words, i| words | word << (8 * i * word_bytes))
}

/// Where the kept bits of every chunk start, if each chunk has one run of them and all start at the same place;
/// chunks that keep no bit fit any.
fn common_shift(groups: &[Group], chunk_bytes: usize) -> Option<u32> {
    let bits = small(8 * chunk_bytes);
    let mut shift = None;
    for group in groups {
        for chunk in 0..GROUP_BYTES / chunk_bytes {
            let kept = !group.mask >> (8 * chunk * chunk_bytes) & low(bits);
            if kept == 0 {
                continue;
            }
            let start = kept.trailing_zeros();
            let run = kept >> start;
            if run & run.wrapping_add(1) != 0 || *shift.get_or_insert(start) != start {
                return None;
            }
        }
    }
    Some(shift.unwrap_or(0))
}

/// The masks of the steps that deposit the low bits of every chunk of 8 bytes on the places that `kept` marks.
///
/// Step i, from the last to the first, takes for the bits that it marks those 2^i places below; what is not in
/// `kept` holds anything afterwards.
/// This is the "expand" of Hacker's Delight, 2nd edition, section 7-5, with each chunk as a word of its own.
fn deposit_steps(kept: u64, chunk_bytes: usize) -> [u64; STEPS] {
    let bits = small(8 * chunk_bytes);
    let mut steps = [0; STEPS];
    for chunk in 0..GROUP_BYTES / chunk_bytes {
        let at = 8 * chunk * chunk_bytes;
        let mut left = kept >> at & low(bits);
        // Marks each bit with a 0 of `kept` just below it.
        let mut below = !left << 1 & low(bits);
        for (i, step) in steps.iter_mut().enumerate().take(index(u64::from(bits.trailing_zeros()))) {
            // Bit b of `odd`: whether the count of zeros below b is odd, in units of 2^i.
            let odd = (0..bits.trailing_zeros()).fold(below, |odd, j| odd ^ odd << (1 << j)) & low(bits);
            let moved = odd & left;
            *step |= moved << at;
            left = left ^ moved | moved >> (1 << i);
            below &= !odd;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::extract;

    /// What the kernels do with [`deposit_steps`], and the plain shift: for the tests of both.
    fn deposit_by_steps(packed: u64, steps: &[u64; STEPS]) -> u64 {
        steps.iter().enumerate().rev().fold(packed, |word, (i, &step)| word & !step | word << (1 << i) & step)
    }

    /// The packed bits of each chunk, at the bottom of the chunk.
    fn packed_chunks(word: u64, kept: u64, chunk_bytes: usize) -> u64 {
        let bits = small(8 * chunk_bytes);
        (0..GROUP_BYTES / chunk_bytes).fold(0, |packed, chunk| {
            let at = 8 * chunk * chunk_bytes;
            packed | extract(word >> at & low(bits), kept >> at & low(bits)) << at
        })
    }

    #[test]
    fn steps_deposit_as_pdep_does() {
        let mut state = 1_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 29
        };
        for i in 0..3000 {
            let (word, kept) = match i % 4 {
                0 => (next(), next()),
                1 => (next(), next() & next() & next()),
                2 => (next(), next() | next() | next()),
                _ => (u64::MAX, low(u32::try_from(i % 65).expect("small")) << (i % 7)),
            };
            for chunk_bytes in [2, 4, 8] {
                let steps = deposit_steps(kept, chunk_bytes);
                let packed = packed_chunks(word, kept, chunk_bytes);
                assert_eq!(deposit_by_steps(packed, &steps) & kept, word & kept, "{kept:#x} {chunk_bytes}");
            }
        }
    }

    #[test]
    fn one_run_at_one_place_needs_no_steps() {
        let group = |kept: u64| Group { mask: !kept, bitval: 0 };
        assert_eq!(common_shift(&[group(0x0FF0_0FF0_0000_0010)], 2), Some(4));
        assert_eq!(common_shift(&[group(0x0FF0_0FF0_0000_0011)], 2), None);
        assert_eq!(common_shift(&[group(0x0FF0), group(0x1FE0)], 8), None);
        assert_eq!(common_shift(&[group(0)], 4), Some(0));
        assert_eq!(common_shift(&[group(u64::MAX)], 8), Some(0));
    }

    #[test]
    fn a_word_fills_8_bytes() {
        assert_eq!(repeated(0x3F80, 2), 0x3F80_3F80_3F80_3F80);
        assert_eq!(repeated(7, 8), 7);
    }
}
