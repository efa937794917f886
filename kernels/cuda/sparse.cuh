// sparse.cuh - codec sparse.
//
// A lane decodes 16 bytes of words: the bits that say which of them differ are found by the number of groups with a
// bit before theirs, and the words themselves by the number of differing words in the lanes before.
#pragma once
#include "records.cuh"

template <int W>
struct SparseCodec {
  SparseForm form;             // a copy: stores of raw bytes would make the compiler read it again
  const uint64_t* dictionary;  // in shared memory
  uint32_t elem_bits;

  enum : int { E = 16 / W };          // words of a lane
  enum : int { SPAN = E < 8 ? E : 8 };  // words of a lane that are in one group for sure

  // Replaces word `i` of v.
  DEV_MEMBER static void put(uint32_t (&v)[4], uint32_t i, uint64_t word) {
    const uint32_t shift = 8 * (W * i & 3), bits = W >= 4 ? 0xffffffffu : low32(8 * (W & 3)) << shift;
    UNROLL
    for (uint32_t k = 0; k < 4; k++) {
      // A mask instead of a branch: an array with a computed index would be in local memory.
      const uint32_t mask = W * i / 4 == k ? bits : 0, high = W == 8 && W * i / 4 + 1 == k ? 0xffffffffu : 0;
      v[k] = (v[k] & ~(mask | high)) | ((uint32_t)word << shift & mask) | ((uint32_t)(word >> 32) & high);
    }
  }

  // Decodes a record; gives the bytes of its body.
  template <int LANES>
  DEV_MEMBER uint32_t decode(const Team<LANES>& team, const BlockJob& job, const Record& record,
                             Status* status) const {
    const Body body = body_of(job, record, status);
    if (record.front[0] & RAW_RECORD) return copy_raw(team, job, record, body, status);
    const uint32_t n = record.raw_bytes / W, group = form.group_elems, log = 31 - __clz((int)group);
    const uint32_t n_groups = (n + group - 1) >> log;
    const bool whole = form.dictionary_at == 0 || (body.front[0] & 1);
    const uint32_t word_bits = whole ? 8 * W : form.index_bits;
    uint32_t marks[4], n_marked = 0;  // which groups have differing words
    UNROLL
    for (uint32_t k = 0; k < 4; k++) {
      marks[k] = 32 * k < n_groups ? bits32(body.front, 1 + 32 * k) & low32(least(n_groups - 32 * k, 32)) : 0;
      n_marked += __popc(marks[k]);
    }
    const uint32_t lacking = bits32(body.front, n_groups) & 1 ? (n_groups << log) - n : 0;
    const uint32_t elems_at = 1 + n_groups;
    uint32_t place = elems_at + (n_marked << log) - lacking;
    for (uint32_t start = 0; start < n; start += E * LANES) {
      const uint32_t first = start + E * team.lane;
      uint32_t differ = 0;
      UNROLL
      for (int s = 0; s < E; s += SPAN) {
        const uint32_t elem = first + s, number = elem >> log;
        uint32_t before = 0, marked = 0;
        UNROLL
        for (uint32_t k = 0; k < 4; k++) {
          const uint32_t mark = marks[k], here = k == number / 32 ? mark : 0;
          before += __popc(k < number / 32 ? mark : here & low32(number & 31));
          marked |= here >> (number & 31) & 1;
        }
        if (elem < n && marked) {
          const uint32_t at = elems_at + (before << log) + (elem & (group - 1));
          differ |= (uint32_t)take(body, at, least(SPAN, n - elem)) << s;
        }
      }
      uint32_t total = 0, mine = 0;
      if (__any_sync(team.mask, differ != 0)) mine = sum_before(team, __popc(differ), &total);
      uint32_t at = place + mine * word_bits;
      place += total * word_bits;
      uint32_t v[4] = {(uint32_t)form.common, (uint32_t)(form.common >> 32), (uint32_t)form.common,
                       (uint32_t)(form.common >> 32)};
      while (differ) {
        const uint32_t i = __ffs((int)differ) - 1;
        differ &= differ - 1;
        const uint64_t bits = take(body, at, word_bits);
        put(v, i, whole ? bits : dictionary[bits & 255]);
        at += word_bits;
      }
      if (first < n) store(record.out + W * first, uint4{v[0], v[1], v[2], v[3]}, W * (n - first));
    }
    if (!has_end(body, place)) report(status, job, STATUS_OVERFLOW);
    return (place + 7) / 8;
  }
};
