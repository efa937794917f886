// shared.h - what the host and the kernels hand each other; kernels/src/cuda/{abi,form}.rs have the same structs.
//
// What may be read: a kernel reads at src in windows of 16 bytes, and so up to stored_len rounded up to a multiple of
// 64, and nothing before src; of an overlay, its rows and their numbers. Extents of the pool are multiples of 64
// bytes, and staging buffers are too.
// What may be written: the raw bytes of the block, raw_len bytes at out, and Status.
#pragma once
#include "common.cuh"

// One block to decode.
struct BlockJob {
  uint64_t src;            // address of the block's header, a multiple of 16
  uint64_t out;            // address of the block's first raw byte
  uint64_t form;           // address of the prepared metadata, a multiple of 16; 0 for codec raw
  uint32_t stored_len;     // bytes that may be read at src: header, front, overflow
  uint32_t front_len;      // bytes of the front
  uint32_t runs;           // runs of the block (FORMAT.md, "Records"); rows for codec raw
  uint32_t records;        // records of each run
  uint32_t tail_elems;     // elements of the last record of each run, 1 to 1024
  uint32_t record_stride;  // bytes of a full record in the front
  uint32_t tail_stride;    // bytes of the last record of a run in the front
  uint32_t raw_len;        // raw bytes of the block
  uint32_t number;         // what Status names
  uint32_t reserved;       // 0
};
static_assert(sizeof(BlockJob) == 64, "BlockJob");

// Rows of one overlay to write over the raw bytes of a decoded block.
struct OverlayJob {
  uint64_t src;        // address of the overlay's header, a multiple of 16
  uint64_t out;        // address of the block's first raw byte
  uint32_t n_rows;     // rows that the overlay holds
  uint32_t row_bytes;  // bytes of a row
  uint32_t rows_at;    // where its first row starts, from src
  uint32_t raw_len;    // raw bytes of the block
  uint32_t number;     // what Status names
  uint32_t reserved;   // 0
};
static_assert(sizeof(OverlayJob) == 40, "OverlayJob");

// What went wrong in a launch.
enum StatusFlag : uint32_t {
  STATUS_OVERFLOW = 1,   // a record's rest starts or ends after the block
  STATUS_NO_ESCAPE = 2,  // a code 15 of planes:4 without an entry
  STATUS_OVERLAY = 4,    // an overlay names a row that the block lacks
};
struct Status {
  uint32_t flags;  // of StatusFlag
  uint32_t first;  // the least BlockJob::number or OverlayJob::number with a flag; 0xffffffff without
};
static_assert(sizeof(Status) == 8, "Status");

// The metadata of ibp and ibp:window.
struct IbpForm {
  uint64_t base;         // the one base, in every word of the 8 bytes; 0 without
  uint32_t elem_bits;    // bits of an element
  uint32_t word_bytes;   // bytes of a word of the window: 1, 2, 4 or 8
  uint32_t rotate;       // whether words were rotated
  uint32_t bases_len;    // bytes of the bases before they repeat; 0 where there is none per column
  uint32_t bases_at;     // where the bases start, from the form
  uint32_t chunk_bytes;  // 2, 4 or 8
  uint32_t period;       // groups of 8 bytes before they repeat
  uint32_t shift;        // where the kept bits of each chunk start, if they are one run there; else NO_SHIFT
  uint32_t groups_at;    // where the groups start: 8 bytes of kept bits, 8 of values of the others, each
  uint32_t steps_at;     // where the steps of the groups start, 6 words of 8 bytes each; 0 where shift does
  uint32_t reserved[4];  // 0
};
static_assert(sizeof(IbpForm) == 64, "IbpForm");
enum : uint32_t { NO_SHIFT = 0xffffffffu };

// The metadata of planes:4, planes:3 and planes:2-2-2.
struct PlanesForm {
  uint64_t dropped_value;  // the dropped bits, at their place
  uint32_t elem_bits;      // bits of a word
  uint32_t exponent_bits;  // bits of an exponent
  uint32_t byte_planes;    // planes of one byte per element
  uint32_t bit_planes;     // planes of one bit per element
  uint32_t dropped_first;  // the first dropped bit
  uint32_t dropped_bits;   // dropped bits
  uint32_t columns;        // columns of the bases before they repeat; 0 without bases
  uint32_t bases_at;       // where the bases start: 1 byte each, 2 where exponents have more than 8 bits
  uint32_t low[4];         // the low bytes of the exponents by their rank
  uint32_t high[4];        // the high bytes
  uint32_t reserved[2];    // 0
};
static_assert(sizeof(PlanesForm) == 80, "PlanesForm");

// The metadata of sparse.
struct SparseForm {
  uint64_t common;         // the common word, in every word of the 8 bytes
  uint32_t elem_bits;      // bits of an element
  uint32_t word_bytes;     // bytes of a word: 1, 2, 4 or 8
  uint32_t group_elems;    // words of a group: 8, 16, 32 or 64
  uint32_t index_bits;     // bits of an index
  uint32_t dictionary_at;  // where the 256 words of 8 bytes of the dictionary start; 0 without
  uint32_t reserved;       // 0
};
static_assert(sizeof(SparseForm) == 32, "SparseForm");
