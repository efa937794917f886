// codes.cuh - the codes of the codecs planes: four bits per element, from nibbles, bit planes or tiers.
#pragma once
#include "records.cuh"

// Bits 0 to 7, each at the bottom of four bits.
DEV uint32_t bits_to_nibbles(uint32_t bits) {
  bits &= 255;
  bits = (bits | bits << 12) & 0x000f000fu;
  bits = (bits | bits << 6) & 0x03030303u;
  return (bits | bits << 3) & 0x11111111u;
}

// Bits 0 to 3, each at the bottom of a byte.
DEV uint32_t bits_to_bytes(uint32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// Bytes of at most four bits, moved together.
DEV uint32_t bytes_to_nibbles(uint32_t bytes) {
  bytes = (bytes | bytes >> 4) & 0x00ff00ffu;
  return (bytes | bytes >> 8) & 0xffffu;
}

// The bytes of a table of 16 at four places of four bits.
DEV uint32_t look_up(const uint32_t (&table)[4], uint32_t places) {
  const uint32_t select = places & 0x7777;
  const uint32_t upper = __byte_perm(0xff00, 0, places >> 3 & 0x1111);
  return (__byte_perm(table[0], table[1], select) & ~upper) | (__byte_perm(table[2], table[3], select) & upper);
}

// Replaces byte i.
template <int V>
DEV void put_byte(uint32_t (&bytes)[V], uint32_t i, uint32_t byte) {
  const uint32_t shift = 8 * (i & 3);
  UNROLL
  for (int v = 0; v < V; v++) {
    // A mask instead of a branch: an array with a computed index would be in local memory.
    const uint32_t mask = i / 4 == (uint32_t)v ? 255u << shift : 0;
    bytes[v] = (bytes[v] & ~mask) | (byte << shift & mask);
  }
}

// Bytes from byte `at` of words in shared memory; the word after them may be read too, unless `at` is known to be
// a multiple of 4.
template <bool ALIGNED, int V>
DEV void load_bytes(const uint32_t* words, uint32_t at, uint32_t (&bytes)[V]) {
  const uint32_t* p = words + at / 4;
  const uint32_t shift = 8 * (at & 3);
  if (ALIGNED || shift == 0) {
    UNROLL
    for (int v = 0; v < V; v++) bytes[v] = p[v];
  } else {
    UNROLL
    for (int v = 0; v < V; v++) bytes[v] = __funnelshift_r(p[v], p[v + 1], shift);
  }
}

// The same of global memory, at any address.
template <int V>
DEV void load_global_bytes(const unsigned char* from, uint32_t (&bytes)[V]) {
  load_bytes<false>((const uint32_t*)((uint64_t)from & ~3ull), (uint32_t)(uint64_t)from & 3, bytes);
}

// Where the elements of a lane are in their record.
struct Spot {
  uint32_t first;     // the first element
  uint32_t n;         // how many there are
  uint32_t group;     // their group
  uint32_t in_group;  // the first element's place in it
  uint32_t m;         // elements of the group
  uint32_t at;        // the bit at which the group starts
};

// The codes of planes:4 of E elements; those after the last element are anything.
template <int E, bool ALIGNED, int C>
DEV void nibbles(const uint32_t* front, const Spot& s, uint32_t (&codes)[C]) {
  const uint32_t at = s.at / 8;
  if (s.m == 64) {
    uint32_t bytes[E < 4 ? 1 : E / 4];
    load_bytes<ALIGNED>(front, at + (s.in_group & 31), bytes);
    UNROLL
    for (int v = 0; v < (E < 4 ? 1 : E / 4); v++) {
      codes[v / 2] |= bytes_to_nibbles(bytes[v] >> (s.in_group / 32 * 4) & 0x0f0f0f0fu) << (16 * (v & 1));
    }
    return;
  }
  const unsigned char* bytes = (const unsigned char*)front + at;
  const uint32_t half = (s.m + 1) / 2;
  UNROLL
  for (uint32_t i = 0; i < E; i++) {
    const uint32_t elem = s.in_group + i;
    if (i < s.n) codes[i / 8] |= (elem < half ? bytes[elem] & 15 : bytes[elem - half] >> 4 & 15) << (4 * (i & 7));
  }
}

// Where the second tier of each group of a planes:2-2-2 record is; lane i has that of group i.
template <int LANES>
struct Tiers {
  uint32_t at;  // the bit at which it starts
  uint32_t n;   // its elements

  // Finds the tiers of a record whose groups start at bit `groups_at`, of group_bits each, and whose tiers start at
  // bit `end`; gives the bit after them.
  DEV_MEMBER uint32_t find(const Team<LANES>& team, const Body& body, uint32_t n_elems, uint32_t groups_at,
                           uint32_t group_bits, uint32_t end) {
    const uint32_t n_groups = (n_elems + 63) / 64;
    at = end, n = 0;
    if (team.lane < n_groups) {
      const uint32_t m = least(n_elems - 64 * team.lane, 64), first = groups_at + team.lane * group_bits;
      n = __popcll(bits64(body.front, first) & bits64(body.front, first + m) & low64(m));
    }
    // Each tier's place depends on the bits of the one before it, so all lanes go through all groups together.
    for (uint32_t group = 0; group < n_groups; group++) {
      const uint32_t second = __shfl_sync(team.mask, n, group, LANES);
      if (team.lane == group) at = end;
      if (second) end += 2 * (second + __popcll(take(body, end, second) & take(body, end + second, second)));
    }
    return end;
  }

  // The ranks of a lane's elements, 15 for an escape; those after the last element are anything.
  template <int C>
  DEV_MEMBER void codes(const Team<LANES>& team, const Body& body, const Spot& s, uint32_t (&codes)[C]) const {
    const uint32_t second_at = __shfl_sync(team.mask, at, s.group & (LANES - 1), LANES);
    const uint32_t n_second = __shfl_sync(team.mask, n, s.group & (LANES - 1), LANES);
    if (s.n == 0) return;
    const uint64_t a = bits64(body.front, s.at), b = bits64(body.front, s.at + s.m), both = a & b & low64(s.m);
    UNROLL
    for (int c = 0; c < C; c++) {
      const uint32_t shift = s.in_group + 8 * c;
      codes[c] = bits_to_nibbles((uint32_t)(a >> shift)) | bits_to_nibbles((uint32_t)(b >> shift)) << 1;
    }
    uint32_t left = (uint32_t)(both >> s.in_group) & low32(s.n);
    if (left == 0) return;
    const uint32_t before = __popcll(both & low64(s.in_group));
    uint64_t c = take(body, second_at, n_second), d = take(body, second_at + n_second, n_second);
    const uint64_t third = c & d;
    const uint32_t third_at = second_at + 2 * n_second, n_third = __popcll(third);
    // At most 63 where an element of this lane is in the third tier.
    const uint32_t skipped = __popcll(third & low64(before)) & 63;
    uint64_t e = take(body, third_at, n_third) >> skipped, f = take(body, third_at + n_third, n_third) >> skipped;
    c >>= before, d >>= before;
    while (left) {
      const uint32_t i = __ffs((int)left) - 1;
      left &= left - 1;
      uint32_t rank = 3 + ((uint32_t)c & 1) + 2 * ((uint32_t)d & 1);
      c >>= 1, d >>= 1;
      if (rank == 6) {
        rank += ((uint32_t)e & 1) + 2 * ((uint32_t)f & 1);
        if (rank == 9) rank = 15;
        e >>= 1, f >>= 1;
      }
      UNROLL
      for (int k = 0; k < C; k++) {
        const uint32_t mask = i / 8 == (uint32_t)k ? 15u << (4 * (i & 7)) : 0;
        codes[k] = (codes[k] & ~mask) | (rank << (4 * (i & 7)) & mask);
      }
    }
  }
};
