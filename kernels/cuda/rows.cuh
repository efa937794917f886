// rows.cuh - where one row of a tensor is stored: its block word, the overlays over its block, the block.
//
// What is read of the pool is read by one lane and handed to the others, or only counted, so that lanes go on together
// even while the bytes change. Nothing is read outside the segment.
#pragma once
#include "gather.h"
#include "overlay.cuh"

enum : uint32_t {
  UNIT_BYTES = 64,
  SPAN_UNIT_BITS = 20,  // a segment has 2^20 units of addresses
  MAX_CHAIN = 8,
  TOTAL_LEN_WORD = 9,  // of a block's header
  MAX_BLOCK_RAW_BYTES = 1u << 20,
};
enum : uint64_t {
  WORD_OFFSET = (1ull << 35) - 1,
  WORD_RESIDENT = 1ull << 43,
  WORD_OVERLAY = 1ull << 44,
  WORD_RAW = 1ull << 45,
  OVERLAY_MAGIC = 0x594c5245564f5054ull,  // "TPOVERLY"
};
enum : uint32_t { WORD_FORM_SHIFT = 35 };

// Bytes of the pool.
struct Stored {
  uint64_t address;  // 0: not there
  uint64_t room;     // bytes up to the end of the segment
};

DEV Stored find_stored(const GatherTensor& tensor, uint64_t word) {
  const uint64_t units = word & WORD_OFFSET, index = units >> SPAN_UNIT_BITS;
  if (!(word & WORD_RESIDENT) || index >= tensor.n_segments) return Stored{0, 0};
  const Segment segment = ((const Segment*)tensor.segments)[index];
  const uint64_t at = (units & ((1ull << SPAN_UNIT_BITS) - 1)) * UNIT_BYTES;
  if (segment.address == 0 || at >= segment.bytes) return Stored{0, 0};
  return Stored{segment.address + at, segment.bytes - at};
}

// How many of n numbers in ascending order are below `wanted`; all lanes search together. Each has `mask` to compare.
template <int LANES>
DEV uint32_t count_below(const Team<LANES>& team, const uint32_t* numbers, uint32_t n, uint32_t mask, uint32_t wanted) {
  uint32_t first = 0, last = n;
  while (first < last) {
    const uint32_t step = (last - first + LANES - 1) / LANES, at = first + team.lane * step;
    const bool below = at < last && (numbers[at] & mask) < wanted;
    const uint32_t count = __popc(__ballot_sync(team.mask, below));
    if (count == 0) return first;
    last = least(last, first + count * step);
    first += (count - 1) * step + 1;
  }
  return first;
}

// A row in the pool.
struct Source {
  uint32_t what;
  uint32_t form;     // ENCODED: index of the generation
  uint64_t address;  // PLAIN: of its first byte; ENCODED: of the block's header
  uint64_t room;     // ENCODED: bytes up to the end of the segment
};
enum SourceWhat : uint32_t { ABSENT, DAMAGED, PLAIN, ENCODED };

// Looks for a row in an overlay: whether it is there, or the word below.
template <int LANES>
DEV bool find_in_overlay(const Team<LANES>& team, const Stored& stored, const GatherGrid& grid, uint32_t row,
                         Source* source, uint64_t* covered) {
  *covered = 0;
  if (stored.room < UNIT_BYTES) return false;
  const uint64_t field = team.lane < 7 ? ((const uint64_t*)stored.address)[team.lane] : 0;
  const uint64_t magic = __shfl_sync(team.mask, field, 0, LANES), below = __shfl_sync(team.mask, field, 1, LANES);
  const uint64_t n_rows = __shfl_sync(team.mask, field, 2, LANES), row_bytes = __shfl_sync(team.mask, field, 3, LANES);
  const uint64_t rows_at = __shfl_sync(team.mask, field, 4, LANES), len = __shfl_sync(team.mask, field, 6, LANES);
  if (magic != OVERLAY_MAGIC || n_rows > grid.rows || row_bytes != grid.row_bytes) return false;
  if (rows_at != ((OVERLAY_NUMBERS_AT + 4 * n_rows + UNIT_BYTES - 1) & ~(uint64_t)(UNIT_BYTES - 1))) return false;
  if (len != rows_at + n_rows * row_bytes || len > stored.room) return false;
  const uint32_t* numbers = (const uint32_t*)(stored.address + OVERLAY_NUMBERS_AT);
  const uint32_t at = count_below(team, numbers, (uint32_t)n_rows, 0xffffffffu, row);
  const bool is_there = team.lane == 0 && at < n_rows && numbers[at] == row;
  if (__any_sync(team.mask, is_there)) {
    source->what = PLAIN;
    source->address = stored.address + rows_at + (uint64_t)at * row_bytes;
    return true;
  }
  *covered = below;
  return false;
}

// Finds a row, or a piece of one, by the word of its block.
template <int LANES>
DEV Source find_row(const Team<LANES>& team, const GatherTensor& tensor, uint64_t word, const GatherGrid& grid,
                    bool last, uint32_t row) {
  Source source = {ABSENT, 0, 0, 0};
  for (uint32_t depth = 0; depth <= MAX_CHAIN; depth++) {
    const Stored stored = find_stored(tensor, word);
    if (stored.address == 0) return source;
    if (word & WORD_OVERLAY) {
      uint64_t covered;
      if (find_in_overlay(team, stored, grid, row, &source, &covered)) return source;
      if (covered == 0) break;
      word = covered;
      continue;
    }
    if (word & WORD_RAW) {
      if (HEADER_BYTES + (uint64_t)grid.rows * grid.row_bytes > stored.room) break;
      source.what = PLAIN;
      source.address = stored.address + HEADER_BYTES + (uint64_t)row * grid.row_bytes;
      return source;
    }
    source.form = (uint32_t)(word >> WORD_FORM_SHIFT) & 255;
    if (source.form >= MAX_FORMS || tensor.forms[source.form].codec == 0) return source;
    const GatherForm& form = tensor.forms[source.form];
    const uint64_t front = (uint64_t)grid.runs * ((grid.records - 1) * form.record_stride + form.tail_stride[last]);
    if (HEADER_BYTES + front > stored.room) break;
    source.what = ENCODED;
    source.address = stored.address;
    source.room = stored.room;
    return source;
  }
  source.what = DAMAGED;
  return source;
}
