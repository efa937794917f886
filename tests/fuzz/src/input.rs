//! The bytes of a fuzzer, read as numbers and as the shape of a tensor; bytes that are missing are 0.

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{Access, Dtype, index};

/// Raw bytes of most tensors: several records, and shorter last ones.
const SMALL_BYTES: u64 = 9 << 10;

/// Raw bytes of the others: enough for rows of bytes under access `whole` to be cut into pieces.
const LARGE_BYTES: u64 = 132 << 10;

/// In [`Input::tensor`]: all of these bits make a large tensor.
pub(crate) const LARGE: u8 = 0xF8;

/// What is left of a fuzzer's bytes.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Up to `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let (taken, mut bytes) = (self.take(N), [0; N]);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A tensor of bounded size; `None` where its rows are not whole bytes.
    ///
    /// Ten bytes: dtype; form (bit 0 access, bits 1 and 2 rank, bits 3 to 7 all set: a large one); columns;
    /// rows.
    pub(crate) fn tensor(&mut self) -> Option<Geometry> {
        let dtype = Dtype::ALL[usize::from(self.u8()) % Dtype::ALL.len()];
        let form = self.u8();
        let access = if form & 1 == 0 { Access::Rows } else { Access::Whole };
        let most_bytes = if form & LARGE == LARGE { LARGE_BYTES } else { SMALL_BYTES };
        let most_elems = most_bytes * 8 / u64::from(dtype.bits());
        let columns = u64::from(self.u32()).min(most_elems);
        let rows = u64::from(self.u32()).min(most_elems / columns.max(1));
        let geometry = match form >> 1 & 3 {
            0 => Geometry::new(dtype, &[rows, columns], access, None),
            1 => Geometry::new(dtype, &[columns], access, None),
            2 => Geometry::new(dtype, &[rows * columns], access, Some(columns)),
            _ => Geometry::new(dtype, &[rows, 2, columns / 2], access, None),
        };
        geometry.ok()
    }
}

/// `len` bytes that repeat a pattern, and differ from turn to turn in the bits of `noise`.
pub(crate) fn repeated(pattern: &[u8], noise: u8, len: u64) -> Vec<u8> {
    let pattern = if pattern.is_empty() { &[0] } else { pattern };
    let mut bytes = Vec::with_capacity(index(len));
    for turn in (0..=u8::MAX).cycle() {
        let left = index(len) - bytes.len();
        if left == 0 {
            break;
        }
        bytes.extend(pattern.iter().take(left).map(|byte| byte ^ turn & noise));
    }
    bytes
}
