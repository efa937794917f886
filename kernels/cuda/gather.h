// gather.h - what the host and the gather kernels hand each other; kernels/src/cuda/gather/abi.rs has the same structs.
//
// What may be read: the words, segments, ids and metadata that a tensor and a call name; of a segment, what lies
// between its ends, whatever its bytes and the words are. Starts and lengths of segments are multiples of 64.
// What may be written: the rows of the output, the miss list up to its room, the status, the cache.
#pragma once
#include "shared.h"

enum : uint32_t { MAX_FORMS = 16, WAYS = 8 };

// One set of the cache: the tags of its lines. All zeros: empty.
struct CacheSet {
  uint64_t states[WAYS];  // bits 0 to 31: version, odd while the line is written; the others: LineMeta; 0: empty
  uint64_t words[WAYS];   // block words
  uint64_t rows[WAYS];
  uint64_t counts;        // a byte per line: how often it was hit, at most 3
  uint64_t reserved;      // 0
};
static_assert(sizeof(CacheSet) == 208, "CacheSet");

// What a line holds.
enum LineMeta : uint32_t {
  LINE_BYTES = 0xffff,      // bytes in use, LINE_SKEW included
  LINE_SKEW_SHIFT = 16,     // 4 bits: where the row starts in the line
  LINE_FORM_SHIFT = 20,     // 4 bits: index of the generation
  LINE_RAW = 1u << 24,      // the row is not encoded
  LINE_KEEP = 1u << 25,     // never evicted
};

struct Cache {
  uint64_t sets;        // address of the first CacheSet, a multiple of 16
  uint64_t lines;       // address of the first line, a multiple of 16; WAYS lines per set
  uint32_t n_sets;      // 0: no cache
  uint32_t line_bytes;  // a multiple of 16
};
static_assert(sizeof(Cache) == 24, "Cache");

// A data segment; address 0: not there.
struct Segment {
  uint64_t address;
  uint64_t bytes;
};

// One generation of metadata.
struct GatherForm {
  uint64_t form;            // address of the prepared metadata
  uint32_t codec;           // its number; 0: not there
  uint32_t record_stride;   // bytes of a full record in the front
  uint32_t tail_stride[2];  // of the last record of a run: in every block, in the last block
  uint32_t reserved[2];     // 0
};
static_assert(sizeof(GatherForm) == 32, "GatherForm");

// How blocks are cut.
struct GatherGrid {
  uint32_t rows;         // rows of the block
  uint32_t row_bytes;    // raw bytes of each
  uint32_t runs;         // runs of the block
  uint32_t records;      // records of a run
  uint32_t tail_elems;   // elements of the last of them
  uint32_t reserved[3];  // 0
};
static_assert(sizeof(GatherGrid) == 32, "GatherGrid");

// A tensor on a device.
struct GatherTensor {
  uint64_t words;         // address of the block words
  uint64_t n_blocks;
  uint64_t segments;      // address of the Segments
  uint64_t n_rows;
  uint64_t row_bytes;
  Cache cache;
  uint32_t n_segments;
  uint32_t block_rows;    // rows of every block but the last
  uint32_t block_shift;   // its logarithm; 32: it has none
  uint32_t pieces;        // blocks of a row
  uint32_t piece_bytes;   // raw bytes of every piece but the last
  uint32_t elem_bits;
  uint32_t whole;         // access whole: rows are parts of records
  uint32_t lanes;         // of a team: 8 or 32
  uint32_t window_bytes;  // of shared memory of a team, a multiple of 16
  uint32_t scratch_bytes; // of these, at the end, for a decoded record of access whole
  uint32_t reserved[2];   // 0
  GatherGrid grids[2];    // of every block, of the last block or piece
  GatherForm forms[MAX_FORMS];
};
static_assert(sizeof(GatherTensor) == 688, "GatherTensor");

// What a launch did for one tensor.
struct GatherStatus {
  Status status;          // flags of damaged bytes; the least position that has one
  uint64_t bad_position;  // the least position of an id that is no row; all ones without
  uint64_t n_missed;      // blocks that were not there, also those beyond the list's room
  uint64_t hits;          // rows that came from the cache
  uint64_t misses;        // rows that came from the pool
  uint64_t inserts;       // of these, rows that went into the cache
  uint64_t conflicts;     // lines that changed while they were read, or that another team was writing
  uint64_t bypasses;      // rows from the pool that no line can hold
};
static_assert(sizeof(GatherStatus) == 64, "GatherStatus");

// Rows to gather from one tensor.
struct GatherCall {
  uint64_t tensor;       // address of the GatherTensor, a multiple of 16
  uint64_t ids;          // address of the row numbers, none of them negative
  uint64_t only;         // address of the positions to gather, 4 bytes each; 0: all of them
  uint64_t out;          // address of the first row; with CALL_KEEP of as many rows as there are teams
  uint64_t missed;       // address of the positions of rows that are not there, 4 bytes each, in any order
  uint64_t status;       // address of the GatherStatus
  uint32_t n_ids;        // below 2^32 - 1; with `only`, how many of those
  uint32_t id_bytes;     // 4 or 8
  uint32_t missed_room;  // positions that the list has room for
  uint32_t flags;        // of CallFlag
  uint32_t first_block;  // the thread block that starts with this tensor
  uint32_t turn;         // another number for each launch: which rows the cache takes when it is full depends on it
};
static_assert(sizeof(GatherCall) == 72, "GatherCall");
enum CallFlag : uint32_t {
  CALL_KEEP = 1,  // fill the cache with these rows, and keep them there; the output is scratch
};
