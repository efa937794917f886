// encode_ibp.cuh - packs records of ibp and ibp:window; FORMAT.md, sections "Codec ibp" and "Codec ibp:window".
//
// A lane looks at one chunk, so that a warp's participation bits are one word; a sum over the lanes says where each
// puts its bits.
#pragma once
#include "encode.cuh"

namespace encode {

struct IbpEncoder {
  // Transforms the words in shared memory, each by one lane.
  static DEV_MEMBER void window(const IbpForm* form, const Record& record, unsigned char* raw, uint32_t lane) {
    if (form->rotate == 0 && form->bases_len == 0 && form->base == 0) return;
    const uint32_t word_bytes = form->word_bytes, bits = 8 * word_bytes;
    const unsigned char* bases = (const unsigned char*)form + form->bases_at;
    if (form->bases_len != 0) bases += record.start % form->bases_len;
    for (uint32_t i = lane; i < record.raw_len / word_bytes; i += 32) {
      uint64_t word = load_word(raw, i, word_bytes);
      if (form->rotate != 0) word = word << 1 | word >> (bits - 1);
      word -= form->bases_len != 0 ? load_word(bases, i, word_bytes) : form->base;
      store_word(raw, i, word_bytes, word);
    }
    __syncwarp();
  }

  static DEV_MEMBER Packed pack(const EncodeJob& job, const Record& record, unsigned char* raw, const Bits& out,
                                unsigned char*, uint32_t lane) {
    const IbpForm* form = (const IbpForm*)job.form;
    window(form, record, raw, lane);
    const uint32_t chunk_bytes = form->chunk_bytes, shift = form->shift;
    const uint64_t* groups = (const uint64_t*)(job.form + form->groups_at);
    const uint32_t first = (record.start / 8) % form->period;
    const uint32_t n_chunks = (record.raw_len + chunk_bytes - 1) / chunk_bytes;
    Packed packed = {n_chunks, n_chunks, 0, true};
    for (uint32_t base = 0; base < n_chunks; base += 32) {
      const uint32_t chunk = base + lane, at = chunk * chunk_bytes;
      bool fits = false;
      uint32_t n_bits = 0;
      uint64_t value = 0;
      if (chunk < n_chunks) {
        const uint64_t* group = groups + 2 * (first + at / 8);
        // Bits that a short last chunk lacks are invariant zeros.
        n_bits = 8 * least(chunk_bytes, record.raw_len - at);
        const uint64_t there = low_bits(n_bits), kept = group[0] >> (8 * (at % 8)) & there;
        value = load_word(raw, chunk, chunk_bytes);
        fits = ((value ^ (group[1] >> (8 * (at % 8)) & there)) & ~kept) == 0;
        if (fits) {
          n_bits = (uint32_t)__popcll(kept);
          // Kept bits that are one run at the same place in every chunk move by a shift.
          value = shift < 64 ? (value & kept) >> shift : extract_bits(value, kept);
        }
      }
      const uint32_t participates = __ballot_sync(FULL, fits);
      if (lane == 0) out.put(base, participates, 32);
      const uint32_t end = sum_up_to(n_bits, lane);
      out.put(packed.bits + end - n_bits, value, n_bits);
      packed.bits += __shfl_sync(FULL, end, 31);
      packed.participating += (uint32_t)__popc(participates);
    }
    return packed;
  }
};
}  // namespace encode
