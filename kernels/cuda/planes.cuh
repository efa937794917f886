// planes.cuh - codecs planes:4, planes:3 and planes:2-2-2.
//
// A lane decodes 16 bytes, the words of E neighboring elements of one group:
//
//   codes:     four bits per element, whatever the schedule: its rank, or 15 for an escape
//   exponents: a byte per element, looked up in a table of 16 bytes in registers by __byte_perm; bases are added
//   escapes:   bisected in the list of the block, or read after the tiers, by the number of escapes before
//   kept bits: a byte per element of each byte plane, and one of the bit planes
//   words:     the bytes of each element put together, the dropped bits put in, rotated right by one bit
//
// Source: FORMAT.md, section "Codecs planes".
#pragma once
#include "codes.cuh"

// W: bytes of a word. S: bits of a code, 4, 3 or 2. K: 0; or for plain records of the usual floats the bits of an
// exponent, which fix all that the form says: no bits are dropped, there are no bases, every group has 64 elements, and
// the raw bytes are aligned.
template <int W, int S, int K = 0>
struct PlanesCodec {
  PlanesForm form;  // a copy: stores of raw bytes would make the compiler read it again
  uint64_t address;  // of the form
  uint32_t elem_bits;

  enum : int {
    E = 16 / W,                                        // elements of a lane
    V = E < 4 ? 1 : E / 4,                             // words of a byte per element
    C = E > 8 ? 2 : 1,                                 // words of four bits per element
    MAX_BYTE_PLANES = W == 8 ? 6 : W == 4 ? 3 : W - 1  // of any dtype of this size
  };

  DEV_MEMBER uint32_t exponent_bits() const { return K ? K : form.exponent_bits; }
  DEV_MEMBER uint32_t byte_planes() const { return K ? (8 * W - K) / 8 : form.byte_planes; }
  DEV_MEMBER uint32_t bit_planes() const { return K ? (8 * W - K) % 8 : form.bit_planes; }
  DEV_MEMBER uint32_t dropped_bits() const { return K ? 0 : form.dropped_bits; }
  DEV_MEMBER uint32_t columns() const { return K ? 0 : form.columns; }
  DEV_MEMBER uint32_t code_bits(uint32_t m) const { return S == 4 ? (m + 1) / 2 * 8 : S * m; }
  DEV_MEMBER uint32_t group_bits(uint32_t m) const { return code_bits(m) + bit_planes() * m; }
  DEV_MEMBER uint32_t fixed_bits(uint32_t n) const {
    return 8 * n * byte_planes() + n / 64 * group_bits(64) + group_bits(n % 64);
  }

  DEV_MEMBER Spot spot(const Record& record, uint32_t first) const {
    Spot s;
    s.first = first;
    s.n = first < record.n_elems ? least(K ? 64 : record.n_elems - first, E) : 0;
    s.group = first / 64;
    s.in_group = first % 64;
    s.m = K ? 64 : s.n ? least(record.n_elems - 64 * s.group, 64) : 0;
    s.at = 8 * record.n_elems * byte_planes() + s.group * group_bits(64);
    return s;
  }

  // The kept bits of a lane's elements as bytes: those of byte plane p at bytes[p], the bits that fill no byte after.
  DEV_MEMBER void kept(const Body& body, const Record& record, const Spot& s, uint32_t (&bytes)[8][V]) const {
    uint32_t part[V];
    UNROLL
    for (int v = 0; v < V; v++) part[v] = 0;
    const uint32_t at = s.at + code_bits(s.m) + s.in_group;
    for (uint32_t p = 0; p < bit_planes(); p++) {
      const uint32_t bits = bits32(body.front, at + p * s.m);
      UNROLL
      for (int v = 0; v < V; v++) part[v] |= bits_to_bytes(bits >> (4 * v)) << p;
    }
    UNROLL
    for (int p = 0; p < 8; p++) {
      const bool whole = p < MAX_BYTE_PLANES && (uint32_t)p < byte_planes();
      if (whole) load_bytes<K != 0>(body.front, p * record.n_elems + s.first, bytes[p]);
      UNROLL
      for (int v = 0; v < V; v++) {
        if (!whole) bytes[p][v] = p <= MAX_BYTE_PLANES && (uint32_t)p == byte_planes() ? part[v] : 0;
      }
    }
  }

  // The exponents of a lane's elements, less their escapes: low bytes, and of F64 the high bytes.
  DEV_MEMBER void exponents(const Spot& s, uint32_t base_at, const uint32_t (&codes)[C], uint32_t (&low)[V],
                            uint32_t (&high)[V]) const {
    UNROLL
    for (int v = 0; v < V; v++) {
      const uint32_t four = codes[v / 2] >> (16 * (v & 1)) & 0xffff;
      low[v] = look_up(form.low, four);
      high[v] = W == 8 ? look_up(form.high, four) : 0;
    }
    if (columns() == 0) return;
    const unsigned char* bases = (const unsigned char*)(address + form.bases_at);
    if (W == 8) {
      const uint16_t* base = (const uint16_t*)bases + base_at + s.first;
      const uint32_t a = (low[0] & 255) + (high[0] & 255) * 256 + base[0];
      const uint32_t b = (low[0] >> 8 & 255) + (high[0] >> 8 & 255) * 256 + base[1];
      low[0] = (a & 255) | (b & 255) << 8;
      high[0] = (a >> 8 & 7) | (b >> 8 & 7) << 8;
      return;
    }
    uint32_t added[V];
    load_global_bytes(bases + base_at + s.first, added);
    const uint32_t mask = low32(exponent_bits()) * 0x01010101u;
    UNROLL
    for (int v = 0; v < V; v++) low[v] = add_bytes(low[v], added[v]) & mask;
  }

  // The words of a lane's elements, of their exponents and kept bits.
  DEV_MEMBER uint4 words(const uint32_t (&low)[V], const uint32_t (&high)[V], const uint32_t (&bytes)[8][V]) const {
    const uint32_t n = dropped_bits(), first = n ? form.dropped_first : 0;
    const uint32_t value = n ? (uint32_t)form.dropped_value : 0;
    uint32_t w[4];
    if (W == 1) {
      const uint32_t below = low32(first) * 0x01010101u, all = value * 0x01010101u;
      UNROLL
      for (int v = 0; v < V; v++) {
        const uint32_t grown = n ? (bytes[0][v] & below) | all | (bytes[0][v] & ~below) << n : bytes[0][v];
        w[v] = rotate_bytes(low[v] << (8 - exponent_bits()) | grown);
      }
    } else if (W == 2) {
      const uint32_t below = low32(first) * 0x00010001u, all = value * 0x00010001u;
      UNROLL
      for (int k = 0; k < 4; k++) {
        const uint32_t select = k & 1 ? 0x7362 : 0x5140, v = k / 2 < V ? k / 2 : 0;
        const uint32_t half = __byte_perm(bytes[0][v], bytes[1][v], select);
        const uint32_t exponent = __byte_perm(low[v], 0, k & 1 ? 0x4342 : 0x4140);
        const uint32_t grown = n ? (half & below) | all | (half & ~below) << n : half;
        w[k] = rotate_halves(exponent << (16 - exponent_bits()) | grown);
      }
    } else if (W == 4) {
      const uint32_t below = low32(first);
      const uint32_t a = __byte_perm(bytes[0][0], bytes[1][0], 0x5140), b = __byte_perm(bytes[0][0], bytes[1][0], 0x7362);
      const uint32_t c = __byte_perm(bytes[2][0], 0, 0x4140), d = __byte_perm(bytes[2][0], 0, 0x4342);
      w[0] = __byte_perm(a, c, 0x5410), w[1] = __byte_perm(a, c, 0x7632);
      w[2] = __byte_perm(b, d, 0x5410), w[3] = __byte_perm(b, d, 0x7632);
      UNROLL
      for (int k = 0; k < 4; k++) {
        const uint32_t grown = n ? (w[k] & below) | value | (w[k] & ~below) << n : w[k];
        const uint32_t rotated = (low[0] >> (8 * k) & 255) << 24 | grown;
        w[k] = __funnelshift_r(rotated, rotated, 1);
      }
    } else {
      UNROLL
      for (int k = 0; k < 2; k++) {
        uint64_t kept = 0;
        UNROLL
        for (int p = 0; p < 7; p++) kept |= (uint64_t)(bytes[p][0] >> (8 * k) & 255) << (8 * p);
        const uint64_t below = low64(first), grown = (kept & below) | form.dropped_value | (kept & ~below) << n;
        const uint64_t exponent = (low[0] >> (8 * k) & 255) | (high[0] >> (8 * k) & 7) << 8;
        const uint64_t rotated = exponent << 53 | grown, word = rotated >> 1 | rotated << 63;
        w[2 * k] = (uint32_t)word, w[2 * k + 1] = (uint32_t)(word >> 32);
      }
    }
    return uint4{w[0], w[1], w[2], w[3]};
  }

  // The exponent of an element of planes:4 that has an escape code, by bisection; without an entry it is reported.
  DEV_MEMBER uint32_t listed(const BlockJob& job, uint32_t elem, Status* status) const {
    const uint32_t at = HEADER_BYTES + job.front_len, n = (job.stored_len - at) / 4;
    const uint32_t* list = (const uint32_t*)(job.src + at);
    uint32_t first = 0, last = n;
    while (first < last) {
      const uint32_t middle = (first + last) / 2;
      if ((list[middle] & 0x3ffff) < elem) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    const uint32_t entry = first < n ? list[first] : 0;
    if (first < n && (entry & 0x3ffff) == elem) return entry >> 18;
    report(status, job, STATUS_NO_ESCAPE);
    return 0;
  }

  // The codes of a lane's elements, four bits each, and 15 for an escape; 0 for elements that are not there.
  template <int LANES>
  DEV_MEMBER void codes(const Team<LANES>& team, const Body& body, const Spot& s, const Tiers<LANES>& tiers,
                        uint32_t (&codes)[C]) const {
    UNROLL
    for (int c = 0; c < C; c++) codes[c] = 0;
    if (S == 4) {
      if (s.n) nibbles<E, K != 0>(body.front, s, codes);
    } else if (S == 3) {
      UNROLL
      for (int c = 0; c < C; c++) {
        const uint32_t at = s.at + s.in_group + 8 * c;
        UNROLL
        for (int p = 0; p < 3; p++) {
          if (s.n) codes[c] |= bits_to_nibbles(bits32(body.front, at + p * s.m)) << p;
        }
        codes[c] |= (codes[c] & codes[c] >> 1 & codes[c] >> 2 & 0x11111111u) << 3;
      }
    } else {
      tiers.codes(team, body, s, codes);
    }
    UNROLL
    for (int c = 0; c < C; c++) codes[c] &= s.n > (uint32_t)(8 * c) ? low32(4 * least(s.n - 8 * c, 8)) : 0;
  }

  // Whether a record of planes:4 has a code 15.
  template <int LANES>
  DEV_MEMBER bool has_escape(const Team<LANES>& team, const Record& record) const {
    const Body body = {record.front, record.n_front, 0, nullptr, false};
    const Tiers<LANES> none = {};
    uint32_t found = 0;
    for (uint32_t start = 0; start < record.n_elems; start += E * LANES) {
      uint32_t ranks[C];
      codes(team, body, spot(record, start + E * team.lane), none, ranks);
      UNROLL
      for (int c = 0; c < C; c++) found |= ranks[c] & ranks[c] >> 1 & ranks[c] >> 2 & ranks[c] >> 3 & 0x11111111u;
    }
    return __any_sync(team.mask, found != 0);
  }

  // Decodes the elements of a packed record, whose tiers have been found; gives the bytes of its body.
  template <int LANES>
  DEV_MEMBER uint32_t elements(const Team<LANES>& team, const BlockJob& job, const Record& record, const Body& body,
                           const Tiers<LANES>& tiers, uint32_t escapes_at, Status* status) const {
    const uint32_t base_at = columns() ? record.first_elem % columns() : 0;
    for (uint32_t start = 0; start < record.n_elems; start += E * LANES) {
      const Spot s = spot(record, start + E * team.lane);
      uint32_t ranks[C], escaped[C], low[V] = {}, high[V] = {}, n_escaped = 0;
      codes(team, body, s, tiers, ranks);
      UNROLL
      for (int c = 0; c < C; c++) {
        escaped[c] = ranks[c] & ranks[c] >> 1 & ranks[c] >> 2 & ranks[c] >> 3 & 0x11111111u;
        n_escaped += __popc(escaped[c]);
      }
      if (s.n) exponents(s, base_at, ranks, low, high);
      uint32_t place = escapes_at;
      if (S != 4 && __any_sync(team.mask, n_escaped != 0)) {
        uint32_t total;
        place += sum_before(team, n_escaped, &total) * exponent_bits();
        escapes_at += total * exponent_bits();
      }
      UNROLL
      for (int c = 0; c < C; c++) {
        while (escaped[c]) {
          const uint32_t i = 8 * c + (__ffs((int)escaped[c]) - 1) / 4;
          escaped[c] &= escaped[c] - 1;
          uint32_t exponent;
          if (S == 4) {
            exponent = listed(job, record.block_elem + s.first + i, status) & low32(exponent_bits());
          } else {
            exponent = (uint32_t)take(body, place, exponent_bits());
            place += exponent_bits();
          }
          put_byte(low, i, exponent & 255);
          if (W == 8) put_byte(high, i, exponent >> 8);
        }
      }
      if (s.n) {
        uint32_t bytes[8][V];
        kept(body, record, s, bytes);
        if (K) {
          *(uint4*)(record.out + W * s.first) = words(low, high, bytes);
        } else {
          store(record.out + W * s.first, words(low, high, bytes), W * s.n);
        }
      }
    }
    if (S != 4 && !has_end(body, escapes_at)) report(status, job, STATUS_OVERFLOW);
    return (escapes_at + 7) / 8;
  }

  // Decodes a record; gives the bytes of its body.
  template <int LANES>
  DEV_MEMBER uint32_t decode(const Team<LANES>& team, const BlockJob& job, const Record& record,
                             Status* status) const {
    Body body = {record.front, record.n_front, 0, nullptr, false};
    if (S != 4) {
      body = body_of(job, record, status);
      if (record.front[0] & RAW_RECORD) return copy_raw(team, job, record, body, status);
    }
    uint32_t end = fixed_bits(record.n_elems);
    Tiers<LANES> tiers;
    if (S == 2) {
      end = tiers.find(team, body, record.n_elems, 8 * record.n_elems * byte_planes(), group_bits(64), end);
    }
    if constexpr (LANES == 32 && (W == 2 || W == 4)) {
      const bool aligned = record.n_elems % 64 == 0 && ((uint32_t)(uint64_t)record.out & 15) == 0;
      if (aligned && form.dropped_bits == 0 && form.columns == 0) {
        if (W == 4 || form.exponent_bits == 8) {
          return PlanesCodec<W, S, 8>{form, address, elem_bits}.elements(team, job, record, body, tiers, end, status);
        }
        if constexpr (W == 2) {
          return PlanesCodec<W, S, 5>{form, address, elem_bits}.elements(team, job, record, body, tiers, end, status);
        }
      }
    }
    return elements(team, job, record, body, tiers, end, status);
  }
};
