//! Metadata of every form, written byte by byte as FORMAT.md says, and words that fit them more or less.

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{Access, CodecId, Dtype, index};

/// A fixed sequence of numbers (Knuth's 64-bit LCG, its better half mixed in).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ self.0 >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 32
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[index(self.below(values.len() as u64))]
    }
}

/// Bits of the exponents of the floats that codecs `planes` are for.
pub(crate) fn exponent_bits(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F64 => Some(11),
        Dtype::F32 | Dtype::Bf16 => Some(8),
        Dtype::F16 | Dtype::F8E5m2 | Dtype::F8E5m2Fnuz => Some(5),
        Dtype::F8E4m3 | Dtype::F8E4m3Fnuz => Some(4),
        _ => None,
    }
}

/// Whether the codec is for the dtype.
pub(crate) fn has(codec: CodecId, dtype: Dtype) -> bool {
    match codec {
        CodecId::Planes4 => exponent_bits(dtype).is_some_and(|bits| bits > 4),
        CodecId::Planes3 | CodecId::Planes222 => exponent_bits(dtype).is_some(),
        _ => true,
    }
}

fn low(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Metadata, and what is needed to make words for them.
pub(crate) struct Model {
    /// The metadata's bytes.
    pub(crate) metadata: Vec<u8>,
    codec: CodecId,
    word_bytes: usize,
    rotate: bool,
    /// Of `ibp`: mask and values of a row, or of a chunk; bases of a row, of one word, or none.
    mask: Vec<u8>,
    bitval: Vec<u8>,
    bases: Vec<u8>,
    /// Of `planes`.
    exponent_bits: u32,
    table: Vec<u64>,
    dropped: (u32, u32, u64),
    /// Of `sparse`: the common word, then the dictionary.
    words: Vec<u64>,
}

/// How a record's fixed part grows, and its head: what strides must have room for.
struct Least<'a>(&'a dyn Fn(u64) -> u64);

impl Model {
    pub(crate) fn new(codec: CodecId, geometry: &Geometry, random: &mut Random) -> Self {
        let dtype = geometry.dtype();
        let plain_word = if dtype.bits() < 8 { 1 } else { index(u64::from(dtype.bits() / 8)) };
        let mut model = Self {
            metadata: Vec::new(),
            codec,
            word_bytes: plain_word,
            rotate: false,
            mask: Vec::new(),
            bitval: Vec::new(),
            bases: Vec::new(),
            exponent_bits: 0,
            table: Vec::new(),
            dropped: (0, 0, 0),
            words: Vec::new(),
        };
        match codec {
            CodecId::Ibp | CodecId::IbpWindow => model.ibp(geometry, random),
            CodecId::Sparse => model.sparse(geometry, random),
            _ => model.planes(geometry, random),
        }
        model
    }

    fn ibp(&mut self, geometry: &Geometry, random: &mut Random) {
        let (dtype, row_bytes) = (geometry.dtype(), geometry.row_bytes());
        let chunk_bytes = random.of(&[2_u8, 4, 8]);
        let whole_chunks = geometry.access() == Access::Rows || row_bytes.is_multiple_of(chunk_bytes.into());
        let masks = if row_bytes <= 64 << 10 && whole_chunks { random.of(&[1_u8, 2]) } else { 1 };
        let len = if masks == 1 { usize::from(chunk_bytes) } else { index(row_bytes) };
        // One run of kept bits at one place, or anything.
        let plain = random.below(3);
        self.mask = (0..len)
            .map(|i| match plain {
                0 => [0, 0xFF][i % 2],
                1 => 0xF8,
                _ => random.byte() | random.byte(),
            })
            .collect();
        self.bitval = self.mask.iter().map(|mask| mask & random.byte()).collect();
        let mut base = 0;
        if self.codec == CodecId::IbpWindow {
            let not_rotated = exponent_bits(dtype).is_none() && dtype != Dtype::C64;
            self.rotate = !not_rotated;
            self.word_bytes = if dtype == Dtype::C64 { 4 } else { self.word_bytes };
            base = if row_bytes <= 64 << 10 { random.of(&[0_u8, 1, 2]) } else { random.of(&[0, 1]) };
            let len = [0, self.word_bytes, index(row_bytes)][usize::from(base)];
            self.bases = (0..len).map(|_| random.byte()).collect();
        }
        let body = [self.mask.clone(), self.bitval.clone(), self.bases.clone()].concat();
        let own = [chunk_bytes, masks, u8::from(self.rotate), base];
        let least = |n: u64| {
            let chunks = (n * u64::from(dtype.bits()) / 8).div_ceil(chunk_bytes.into());
            4 + chunks.div_ceil(8)
        };
        self.write(geometry, own, &body, &Least(&least), random);
    }

    fn planes(&mut self, geometry: &Geometry, random: &mut Random) {
        let dtype = geometry.dtype();
        self.exponent_bits = exponent_bits(dtype).expect("the caller has asked");
        let low_bits = dtype.bits() - self.exponent_bits;
        let n_codes = match self.codec {
            CodecId::Planes4 => 15,
            CodecId::Planes3 => 7,
            _ => 9,
        };
        let start = random.next();
        // The same exponent may stand twice.
        self.table = (0..n_codes).map(|i| (start + i - i / 5) & low(self.exponent_bits)).collect();
        let bits = if random.below(2) == 0 {
            0
        } else {
            u32::try_from(random.below((low_bits + 1).into())).expect("a small number")
        };
        if bits > 0 {
            let first = u32::try_from(random.below((low_bits - bits + 1).into())).expect("a small number");
            self.dropped = (first, bits, random.next() & low(bits));
        }
        let per_column = geometry.row_bytes() <= 64 << 10 && random.below(2) == 1;
        let e = if self.exponent_bits > 8 { 2 } else { 1 };
        let exponents = |values: &[u64]| -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()[..e].to_vec()).collect()
        };
        if per_column {
            let bases: Vec<u64> =
                (0..geometry.row_elems()).map(|_| random.next() & low(self.exponent_bits)).collect();
            self.bases = exponents(&bases);
        }
        let (first, bits, value) = self.dropped;
        let value_len = if bits == 0 { 0 } else { self.word_bytes };
        let body =
            [exponents(&self.table), value.to_le_bytes()[..value_len].to_vec(), self.bases.clone()].concat();
        let own = [
            u8::try_from(first).expect("a small number"),
            u8::try_from(bits).expect("a small number"),
            if per_column { 2 } else { 0 },
            0,
        ];
        let kept = u64::from(low_bits - bits);
        let codec = self.codec;
        let least = |n: u64| {
            let group = |m: u64| {
                let codes = match codec {
                    CodecId::Planes4 => m.div_ceil(2) * 8,
                    CodecId::Planes3 => 3 * m,
                    _ => 2 * m,
                };
                codes + kept % 8 * m
            };
            let fixed = 8 * n * (kept / 8) + n / 64 * group(64) + group(n % 64);
            if codec == CodecId::Planes4 { fixed.div_ceil(8) } else { 4 + fixed.div_ceil(8) }
        };
        self.write(geometry, own, &body, &Least(&least), random);
    }

    fn sparse(&mut self, geometry: &Geometry, random: &mut Random) {
        let dtype = geometry.dtype();
        let group_elems = random.of(&[8_u8, 16, 32, 64]);
        let dictionary = random.of(&[0_u8, 1, 2, 5, 9]);
        let n_words = if dictionary == 0 { 0 } else { 1 << (dictionary - 1) };
        let word_bits = 8 * u32::try_from(self.word_bytes).expect("a small number");
        // Some words of the dictionary are alike, and some may be the common one.
        let few = random.of(&[low(word_bits), 0xF0]);
        self.words = (0..=n_words).map(|_| random.next() & few).collect();
        let body: Vec<u8> =
            self.words.iter().flat_map(|word| word.to_le_bytes()[..self.word_bytes].to_vec()).collect();
        let words_of = |n: u64| n * u64::from(dtype.bits()) / u64::from(word_bits);
        let least = |n: u64| 4 + (1 + words_of(n).div_ceil(group_elems.into())).div_ceil(8);
        self.write(geometry, [group_elems, dictionary, 0, 0], &body, &Least(&least), random);
    }

    /// Header and body, with strides between the least and the most that are possible.
    fn write(
        &mut self,
        geometry: &Geometry,
        own: [u8; 4],
        body: &[u8],
        least: &Least<'_>,
        random: &mut Random,
    ) {
        let dtype = geometry.dtype();
        let run_elems = |block_idx| {
            let shape = geometry.block(block_idx);
            if geometry.access() == Access::Rows { shape.columns } else { shape.rows * shape.columns }
        };
        let tail_elems = (run_elems(geometry.pieces_per_row() - 1) - 1) % 1024 + 1;
        let mut stride = |n: u64| {
            let least = (least.0)(n).next_multiple_of(4);
            let most = (4 + n * u64::from(dtype.bits()) / 8).next_multiple_of(4);
            let room = if self.codec == CodecId::Planes4 { 0 } else { (most - least) / 4 };
            // Most often so little that there is a rest.
            let part = random.of(&[1, 2, 4]);
            least + 4 * random.below(room / part + 1)
        };
        let record_stride = if run_elems(0) >= 1024 { stride(1024) } else { 0 };
        let tail_stride = if tail_elems == 1024 { record_stride } else { stride(tail_elems) };
        let four = |value: u64| u32::try_from(value).expect("a small number").to_le_bytes();
        let access = if geometry.access() == Access::Rows { 1 } else { 2 };
        let mut bytes = b"TPM1\x01\0".to_vec();
        bytes.extend([self.codec as u8, dtype as u8]);
        bytes.extend(four(3));
        bytes.push(access);
        bytes.extend(own);
        bytes.extend([0; 3]);
        bytes.extend(four(record_stride));
        bytes.extend(geometry.row_bytes().to_le_bytes());
        bytes.extend(four(tail_stride));
        bytes.extend(four(48 + body.len() as u64));
        bytes.extend([0; 8]);
        bytes.extend(body);
        let sum = crc32c::crc32c(&bytes).to_le_bytes();
        bytes[40..44].copy_from_slice(&sum);
        self.metadata = bytes;
    }

    /// Raw bytes of a tensor: one word in `strange` is anything, the others fit the metadata; 0 = none is strange.
    pub(crate) fn raw(&self, geometry: &Geometry, strange: u64, random: &mut Random) -> Vec<u8> {
        let (mut raw, row_bytes) = (Vec::new(), index(geometry.row_bytes()));
        let mut is_strange = false;
        while (raw.len() as u64) < geometry.raw_bytes() {
            let at = raw.len() % row_bytes;
            if strange > 0 && raw.len().is_multiple_of(8) {
                is_strange = random.below(strange) == 0;
            }
            let word = if is_strange { random.next() } else { self.word(raw.len(), at, random) };
            raw.extend(&word.to_le_bytes()[..self.word_bytes]);
        }
        raw
    }

    /// A word that fits, at byte `at` of its row and byte `run_at` of the tensor.
    fn word(&self, run_at: usize, at: usize, random: &mut Random) -> u64 {
        let bits = 8 * u32::try_from(self.word_bytes).expect("a small number");
        let unrotated = |word: u64| (word >> 1 | word << (bits - 1)) & low(bits);
        match self.codec {
            CodecId::Sparse => {
                let i = if random.below(8) > 0 { 0 } else { index(random.below(self.words.len() as u64)) };
                self.words[i]
            }
            CodecId::Ibp | CodecId::IbpWindow => {
                // One mask counts from the start of a run; where rows are odd, some words do not fit.
                let start = if self.mask.len() > 8 { at } else { run_at };
                let mut bytes = [0; 8];
                for (i, byte) in bytes[..self.word_bytes].iter_mut().enumerate() {
                    let i = (start + i) % self.mask.len();
                    *byte = random.byte() & !self.mask[i] | self.bitval[i];
                }
                let mut base = [0; 8];
                if !self.bases.is_empty() {
                    let from = at % self.bases.len();
                    base[..self.word_bytes].copy_from_slice(&self.bases[from..][..self.word_bytes]);
                }
                let word = u64::from_le_bytes(bytes).wrapping_add(u64::from_le_bytes(base)) & low(bits);
                if self.rotate { unrotated(word) } else { word }
            }
            _ => {
                let e = if self.exponent_bits > 8 { 2 } else { 1 };
                let column = at / self.word_bytes;
                let mut base = [0; 8];
                if !self.bases.is_empty() {
                    base[..e].copy_from_slice(&self.bases[e * column..][..e]);
                }
                // The first of the table most often.
                let rank = random.below(self.table.len() as u64).min(random.below(20)).min(random.below(20));
                let exponent =
                    self.table[index(rank)].wrapping_add(u64::from_le_bytes(base)) & low(self.exponent_bits);
                let low_bits = bits - self.exponent_bits;
                let (first, dropped, value) = self.dropped;
                let lower = random.next() & low(low_bits) & !(low(dropped) << first) | value << first;
                unrotated(exponent << low_bits | lower)
            }
        }
    }
}
