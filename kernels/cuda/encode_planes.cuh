// encode_planes.cuh - packs records of planes:4, planes:3 and planes:2-2-2; FORMAT.md, section "Codecs planes".
//
// Of a group of m elements, lane i has elements i and ceil(m / 2) + i: those whose codes share a byte in planes:4.
// A bit plane is then two ballots, and one lane writes each plane.
#pragma once
#include "encode.cuh"

namespace encode {

enum Schedule { FOUR, THREE, TIERS };

template <Schedule S> struct PlanesEncoder {
  // One element of a group, or none.
  struct Element {
    bool there;
    uint32_t number;  // in the record
    uint32_t exponent;
    uint32_t rank;  // 255 = escape; 0 where there is no element
    uint64_t kept;
  };

  const PlanesForm* form;
  const unsigned char* raw;
  const unsigned char* ranks;
  const unsigned char* bases;  // those of the record's first element and the next
  uint32_t word_bytes, n;

  DEV_MEMBER uint64_t rotated(uint32_t i) const {
    const uint32_t bits = form->elem_bits;
    const uint64_t word = load_word(raw, i, word_bytes);
    return (word << 1 | word >> (bits - 1)) & low_bits(bits);
  }

  DEV_MEMBER uint64_t kept_of(uint64_t rotated) const {
    const uint64_t lower = rotated & low_bits(form->elem_bits - form->exponent_bits);
    const uint64_t first = low_bits(form->dropped_first);
    return (lower & first) | (lower >> form->dropped_bits & ~first);
  }

  DEV_MEMBER Element element(uint32_t i, bool there) const {
    Element e = {there, i, 0, 0, 0};
    if (there) {
      const uint64_t word = rotated(i);
      const uint32_t exponent_bits = form->exponent_bits;
      e.exponent = (uint32_t)(word >> (form->elem_bits - exponent_bits));
      const uint32_t base = form->columns == 0 ? 0 : (uint32_t)load_word(bases, i, exponent_bits > 8 ? 2 : 1);
      e.rank = ranks[(e.exponent - base) & (uint32_t)low_bits(exponent_bits)];
      e.kept = kept_of(word);
    }
    return e;
  }

  DEV_MEMBER uint32_t code_bits(uint32_t m) const { return S == FOUR ? (m + 1) / 2 * 8 : (S == THREE ? 3 : 2) * m; }
  DEV_MEMBER uint32_t group_bits(uint32_t m) const { return code_bits(m) + form->bit_planes * m; }
  DEV_MEMBER uint32_t fixed_bits() const {
    return 8 * n * form->byte_planes + n / 64 * group_bits(64) + group_bits(n % 64);
  }

  static DEV_MEMBER uint32_t tier(uint32_t rank, uint32_t number) { return rank / 3 == number ? rank % 3 : 3; }

  // The code of which every element has planes of bits.
  static DEV_MEMBER uint32_t code(uint32_t rank) { return S == THREE ? least(rank, 7) : tier(rank, 0); }

  // Writes the byte planes; says whether all dropped bits have their value.
  DEV_MEMBER bool put_byte_planes(unsigned char* out, uint32_t lane) const {
    const uint64_t dropped = low_bits(form->dropped_bits) << form->dropped_first;
    bool fits = true;
    for (uint32_t i = lane; i < n; i += 32) {
      const uint64_t word = rotated(i), kept = kept_of(word);
      fits = fits && ((word ^ form->dropped_value) & dropped) == 0;
      for (uint32_t plane = 0; plane < form->byte_planes; plane++) out[plane * n + i] = (unsigned char)(kept >> 8 * plane);
    }
    return __all_sync(FULL, fits) != 0;
  }

  // Writes the codes and the bit planes of a group of `m` elements.
  DEV_MEMBER void put_group(const Bits& out, uint32_t at, uint32_t m, const Element& a, const Element& b, uint32_t lane) const {
    const uint32_t half = (m + 1) / 2, n_codes = S == FOUR ? 0 : (S == THREE ? 3 : 2);
    const uint32_t planes_at = S == FOUR ? at + code_bits(m) : at;
    if (S == FOUR && a.there) out.put(at + 8 * lane, least(a.rank, 15) | (b.there ? least(b.rank, 15) << 4 : 0), 8);
    uint64_t mine = 0;
    const uint32_t n_planes = n_codes + form->bit_planes;
    for (uint32_t plane = 0; plane < n_planes; plane++) {
      uint32_t bit_a, bit_b;
      if (plane < n_codes) {
        bit_a = code(a.rank) >> plane & 1;
        bit_b = code(b.rank) >> plane & 1;
      } else {
        const uint32_t bit = 8 * form->byte_planes + plane - n_codes;
        bit_a = (uint32_t)(a.kept >> bit) & 1;
        bit_b = (uint32_t)(b.kept >> bit) & 1;
      }
      const uint32_t lower = __ballot_sync(FULL, a.there && bit_a != 0);
      const uint32_t upper = __ballot_sync(FULL, b.there && bit_b != 0);
      if (lane == plane) mine = lower | (uint64_t)upper << half;
    }
    if (lane < n_planes) out.put(planes_at + lane * m, mine, m);
  }

  // Where a lane's two elements stand among those that are marked, and how many these are.
  struct Order {
    uint32_t a, b, n;
  };
  static DEV_MEMBER Order order(bool a, bool b, uint32_t lane) {
    const uint32_t lower = __ballot_sync(FULL, a), upper = __ballot_sync(FULL, b);
    const uint32_t n_lower = (uint32_t)__popc(lower);
    const Order order = {(uint32_t)__popc(lower & below(lane)), n_lower + (uint32_t)__popc(upper & below(lane)),
                         n_lower + (uint32_t)__popc(upper)};
    return order;
  }

  // Writes the second and the third tier of a group; gives where they end.
  static DEV_MEMBER uint32_t put_tiers(const Bits& out, uint32_t at, const Element& a, const Element& b, uint32_t lane) {
    for (uint32_t number = 1; number < 3; number++) {
      const bool in_a = a.there && a.rank >= 3 * number, in_b = b.there && b.rank >= 3 * number;
      const Order in = order(in_a, in_b, lane);
      for (uint32_t plane = 0; plane < 2; plane++, at += in.n) {
        if (in_a) out.put(at + in.a, tier(a.rank, number) >> plane, 1);
        if (in_b) out.put(at + in.b, tier(b.rank, number) >> plane, 1);
      }
    }
    return at;
  }

  // The two elements of a lane in a group that starts at element `first` and has `m`.
  DEV_MEMBER Element lower_element(uint32_t first, uint32_t m, uint32_t lane) const {
    return element(first + lane, lane < (m + 1) / 2);
  }
  DEV_MEMBER Element upper_element(uint32_t first, uint32_t m, uint32_t lane) const {
    const uint32_t half = (m + 1) / 2;
    return element(first + half + lane, half + lane < m);
  }

  // Writes the exponents of the escapes, which come after the tiers of all groups.
  DEV_MEMBER void put_escapes(const Bits& out, uint32_t at, uint32_t lane) const {
    for (uint32_t first = 0; first < n; first += 64) {
      const uint32_t m = least(n - first, 64);
      const Element a = lower_element(first, m, lane), b = upper_element(first, m, lane);
      const Order escapes = order(a.rank == 255, b.rank == 255, lane);
      if (a.rank == 255) out.put(at + escapes.a * form->exponent_bits, a.exponent, form->exponent_bits);
      if (b.rank == 255) out.put(at + escapes.b * form->exponent_bits, b.exponent, form->exponent_bits);
      at += escapes.n * form->exponent_bits;
    }
  }

  static DEV_MEMBER Packed pack(const EncodeJob& job, const Record& record, unsigned char* raw, const Bits& out,
                                unsigned char* slot, uint32_t lane) {
    PlanesEncoder it;
    it.form = (const PlanesForm*)job.form;
    it.raw = raw;
    it.ranks = (const unsigned char*)job.form + it.form->ranks_at;
    it.word_bytes = it.form->elem_bits / 8;
    it.n = record.raw_len / it.word_bytes;
    const uint32_t column = it.form->columns == 0 ? 0 : record.start / it.word_bytes % it.form->columns;
    it.bases = (const unsigned char*)job.form + it.form->bases_at + column * (it.form->exponent_bits > 8 ? 2 : 1);
    const bool fits = it.put_byte_planes((unsigned char*)out.words, lane);
    Packed packed = {0, it.n, 0, fits};
    if (!fits) return packed;
    __syncwarp();
    uint32_t at = 8 * it.n * it.form->byte_planes, tiers_at = it.fixed_bits(), n_escapes = 0;
    for (uint32_t first = 0; first < it.n; first += 64) {
      const uint32_t m = least(it.n - first, 64);
      const Element a = it.lower_element(first, m, lane), b = it.upper_element(first, m, lane);
      it.put_group(out, at, m, a, b, lane);
      if (S == TIERS) tiers_at = put_tiers(out, tiers_at, a, b, lane);
      const Order escapes = order(a.rank == 255, b.rank == 255, lane);
      if (S == FOUR && escapes.n != 0) {
        // The element's number in the block, then its exponent.
        uint32_t* list = (uint32_t*)(slot + job.list_at) + n_escapes;
        const uint32_t in_block = record.raw_at / it.word_bytes;
        if (a.rank == 255) list[escapes.a] = (in_block + a.number) | a.exponent << 18;
        if (b.rank == 255) list[escapes.b] = (in_block + b.number) | b.exponent << 18;
      }
      n_escapes += escapes.n;
      at += it.group_bits(m);
    }
    if (S != FOUR && n_escapes != 0) it.put_escapes(out, tiers_at, lane);
    packed.bits = S == FOUR ? tiers_at : tiers_at + n_escapes * it.form->exponent_bits;
    packed.participating = it.n - n_escapes;
    return packed;
  }
};
}  // namespace encode
