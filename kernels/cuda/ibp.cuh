// ibp.cuh - codecs ibp and ibp:window.
//
// A lane decodes 16 bytes, two groups of 8, from their participation bits and from the packed bits, whose place is
// the sum of the lengths before it:
//
//   stored = the bits of the group that are stored; place = the sum of popcount(stored) over all lanes before
//   packed = take(place, popcount(stored)), cut into the chunks of the group
//   word = deposit(packed, kept bits) | values of the others, for chunks that participate; else packed
//
// The deposit is a shift where the kept bits of all chunks are one run at the same place, and else up to six steps,
// in all chunks of the group at once: FORMAT.md, section "Codec ibp", and kernels/src/cuda/form.rs.
#pragma once
#include "records.cuh"

// The parts of 8 bytes whose chunks participate, as masks.
DEV uint64_t participating(uint32_t parts, uint32_t chunk_bytes) {
  const uint32_t first = 0u - (parts & 1), second = 0u - (parts >> 1 & 1);
  if (chunk_bytes == 8) return join(first, first);
  if (chunk_bytes == 4) return join(first, second);
  const uint32_t third = 0u - (parts >> 2 & 1), fourth = 0u - (parts >> 3 & 1);
  return join((first & 0xffff) | second << 16, (third & 0xffff) | fourth << 16);
}

// Cuts packed bits into two chunks of 16 bits.
DEV uint32_t cut_half(uint32_t packed, uint32_t stored) {
  const uint32_t n = __popc(stored & 0xffff);
  return (packed & low32(n)) | (n < 32 ? packed >> n << 16 : 0);
}

// Cuts the packed bits of a group into its chunks, each at the bottom of its place.
DEV uint64_t cut(uint64_t packed, uint64_t stored, uint32_t chunk_bytes) {
  if (chunk_bytes == 8) return packed;
  const uint32_t n = __popc((uint32_t)stored);
  uint32_t low = (uint32_t)packed & low32(n), high = (uint32_t)(packed >> n);
  if (chunk_bytes == 2) {
    low = cut_half(low, (uint32_t)stored);
    high = cut_half(high, (uint32_t)(stored >> 32));
  }
  return join(low, high);
}

// Takes the window back in 8 bytes: adds the base to each word, then rotates it right by one bit.
DEV uint64_t unwindow(uint64_t v, uint64_t base, uint32_t word_bytes, uint32_t rotate) {
  uint32_t a = (uint32_t)v, b = (uint32_t)(v >> 32);
  const uint32_t c = (uint32_t)base, d = (uint32_t)(base >> 32);
  if (word_bytes == 1) {
    a = add_bytes(a, c), b = add_bytes(b, d);
    return rotate ? join(rotate_bytes(a), rotate_bytes(b)) : join(a, b);
  }
  if (word_bytes == 2) {
    a = add_halves(a, c), b = add_halves(b, d);
    return rotate ? join(rotate_halves(a), rotate_halves(b)) : join(a, b);
  }
  if (word_bytes == 4) {
    a += c, b += d;
    return rotate ? join(__funnelshift_r(a, a, 1), __funnelshift_r(b, b, 1)) : join(a, b);
  }
  v += base;
  return rotate ? v >> 1 | v << 63 : v;
}

// 8 bytes of global memory at any address.
DEV uint64_t load8(const unsigned char* p) {
  const uint32_t* words = (const uint32_t*)((uint64_t)p & ~3ull);
  const uint32_t shift = 8 * ((uint32_t)(uint64_t)p & 3);
  if (shift == 0) return join(words[0], words[1]);
  return join(__funnelshift_r(words[0], words[1], shift), __funnelshift_r(words[1], words[2], shift));
}

struct IbpCodec {
  IbpForm form;      // a copy: stores of raw bytes would make the compiler read it again
  uint64_t address;  // of the form
  uint32_t elem_bits;

  // What a deposit into group `i` gives for the bits that it keeps; the others are anything.
  DEV_MEMBER uint64_t deposit(uint64_t packed, uint32_t i) const {
    if (form.shift != NO_SHIFT) return packed << form.shift;
    const uint64_t* steps = (const uint64_t*)(address + form.steps_at) + 6 * i;
    UNROLL
    for (int s = 5; s >= 0; s--) {
      const uint64_t step = steps[s];
      packed = (packed & ~step) | (packed << (1 << s) & step);
    }
    return packed;
  }

  // The end of what the front may be followed by: a record without a rest reads on in the block, as on the CPU,
  // where that has what the longest record needs. Only damaged records do.
  DEV_MEMBER void read_on(const BlockJob& job, const Record& record, uint32_t n_chunks, Body* body) const {
    const uint32_t needed = (n_chunks + 7) / 8 + record.raw_bytes + 80;
    const uint32_t at = record.offset + 4, n_front = 4 * body->n_front;
    if (at + needed > job.stored_len || needed <= n_front) return;
    body->rest = (const unsigned char*)job.src + at + n_front;
    body->rest_len = needed - n_front;
  }

  // Decodes a record; gives the bytes of its body.
  template <int LANES>
  DEV_MEMBER uint32_t decode(const Team<LANES>& team, const BlockJob& job, const Record& record,
                             Status* status) const {
    Body body = body_of(job, record, status);
    if (record.front[0] & RAW_RECORD) return copy_raw(team, job, record, body, status);
    const uint32_t chunk_bytes = form.chunk_bytes, log = chunk_bytes == 8 ? 3 : chunk_bytes / 2;
    const uint32_t n_chunks = (record.raw_bytes + chunk_bytes - 1) >> log;
    if (!body.has_rest) read_on(job, record, n_chunks, &body);
    const uint32_t first_byte = record.first_elem * elem_bits / 8;
    const uint32_t first_group = form.period == 1 ? 0 : first_byte / 8 % form.period;
    const uint4* groups = (const uint4*)(address + form.groups_at);
    const unsigned char* bases = (const unsigned char*)(address + form.bases_at);
    if (form.bases_len) bases += first_byte % form.bases_len;
    uint32_t end = n_chunks;
    for (uint32_t start = 0; start < record.raw_bytes; start += 16 * LANES) {
      const uint32_t at = start + 16 * team.lane;
      uint64_t kept[2], values[2], parts[2], there[2];
      uint32_t n_bits[2];
      UNROLL
      for (int h = 0; h < 2; h++) {
        const uint32_t byte = at + 8 * h, left = byte < record.raw_bytes ? record.raw_bytes - byte : 0;
        kept[h] = values[h] = parts[h] = 0;
        there[h] = low64(8 * least(left, 8));
        if (left) {
          const uint4 group = groups[form.period == 1 ? 0 : first_group + byte / 8];
          kept[h] = join(group.x, group.y);
          values[h] = join(group.z, group.w);
          const uint32_t chunk = byte >> log;
          parts[h] = participating(body.front[chunk >> 5] >> (chunk & 31), chunk_bytes);
        }
        n_bits[h] = __popcll(((kept[h] & parts[h]) | ~parts[h]) & there[h]);
      }
      uint32_t total;
      uint32_t place = end + sum_before(team, n_bits[0] + n_bits[1], &total);
      end += total;
      uint64_t words[2];
      UNROLL
      for (int h = 0; h < 2; h++) {
        const uint64_t stored = ((kept[h] & parts[h]) | ~parts[h]) & there[h];
        const uint64_t packed = cut(take(body, place, n_bits[h]), stored, chunk_bytes);
        place += n_bits[h];
        const uint32_t i = form.period == 1 ? 0 : first_group + at / 8 + h;
        const uint64_t word = there[h] ? (deposit(packed, i) & kept[h]) | values[h] : 0;
        words[h] = (word & parts[h]) | (packed & ~parts[h]);
        const uint64_t base = form.bases_len && there[h] ? load8(bases + at + 8 * h) : form.base;
        words[h] = unwindow(words[h], base, form.word_bytes, form.rotate);
      }
      if (there[0]) {
        const uint4 v = {(uint32_t)words[0], (uint32_t)(words[0] >> 32), (uint32_t)words[1],
                         (uint32_t)(words[1] >> 32)};
        store(record.out + at, v, record.raw_bytes - at);
      }
    }
    if (!has_end(body, end)) report(status, job, STATUS_OVERFLOW);
    return (end + 7) / 8;
  }
};
