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
