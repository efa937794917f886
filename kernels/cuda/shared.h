// shared.h - what the host and the kernels hand each other; kernels/src/cuda/abi.rs has the same structs.
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

// Metadata as kernels read them; kernels/src/cuda/form.rs says what stands where.
struct IbpForm {
  uint64_t base;
  uint32_t elem_bits, word_bytes, rotate, bases_len, bases_at, chunk_bytes, period, shift, groups_at, steps_at;
  uint32_t reserved[4];
};
struct PlanesForm {
  uint64_t dropped_value;
  uint32_t elem_bits, exponent_bits, byte_planes, bit_planes, dropped_first, dropped_bits, columns, bases_at;
  uint8_t low[16], high[16];
  uint32_t ranks_at, reserved;
};
struct SparseForm {
  uint64_t common;
  uint32_t elem_bits, word_bytes, group_elems, index_bits, dictionary_at, slots_at;
};
static_assert(sizeof(IbpForm) == 64 && sizeof(PlanesForm) == 80 && sizeof(SparseForm) == 32, "forms");

// One block to encode. Its work memory holds an EncodeResult, then a RecordNote per record, the slots, the output.
struct EncodeJob {
  uint64_t raw;            // address of the block's first raw byte, of any alignment
  uint64_t form;           // address of the prepared metadata, a multiple of 16
  uint64_t work;           // address of the job's work memory, a multiple of 16
  uint32_t raw_len;        // raw bytes of the block
  uint32_t runs;           // runs of the block
  uint32_t records;        // records of each run
  uint32_t record_bytes;   // raw bytes of a full record
  uint32_t tail_bytes;     // raw bytes of the last record of each run
  uint32_t record_stride;  // bytes of a full record in the front
  uint32_t tail_stride;    // bytes of the last record of a run in the front
  uint32_t front_len;      // bytes of the front
  uint32_t slots_at;       // where the slots start, from work: a packed record each
  uint32_t slot_bytes;     // bytes of a slot, a multiple of 16
  uint32_t list_at;        // where its escapes start, from a slot of planes:4; 0 for the other codecs
  uint32_t out_at;         // where front and overflow go, from work
  uint32_t reserved[2];    // 0
};
static_assert(sizeof(EncodeJob) == 80, "EncodeJob");

// What packing a record gave.
struct RecordNote {
  uint32_t body;           // its bytes, and NoteFlags
  uint32_t chunks;         // chunks, or elements
  uint32_t participating;  // those that the metadata shortened
  uint32_t rest_at;        // where its rest, or its list of escapes, starts in the overflow
};
enum NoteFlag : uint32_t {
  NOTE_RAW = 1u << 31,    // the body is the record's raw bytes, and stands in no slot
  NOTE_UNFIT = 1u << 30,  // the record makes the whole block raw
};
static_assert(sizeof(RecordNote) == 16, "RecordNote");

// What encoding a block gave.
struct EncodeResult {
  uint32_t overflow_len;   // bytes of the overflow
  uint32_t unfit;          // 1: a record makes the whole block raw
  uint32_t chunks;         // of all records
  uint32_t participating;
};
static_assert(sizeof(EncodeResult) == 16, "EncodeResult");

// Bytes to count in.
struct CountJob {
  uint64_t src;        // address of the first byte: of any alignment for count_bits, else that of a word
  uint64_t counts;     // address of the counters, 4 bytes each; count_exponents: two words of 8 bytes before them
  uint64_t bases;      // address of an exponent to subtract for each column, 2 bytes each; 0 without
  uint32_t len;        // bytes
  uint32_t period;     // count_bits: bytes after which the counters repeat; count_exponents: columns after which they do
  uint32_t word_bytes; // count_exponents: bytes of a word
  uint32_t exponent_bits;
  uint32_t columns;    // count_exponents: columns after which the bases repeat
  uint32_t reserved;
};
static_assert(sizeof(CountJob) == 48, "CountJob");
