// bits.cuh - bits of a record that stands in shared memory and goes on in global memory; sums over lanes.
#pragma once
#include "shared.h"

// The lowest n bits, n at most 32.
DEV uint32_t low32(uint32_t n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1; }
// The lowest n bits, n at most 64.
DEV uint64_t low64(uint32_t n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }
DEV uint64_t join(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }
DEV uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Sums of four bytes, and of two halves; and their rotation right by one bit.
DEV uint32_t add_bytes(uint32_t a, uint32_t b) {
  return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
}
DEV uint32_t add_halves(uint32_t a, uint32_t b) {
  return ((a & 0x7fff7fffu) + (b & 0x7fff7fffu)) ^ ((a ^ b) & 0x80008000u);
}
DEV uint32_t rotate_bytes(uint32_t a) { return (a >> 1 & 0x7f7f7f7fu) | (a & 0x01010101u) << 7; }
DEV uint32_t rotate_halves(uint32_t a) { return (a >> 1 & 0x7fff7fffu) | (a & 0x00010001u) << 15; }

// 32 bits from bit `at` of words in shared memory; the word after them is read too.
DEV uint32_t bits32(const uint32_t* words, uint32_t at) {
  const uint32_t* p = words + (at >> 5);
  return __funnelshift_r(p[0], p[1], at & 31);
}

// 64 bits from bit `at`; the word after them is read too.
DEV uint64_t bits64(const uint32_t* words, uint32_t at) {
  const uint32_t* p = words + (at >> 5);
  const uint32_t middle = p[1];
  return join(__funnelshift_r(p[0], middle, at & 31), __funnelshift_r(middle, p[2], at & 31));
}

// A record's string of bytes.
struct Body {
  const uint32_t* front;      // what stands in the front, in shared memory
  uint32_t n_front;           // words of it
  uint32_t rest_len;          // bytes of the rest that may be there; what follows them reads as 0
  const unsigned char* rest;  // what follows the front, in global memory
  bool has_rest;              // whether the record must end within the rest
};

// Word i of the rest.
DEV uint32_t rest_word(const Body& body, uint32_t i) {
  const uint32_t at = 4 * i;
  if (at >= body.rest_len) return 0;
  const uint32_t left = body.rest_len - at;
  const uint64_t address = (uint64_t)(body.rest + at);
  const uint32_t* p = (const uint32_t*)(address & ~3ull);
  const uint32_t skip = (uint32_t)address & 3;
  uint32_t word = p[0] >> (8 * skip);
  // The next word is read only where some of its bytes are in the rest.
  if (skip + left > 4 && skip != 0) word |= p[1] << (32 - 8 * skip);
  return left < 4 ? word & low32(8 * left) : word;
}

// Word i of the string.
DEV uint32_t word_of(const Body& body, uint32_t i) {
  return i < body.n_front ? body.front[i] : rest_word(body, i - body.n_front);
}

// n bits from bit `at` of the string, n at most 64; those that are not there are 0.
DEV uint64_t take(const Body& body, uint32_t at, uint32_t n) {
  const uint32_t i = at >> 5;
  uint32_t a, b, c;
  if (i + 2 < body.n_front) {
    a = body.front[i], b = body.front[i + 1], c = body.front[i + 2];
  } else {
    a = word_of(body, i), b = word_of(body, i + 1), c = word_of(body, i + 2);
  }
  return join(__funnelshift_r(a, b, at & 31), __funnelshift_r(b, c, at & 31)) & low64(n);
}

// Whether the string has all bits before `end`.
DEV bool has_end(const Body& body, uint32_t end) {
  const uint32_t n_bytes = (end + 7) / 8, n_front = 4 * body.n_front;
  return !body.has_rest || n_bytes <= n_front || n_bytes - n_front <= body.rest_len;
}

// The lanes that decode one record: a warp, or a quarter of one.
template <int LANES>
struct Team {
  uint32_t lane;  // of this thread in its team
  uint32_t mask;  // of the team in its warp
};

template <int LANES>
DEV Team<LANES> team_of_thread() {
  const uint32_t in_warp = threadIdx.x & 31;
  const uint32_t first = in_warp & ~(uint32_t)(LANES - 1);
  return Team<LANES>{in_warp - first, LANES == 32 ? FULL : low32(LANES) << first};
}

// The sum of v over the lanes before this one, and over all of the team.
template <int LANES>
DEV uint32_t sum_before(const Team<LANES>& team, uint32_t v, uint32_t* total) {
  uint32_t sum = v;
  UNROLL
  for (int d = 1; d < LANES; d <<= 1) {
    const uint32_t other = __shfl_up_sync(team.mask, sum, d, LANES);
    if (team.lane >= (uint32_t)d) sum += other;
  }
  *total = __shfl_sync(team.mask, sum, LANES - 1, LANES);
  return sum - v;
}
