//! Where every shared word is: the constants behind LAYOUT.md.
//!
//! All words are little-endian `u64`s read and written as atomics; there are no references to plain memory that
//! another process may write.
//! Offsets are in bytes from the start of the structure, addresses in 64-byte units over a namespace's segments.

use crate::types::UNIT_BYTES;

/// Version of everything in this file; LAYOUT.md states it too.
pub const LAYOUT_VERSION: u16 = 3;

/// Bytes of address space of one segment, and so its greatest length.
pub const SEGMENT_SPAN_BYTES: u64 = 64 << 20;
/// Units of address space of one segment: `address / SEGMENT_SPAN_UNITS` is the segment's index.
pub const SEGMENT_SPAN_UNITS: u64 = SEGMENT_SPAN_BYTES / UNIT_BYTES;
/// Segments that a namespace can have, per kind: 35 bits of address.
pub const MAX_SEGMENTS: usize = 1 << 15;
/// The shortest segment.
pub const MIN_SEGMENT_BYTES: u64 = 256 << 10;

/// Segment 0 of a directory: the namespace header, then the ring, then what is allocated.
pub mod header {
    /// "TPNAMESP".
    pub const MAGIC: u64 = u64::from_le_bytes(*b"TPNAMESP");
    /// Magic.
    pub const MAGIC_AT: u64 = 0;
    /// Layout version, written last.
    pub const VERSION_AT: u64 = 8;
    /// The daemon's instance id.
    pub const INSTANCE_AT: u64 = 16;
    /// The namespace's id within the instance.
    pub const NAMESPACE_AT: u64 = 24;
    /// Entries of the ring of changed blocks.
    pub const RING_CAPACITY_AT: u64 = 32;
    /// The epoch, alone on its cache lines.
    pub const EPOCH_AT: u64 = 128;
    /// Head of the ring of changed blocks; the cache lines hold what changes with it, and nothing else.
    pub const RING_HEAD_AT: u64 = 256;
    /// Sequence count of names and slots: odd while a tensor is published, replaced or removed.
    pub const NAMES_AT: u64 = 264;
    /// Sequence count of values: odd while a committed update stores its words and pushes to the ring.
    pub const UPDATES_AT: u64 = 272;
    /// First entry of the ring.
    pub const RING_AT: u64 = 4096;
    /// Entries of the ring.
    pub const RING_CAPACITY: u64 = 8192;
    /// First byte that the directory's allocator may hand out.
    pub const END: u64 = RING_AT + RING_CAPACITY * 8;
}

/// A tensor slot: 128 bytes at a fixed address, never used for anything else.
pub mod slot {
    /// Bytes of a slot.
    pub const BYTES: u64 = 128;
    /// Epoch of publication, 0 while free.
    pub const PUBLICATION_AT: u64 = 0;
    /// Slot index.
    pub const INDEX_AT: u64 = 8;
    /// Address of the block table, in units of the directory.
    pub const TABLE_AT: u64 = 16;
    /// Blocks.
    pub const N_BLOCKS_AT: u64 = 24;
    /// Address of the generation table, in units of the directory.
    pub const GENERATIONS_AT: u64 = 32;
    /// Entries of the generation table.
    pub const N_GENERATIONS_AT: u64 = 40;
    /// Dtype number in bits 0..8, access number in bits 8..16.
    pub const DTYPE_AT: u64 = 48;
    /// Gather rows.
    pub const N_ROWS_AT: u64 = 56;
    /// Bytes of a gather row.
    pub const ROW_BYTES_AT: u64 = 64;
    /// Raw bytes of the tensor.
    pub const RAW_BYTES_AT: u64 = 72;
    /// Slots that are made at a time; their memory is never used for anything else.
    pub const PER_SLAB: u64 = 32;
}

/// A block table: a header of 64 bytes, then one word per block.
pub mod table {
    /// Counts the committed updates of this publication.
    pub const REVISION_AT: u64 = 0;
    /// First block word.
    pub const WORDS_AT: u64 = 64;
    /// Bytes of a table of `n_blocks` blocks; `None` when that overflows.
    pub const fn bytes(n_blocks: u64) -> Option<u64> {
        match n_blocks.checked_mul(8) {
            Some(words) => words.checked_add(WORDS_AT),
            None => None,
        }
    }
}

/// A generation table: two words per entry; the index is what a block word holds.
pub mod generation {
    /// Bytes of an entry.
    pub const ENTRY_BYTES: u64 = 16;
    /// Generation number in the high 32 bits, bytes of metadata in the low 32.
    pub const NUMBER_AND_LEN_AT: u64 = 0;
    /// Address of the metadata, in units of the data segments.
    pub const METADATA_AT: u64 = 8;
    /// Entries that a put makes: live generations of one tensor at a time.
    pub const ENTRIES: u64 = 16;
}

/// The header of an overlay extent: 64 bytes, then row numbers, then rows.
pub mod overlay {
    /// Bytes of the header.
    pub const BYTES: u64 = 64;
    /// Magic, "TPOVERLY".
    pub const MAGIC: u64 = u64::from_le_bytes(*b"TPOVERLY");
    /// Magic.
    pub const MAGIC_AT: u64 = 0;
    /// The block word that this overlay covers.
    pub const COVERED_AT: u64 = 8;
    /// Row numbers within the block, as `u32`, ascending, from byte 64 on.
    pub const N_ROWS_AT: u64 = 16;
    /// Bytes of one row as stored.
    pub const ROW_BYTES_AT: u64 = 24;
    /// Byte offset of the first row in the extent, a multiple of 64.
    pub const ROWS_AT: u64 = 32;
    /// Overlays below this one, at most 7.
    pub const DEPTH_AT: u64 = 40;
    /// Bytes of the whole overlay.
    pub const LEN_AT: u64 = 48;
    /// CRC32C of everything but this word, in the low 32 bits.
    pub const CRC_AT: u64 = 56;
    /// Overlays of one block at a time.
    pub const MAX_CHAIN: u64 = 8;
}

/// A client page: one per session and namespace, written by the client.
pub mod page {
    /// "TPCLIENT".
    pub const MAGIC: u64 = u64::from_le_bytes(*b"TPCLIENT");
    /// Magic.
    pub const MAGIC_AT: u64 = 0;
    /// Layout version.
    pub const VERSION_AT: u64 = 8;
    /// The daemon's instance id.
    pub const INSTANCE_AT: u64 = 16;
    /// The namespace's id within the instance.
    pub const NAMESPACE_AT: u64 = 24;
    /// How the client's GPUs read the pool: bits of `page::DeviceAccess`.
    pub const DEVICE_ACCESS_AT: u64 = 32;
    /// First shard of counters.
    pub const COUNTERS_AT: u64 = 64;
    /// Shards of counters; lease `i` counts in shard `i / 8 % SHARDS`.
    pub const SHARDS: u64 = 16;
    /// Bytes of a shard: sixteen counters, see `page::Counter`.
    pub const SHARD_BYTES: u64 = 128;
    /// First lease word.
    pub const LEASES_AT: u64 = COUNTERS_AT + SHARDS * SHARD_BYTES;
    /// Lease words: guards of one session in one namespace at a time.
    pub const N_LEASES: u64 = 1024;
    /// First of the second words of the leases: the epoch of the last look-up, once the lease is finished.
    pub const LAST_LOOKS_AT: u64 = LEASES_AT + N_LEASES * 8;
    /// Head of the ring of accessed blocks, counts pushes.
    pub const ACCESS_HEAD_AT: u64 = LAST_LOOKS_AT + N_LEASES * 8;
    /// First entry of the ring of accessed blocks: slot in bits 40..64, block in bits 0..40.
    pub const ACCESS_AT: u64 = ACCESS_HEAD_AT + 64;
    /// Entries of the ring of accessed blocks.
    pub const ACCESS_CAPACITY: u64 = 512;
    /// One access in this many is recorded.
    pub const ACCESS_SAMPLE: u64 = 64;
    /// Bytes of the page.
    pub const BYTES: u64 = 24 << 10;
}

const _: () = {
    assert!(SEGMENT_SPAN_UNITS * MAX_SEGMENTS as u64 == crate::types::BlockWord::MAX_UNITS);
    assert!(header::END < MIN_SEGMENT_BYTES && header::END.is_multiple_of(UNIT_BYTES));
    assert!(slot::RAW_BYTES_AT + 8 <= slot::BYTES && slot::BYTES.is_multiple_of(UNIT_BYTES));
    assert!(overlay::CRC_AT + 8 == overlay::BYTES);
    assert!(page::LEASES_AT.is_multiple_of(64) && page::LAST_LOOKS_AT.is_multiple_of(64));
    assert!(page::ACCESS_AT.is_multiple_of(64));
    assert!(page::ACCESS_AT + page::ACCESS_CAPACITY * 8 <= page::BYTES);
};
