//! A tensor in a pool and on a device, as daemon and client would have it.
//!
//! Every stored block has a segment of its own, as long as its extent and not longer, so that a sanitizer sees a read
//! outside of it.

use cusim::Order;
use tierpack_kernels::Coder;
use tierpack_kernels::block::Block;
use tierpack_kernels::codec::{self, Encoding};
use tierpack_kernels::cuda::form::device_form;
use tierpack_kernels::cuda::gather::{
    Addresses, CacheLayout, DeviceForm, GatherCall, GatherStatus, GatherTensor, Segment, describe, plan,
    row_sizes, sweep,
};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::layout::SEGMENT_SPAN_UNITS;
use tierpack_shm::overlay;
use tierpack_shm::types::{BlockWord, CodecId, index};

use crate::device::{self, Memory};
use crate::make;

const CANARY: u8 = 0x5C;
/// Bytes on both sides of the output that no kernel may write.
const MARGIN: usize = 64;

pub(crate) struct World {
    pub(crate) geometry: Geometry,
    pub(crate) truth: Vec<u8>,
    pub(crate) coders: Vec<(u8, Coder, Memory)>,
    pub(crate) words: Vec<BlockWord>,
    pub(crate) segments: Vec<Memory>,
    pub(crate) cache: Memory,
    pub(crate) layout: CacheLayout,
    /// Thread blocks of a launch.
    pub(crate) max_blocks: u32,
}

/// What a launch gave.
pub(crate) struct Outcome {
    /// One row after the other; rows that were not written are canaries.
    pub(crate) rows: Vec<u8>,
    pub(crate) status: GatherStatus,
    /// Sorted.
    pub(crate) missed: Vec<u32>,
}

impl Outcome {
    pub(crate) fn counts(&self) -> [u64; 5] {
        let status = &self.status;
        [status.hits, status.misses, status.inserts, status.conflicts, status.bypasses]
    }
}

impl World {
    /// A tensor whose blocks are all stored, their last sequence number being `sequence`.
    pub(crate) fn new(geometry: Geometry, codec: CodecId, seed: u64, sequence: u32) -> Self {
        let mut random = make::Random(seed);
        let truth = make::raw(&geometry, codec, &mut random);
        let mut world = Self {
            geometry,
            truth,
            coders: Vec::new(),
            words: vec![BlockWord::from_bits(0); index(geometry.n_blocks())],
            segments: Vec::new(),
            cache: Memory::filled(0, 0),
            layout: CacheLayout::NONE,
            max_blocks: 3,
        };
        if let Some(coder) = make::fitted(&geometry, codec, 7, &world.truth) {
            world.add_coder(2, coder);
        }
        for block_idx in 0..geometry.n_blocks() {
            world.words[index(block_idx)] = BlockWord::resident(0, 0, 0, sequence.wrapping_sub(1));
            world.store(block_idx, 2);
        }
        world
    }

    pub(crate) fn add_coder(&mut self, generation_idx: u8, coder: Coder) {
        let form = Memory::of(&device_form(&coder));
        self.coders.retain(|(idx, ..)| *idx != generation_idx);
        self.coders.push((generation_idx, coder, form));
    }

    pub(crate) fn coder(&self, generation_idx: u8) -> Option<&Coder> {
        self.coders.iter().find(|(idx, ..)| *idx == generation_idx).map(|(_, coder, _)| coder)
    }

    /// Puts bytes into a segment of their own; returns its first unit.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> u64 {
        self.segments.push(Memory::of(bytes));
        (self.segments.len() as u64 - 1) * SEGMENT_SPAN_UNITS
    }

    pub(crate) fn encoded(&self, block_idx: u64, generation_idx: u8) -> Vec<u8> {
        let shape = self.geometry.block(block_idx);
        let raw = &self.truth[index(shape.byte_offset)..][..index(shape.raw_bytes)];
        let encoding = self.coder(generation_idx).map_or(Encoding::Raw, Encoding::Coded);
        let mut bytes = Vec::new();
        codec::encode_block(encoding, &self.geometry, block_idx, raw, &mut bytes).expect("a block");
        bytes
    }

    /// Stores a block as `truth` has it now, in a new extent.
    pub(crate) fn store(&mut self, block_idx: u64, generation_idx: u8) {
        let bytes = self.encoded(block_idx, generation_idx);
        let offset = self.put(&bytes);
        self.publish(block_idx, offset, generation_idx, raw_flag(&bytes));
    }

    /// The next word of a block.
    pub(crate) fn publish(&mut self, block_idx: u64, offset: u64, generation_idx: u8, flags: u64) {
        let word = &mut self.words[index(block_idx)];
        *word = BlockWord::resident(offset, generation_idx, flags, word.sequence().wrapping_add(1));
    }

    /// Stores an overlay of some rows of a block, which change their bytes in `truth`.
    pub(crate) fn update(&mut self, block_idx: u64, rows: &[u32], depth: u64) {
        let shape = self.geometry.block(block_idx);
        let row_bytes = index(shape.row_bytes);
        for &row in rows {
            let at = index(shape.byte_offset) + row as usize * row_bytes;
            self.truth[at..at + row_bytes]
                .iter_mut()
                .for_each(|byte| *byte = byte.wrapping_mul(5).wrapping_add(3));
        }
        let covered = self.words[index(block_idx)];
        let changed = rows.iter().map(|&row| {
            let at = index(shape.byte_offset) + row as usize * row_bytes;
            (row, &self.truth[at..at + row_bytes])
        });
        let mut bytes = Vec::new();
        overlay::encode(covered, depth, shape.row_bytes, changed, &mut bytes);
        let offset = self.put(&bytes);
        self.publish(block_idx, offset, 0, BlockWord::OVERLAY);
    }

    /// The block is no longer there.
    pub(crate) fn demote(&mut self, block_idx: u64) {
        let word = &mut self.words[index(block_idx)];
        let away = word.bits() & !BlockWord::RESIDENT;
        *word = BlockWord::from_bits(away.wrapping_add(1 << 46));
    }

    /// A cache of that many bytes, empty; `line` in place of what the rows need.
    pub(crate) fn cached(mut self, bytes: u64, line: Option<u32>) -> Self {
        self.layout =
            line.map_or_else(|| self.usual_layout(bytes), |line| CacheLayout::with_line(bytes, line));
        self.cache = Memory::filled(index(self.layout.bytes()), 0);
        self
    }

    /// Lines for all rows that are stored now.
    fn usual_layout(&self, bytes: u64) -> CacheLayout {
        let mut sizes: Vec<u32> = Vec::new();
        for block_idx in 0..self.geometry.n_blocks() {
            let bytes = self.encoded(block_idx, 2);
            let block = Block::parse(&bytes).expect("a block");
            sizes.extend(row_sizes(self.coder(2), &self.geometry, &block).expect("sizes"));
        }
        let most = sizes.iter().copied().max().unwrap_or(0);
        CacheLayout::with_line(bytes, most + 15)
    }

    /// Calls `body` with the tensor as the kernels see it.
    fn with_tensor<T>(&self, body: impl FnOnce(&GatherTensor) -> T) -> T {
        let words: Vec<u64> = self.words.iter().map(|word| word.bits()).collect();
        let words = Memory::with(&words);
        let segments: Vec<Segment> = self
            .segments
            .iter()
            .map(|memory| match memory.len() {
                0 => Segment::default(),
                bytes => Segment { address: memory.address(), bytes: bytes as u64 },
            })
            .collect();
        let segments = Memory::with(&segments);
        let forms: Vec<DeviceForm<'_>> = self
            .coders
            .iter()
            .map(|(idx, coder, form)| DeviceForm { generation_idx: *idx, coder, address: form.address() })
            .collect();
        let addresses = Addresses {
            words: words.address(),
            segments: segments.address(),
            n_segments: u32::try_from(self.segments.len()).expect("few segments"),
            cache: if self.layout == CacheLayout::NONE {
                Default::default()
            } else {
                self.layout.at(self.cache.address())
            },
        };
        body(&describe(&self.geometry, &forms, &addresses).expect("a tensor"))
    }

    pub(crate) fn gather(&self, ids: &[u64], order: Order) -> Outcome {
        self.gather_by(ids, 8, 0, 64, order)
    }

    /// As a test wants it: bytes of an id, where the output starts, room of the miss list.
    pub(crate) fn gather_by(
        &self,
        ids: &[u64],
        id_bytes: u32,
        skew: usize,
        room: u32,
        order: Order,
    ) -> Outcome {
        gather_many(&[(self, ids)], id_bytes, skew, room, order).remove(0)
    }

    /// Fills the cache with rows that stay.
    pub(crate) fn keep(&self, ids: &[u64], order: Order) -> GatherStatus {
        self.with_tensor(|tensor| {
            let (tensor_memory, ids_memory) = (Memory::with(&[*tensor]), Memory::with(ids));
            let status = Memory::with(&[GatherStatus::CLEAR]);
            let mut call = GatherCall {
                tensor: tensor_memory.address(),
                ids: ids_memory.address(),
                status: status.address(),
                n_ids: u32::try_from(ids.len()).expect("few ids"),
                id_bytes: 8,
                flags: GatherCall::KEEP,
                ..GatherCall::default()
            };
            let launch = plan(&mut [(tensor, &mut call)], 1, self.max_blocks).expect("a launch");
            let scratch = Memory::filled(launch.scratch_rows as usize * index(tensor.row_bytes), CANARY);
            call.out = scratch.address();
            device::gather(&launch, &[call], order);
            status.get()
        })
    }

    /// Gathers some positions of a batch; the output of all of it.
    pub(crate) fn gather_only(&self, ids: &[u64], only: &[u32], order: Order) -> Vec<u8> {
        self.with_tensor(|tensor| {
            let (tensor_memory, ids_memory) = (Memory::with(&[*tensor]), Memory::with(ids));
            let (only_memory, status) = (Memory::with(only), Memory::with(&[GatherStatus::CLEAR]));
            let out = Memory::filled(ids.len() * index(tensor.row_bytes), CANARY);
            let mut call = GatherCall {
                tensor: tensor_memory.address(),
                ids: ids_memory.address(),
                only: only_memory.address(),
                out: out.address(),
                status: status.address(),
                n_ids: u32::try_from(only.len()).expect("few positions"),
                id_bytes: 8,
                ..GatherCall::default()
            };
            let launch = plan(&mut [(tensor, &mut call)], 1, self.max_blocks).expect("a launch");
            device::gather(&launch, &[call], order);
            assert_eq!(status.get::<GatherStatus>().n_missed, 0);
            out.read()
        })
    }

    pub(crate) fn sweep(&self, order: Order) {
        self.with_tensor(|tensor| {
            let memory = Memory::with(&[*tensor]);
            device::sweep(&sweep(tensor, 1).expect("there is a cache"), memory.address(), order);
        });
    }

    pub(crate) fn row(&self, row: u64) -> &[u8] {
        let row_bytes = index(self.geometry.row_bytes());
        &self.truth[index(row) * row_bytes..][..row_bytes]
    }

    /// Every row is what was stored; returns the outcome.
    #[track_caller]
    pub(crate) fn gathers(&self, ids: &[u64], order: Order) -> Outcome {
        let outcome = self.gather(ids, order);
        self.check(ids, &outcome, order);
        outcome
    }

    #[track_caller]
    pub(crate) fn check(&self, ids: &[u64], outcome: &Outcome, order: Order) {
        let row_bytes = index(self.geometry.row_bytes());
        for (position, &id) in ids.iter().enumerate() {
            let got = &outcome.rows[position * row_bytes..][..row_bytes];
            let at = got.iter().zip(self.row(id)).position(|(got, wanted)| got != wanted);
            assert_eq!(at, None, "row {id} at {position}, lanes {order:?}: first byte that differs");
        }
        assert_eq!(outcome.status.status.flags, 0);
        assert_eq!(outcome.status.bad_position, u64::MAX);
        assert_eq!(outcome.status.n_missed, 0);
    }
}

/// One launch for several tensors.
pub(crate) fn gather_many(
    gathers: &[(&World, &[u64])],
    id_bytes: u32,
    skew: usize,
    room: u32,
    order: Order,
) -> Vec<Outcome> {
    fn with_tensors(
        worlds: &[(&World, &[u64])],
        tensors: &mut Vec<GatherTensor>,
        run: &mut dyn FnMut(&[GatherTensor]),
    ) {
        match worlds.split_first() {
            None => run(tensors),
            Some(((world, _), others)) => world.with_tensor(|tensor| {
                tensors.push(*tensor);
                with_tensors(others, tensors, run);
            }),
        }
    }
    let mut outcomes = Vec::new();
    with_tensors(gathers, &mut Vec::new(), &mut |tensors| {
        let memories: Vec<[Memory; 5]> = gathers
            .iter()
            .zip(tensors)
            .map(|((_, ids), tensor)| {
                let ids: Vec<u8> =
                    ids.iter().flat_map(|id| id.to_ne_bytes()[..id_bytes as usize].to_vec()).collect();
                let row_bytes = index(tensor.row_bytes);
                let out =
                    Memory::filled(2 * MARGIN + skew + ids.len() / id_bytes as usize * row_bytes, CANARY);
                let missed = Memory::filled(4 * room as usize + MARGIN, CANARY);
                [
                    Memory::with(&[*tensor]),
                    Memory::of(&ids),
                    out,
                    missed,
                    Memory::with(&[GatherStatus::CLEAR]),
                ]
            })
            .collect();
        let mut calls: Vec<GatherCall> = gathers
            .iter()
            .zip(&memories)
            .map(|((_, ids), [tensor, ids_memory, out, missed, status])| GatherCall {
                tensor: tensor.address(),
                ids: ids_memory.address(),
                out: out.address() + (MARGIN + skew) as u64,
                missed: missed.address(),
                status: status.address(),
                n_ids: u32::try_from(ids.len()).expect("few ids"),
                id_bytes,
                missed_room: room,
                ..GatherCall::default()
            })
            .collect();
        let mut planned: Vec<_> = tensors.iter().zip(&mut calls).collect();
        if let Some(launch) = plan(&mut planned, 1, gathers[0].0.max_blocks) {
            device::gather(&launch, &calls, order);
        }
        outcomes = memories
            .iter()
            .zip(gathers)
            .zip(tensors)
            .map(|(([_, _, out, missed, status], (_, ids)), tensor)| {
                let out = out.read();
                let (before, after) = out.split_at(MARGIN + skew);
                let (rows, after) = after.split_at(ids.len() * index(tensor.row_bytes));
                let untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == CANARY);
                assert!(untouched(before) && untouched(after), "a write outside of the output");
                let missed = missed.read();
                let (list, after) = missed.split_at(4 * room as usize);
                assert!(untouched(after), "a write after the miss list");
                let status: GatherStatus = status.get();
                let n = index(status.n_missed).min(room as usize);
                let mut missed: Vec<u32> =
                    list.as_chunks().0[..n].iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect();
                missed.sort_unstable();
                Outcome { rows: rows.to_vec(), status, missed }
            })
            .collect();
    });
    outcomes
}

/// Whether no byte of a row was written.
pub(crate) fn is_untouched(row: &[u8]) -> bool {
    row.iter().all(|&byte| byte == CANARY)
}

/// The flag of a word whose block has these bytes.
pub(crate) fn raw_flag(block: &[u8]) -> u64 {
    if block[6] == CodecId::Raw as u8 { BlockWord::RAW } else { 0 }
}
