// encode_sparse.cuh - packs records of sparse; FORMAT.md, section "Codec sparse".
//
// Lane i keeps the bits of words 32 i to 32 i + 31: whether each differs from the common one.
#pragma once
#include "encode.cuh"

namespace encode {

struct SparseEncoder {
  // The index of a word, or 256 without one: the hash table of kernels/src/sparse.rs.
  static DEV_MEMBER uint32_t index_of(const SparseForm* form, uint64_t word) {
    const unsigned char* bytes = (const unsigned char*)form;
    const uint64_t* words = (const uint64_t*)(bytes + form->dictionary_at);
    const uint16_t* slots = (const uint16_t*)(bytes + form->slots_at);
    // Ends, because half of the slots are free.
    for (uint32_t at = (uint32_t)(word * 0x9E3779B97F4A7C15ull >> 55);; at = (at + 1) % 512) {
      const uint32_t taken = slots[at];
      if (taken == 0) return 256;
      if (words[(taken - 1) % 256] == word) return taken - 1;
    }
  }

  static DEV_MEMBER Packed pack(const EncodeJob& job, const Record& record, unsigned char* raw, const Bits& out,
                                unsigned char*, uint32_t lane) {
    const SparseForm* form = (const SparseForm*)job.form;
    const uint32_t word_bytes = form->word_bytes, n = record.raw_len / word_bytes;
    const uint64_t common = form->common & low_bits(8 * word_bytes);
    // Which words differ, and whether the dictionary has all of them.
    uint32_t mine = 0, n_differing = 0;
    bool known = form->dictionary_at != 0;
    for (uint32_t base = 0; base < n; base += 32) {
      const uint32_t i = base + lane;
      const uint64_t word = i < n ? load_word(raw, i, word_bytes) : common;
      const uint32_t differing = __ballot_sync(FULL, word != common);
      if (lane == base / 32) mine = differing;
      n_differing += (uint32_t)__popc(differing);
      if (known && word != common) known = index_of(form, word) < 256;
    }
    const bool indexed = __all_sync(FULL, known) != 0;
    if (lane == 0) out.put(0, indexed ? 0 : 1, 1);

    const uint32_t groups_at = 1, elems_at = 1 + (n + form->group_elems - 1) / form->group_elems;
    const uint32_t at = put_masks(form->group_elems, n, mine, out, groups_at, elems_at, lane);

    // The differing words in their order.
    const uint32_t value_bits = indexed ? form->index_bits : 8 * word_bytes;
    uint32_t before = 0;
    for (uint32_t base = 0; base < n && value_bits != 0; base += 32) {
      const uint32_t differing = __shfl_sync(FULL, mine, base / 32);
      if (differing >> lane & 1) {
        const uint64_t word = load_word(raw, base + lane, word_bytes);
        const uint32_t number = before + (uint32_t)__popc(differing & below(lane));
        out.put(at + number * value_bits, indexed ? index_of(form, word) : word, value_bits);
      }
      before += (uint32_t)__popc(differing);
    }
    const Packed packed = {at + n_differing * value_bits, n, n - n_differing, true};
    return packed;
  }

  // Puts the bits of the groups and those of the words of groups that differ; gives where these end.
  static DEV_MEMBER uint32_t put_masks(uint32_t group_elems, uint32_t n, uint32_t mine, const Bits& out,
                                       uint32_t groups_at, uint32_t elems_at, uint32_t lane) {
    const uint32_t there = 32 * lane < n ? least(n - 32 * lane, 32) : 0;
    const uint32_t other = __shfl_xor_sync(FULL, mine, 1);
    uint32_t flags = 0, n_bits = 0;
    uint64_t bits = 0;
    if (group_elems == 64) {
      const bool differs = (mine | other) != 0;
      if (lane % 2 == 0 && differs) out.put(groups_at + lane / 2, 1, 1);
      bits = mine;
      n_bits = differs ? there : 0;
    } else {
      const uint32_t per_lane = 32 / group_elems;
      for (uint32_t group = 0; group < per_lane && group * group_elems < there; group++) {
        const uint32_t start = group * group_elems;
        const uint64_t elems = (uint64_t)mine >> start & low_bits(group_elems);
        if (elems == 0) continue;
        flags |= 1u << group;
        bits |= elems << n_bits;
        n_bits += least(group_elems, there - start);
      }
      out.put(groups_at + lane * per_lane, flags, per_lane);
    }
    const uint32_t end = sum_up_to(n_bits, lane);
    out.put(elems_at + end - n_bits, bits, n_bits);
    return elems_at + __shfl_sync(FULL, end, 31);
  }
};
}  // namespace encode
