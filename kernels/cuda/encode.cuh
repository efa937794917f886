// encode.cuh - what the encoders share: copies, strings of bits, the walk over records.
//
// A warp packs a record in shared memory: first its raw bytes, then the string of bits that is made of them. Lanes
// put their bits into words of the string by atomic "or", since neighbors share words. A string that is not shorter
// than the raw bytes is not kept, so that what does not fit its room may be lost.
#pragma once
#include "shared.h"

// In a head; FORMAT.md, section "Records".
#define HEAD_RAW (1u << 31)
#define HEAD_NO_REST 0x7fffffffu
#define HEAD_BYTES 4u

// A namespace, so that the CPU build does not mix these with those of the decoders.
namespace encode {

DEV uint64_t low_bits(uint32_t n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }
DEV uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
DEV uint32_t below(uint32_t lane) { return (1u << lane) - 1; }
// The place of the lowest one; 64 without.
DEV uint32_t first_one(uint64_t x) { return (uint32_t)__popcll(~x & (x - 1)); }

// Word `i` of some bytes that start at a multiple of its size.
DEV uint64_t load_word(const unsigned char* bytes, uint32_t i, uint32_t word_bytes) {
  switch (word_bytes) {
    case 1: return bytes[i];
    case 2: return ((const uint16_t*)bytes)[i];
    case 4: return ((const uint32_t*)bytes)[i];
    default: return ((const uint64_t*)bytes)[i];
  }
}

DEV void store_word(unsigned char* bytes, uint32_t i, uint32_t word_bytes, uint64_t word) {
  switch (word_bytes) {
    case 1: bytes[i] = (unsigned char)word; break;
    case 2: ((uint16_t*)bytes)[i] = (uint16_t)word; break;
    case 4: ((uint32_t*)bytes)[i] = (uint32_t)word; break;
    default: ((uint64_t*)bytes)[i] = word;
  }
}

// Copies with all lanes of a warp, in the widest words that both addresses allow.
DEV void copy_bytes(unsigned char* to, const unsigned char* from, uint32_t n, uint32_t lane) {
  const uint32_t odd = (uint32_t)((uint64_t)to | (uint64_t)from);
  uint32_t done = 0;
  if ((odd & 15) == 0) {
    done = n & ~15u;
    for (uint32_t i = lane; i < n / 16; i += 32) ((uint4*)to)[i] = ((const uint4*)from)[i];
  } else if ((odd & 3) == 0) {
    done = n & ~3u;
    for (uint32_t i = lane; i < n / 4; i += 32) ((uint32_t*)to)[i] = ((const uint32_t*)from)[i];
  }
  for (uint32_t i = done + lane; i < n; i += 32) to[i] = from[i];
}

// The bits of `word` that `kept` marks, moved together, one run of ones at a time.
DEV uint64_t extract_bits(uint64_t word, uint64_t kept) {
  uint64_t packed = 0, left = kept;
  for (uint32_t at = 0; left != 0;) {
    const uint32_t start = first_one(left), len = first_one(~(left >> start));
    packed |= (word >> start & low_bits(len)) << at;
    left &= ~(low_bits(len) << start);
    at += len;
  }
  return packed;
}

// A string of bits in shared memory, zero where nothing was put.
struct Bits {
  uint32_t* words;
  uint32_t n_words;

  DEV_MEMBER void put_word(uint32_t at, uint32_t bits) const {
    if (bits != 0 && at < n_words) atomicOr(words + at, bits);
  }
  // Puts the low `n` bits of `value` at bit `at`.
  DEV_MEMBER void put(uint32_t at, uint64_t value, uint32_t n) const {
    value &= low_bits(n);
    const uint32_t word = at >> 5, shift = at & 31;
    const uint64_t lower = value << shift;
    put_word(word, (uint32_t)lower);
    put_word(word + 1, (uint32_t)(lower >> 32));
    if (shift != 0) put_word(word + 2, (uint32_t)(value >> (64 - shift)));
  }
};

// The sum of what the lanes up to this one have.
DEV uint32_t sum_up_to(uint32_t value, uint32_t lane) {
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(FULL, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// Where one record stands.
struct Record {
  uint32_t raw_at;   // from the block's first raw byte
  uint32_t start;    // from the first raw byte of its run
  uint32_t raw_len;
  uint32_t front_at;
  uint32_t stride;
};

DEV Record record_at(const EncodeJob& job, uint32_t number) {
  const uint32_t run = number / job.records, record = number - run * job.records, last = job.records - 1;
  Record at;
  at.start = record * job.record_bytes;
  at.raw_at = run * (last * job.record_bytes + job.tail_bytes) + at.start;
  at.raw_len = record == last ? job.tail_bytes : job.record_bytes;
  at.front_at = run * (last * job.record_stride + job.tail_stride) + record * job.record_stride;
  at.stride = record == last ? job.tail_stride : job.record_stride;
  return at;
}

// What a codec says of a packed record.
struct Packed {
  uint32_t bits;
  uint32_t chunks;
  uint32_t participating;
  bool fits;  // false: the codec cannot pack the record
};

// Packs the records of this slice into their slots. `Codec` packs one: with all lanes, which all get the same answer;
// it may change the raw bytes in shared memory.
template <class Codec>
DEV void encode_records(const EncodeJob* __restrict__ jobs, uint32_t n_jobs, uint32_t warp_bytes) {
  DYN_SHARED(shared);
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  unsigned char* const raw = shared + warp * warp_bytes;
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) {
    const EncodeJob job = jobs[j];
    unsigned char* const work = (unsigned char*)job.work;
    RecordNote* const notes = (RecordNote*)(work + sizeof(EncodeResult));
    const uint32_t most = job.records > 1 ? job.record_bytes : job.tail_bytes, raw_room = (most + 31) & ~15u;
    const Bits out = {(uint32_t*)(raw + raw_room), (warp_bytes - raw_room) / 4};
    const uint32_t step = gridDim.y * warps;
    for (uint32_t r = blockIdx.y * warps + warp; r < job.runs * job.records; r += step) {
      const Record record = record_at(job, r);
      unsigned char* const slot = work + job.slots_at + (uint64_t)r * job.slot_bytes;
      copy_bytes(raw, (const unsigned char*)job.raw + record.raw_at, record.raw_len, lane);
      // A chunk that the end of the record cuts is looked at with zeros behind it.
      if (lane < 8) raw[record.raw_len + lane] = 0;
      for (uint32_t i = lane; i < out.n_words; i += 32) out.words[i] = 0;
      __syncwarp();
      const Packed packed = Codec::pack(job, record, raw, out, slot, lane);
      __syncwarp();
      const uint32_t body_len = (packed.bits + 7) / 8;
      RecordNote note = {body_len, packed.chunks, packed.participating, 0};
      if (job.list_at != 0) {
        if (!packed.fits) note.body |= NOTE_UNFIT;
      } else if (!packed.fits || body_len >= record.raw_len) {
        note.body = record.raw_len | NOTE_RAW;
        note.participating = 0;
      }
      if (lane == 0) notes[r] = note;
      if ((note.body & (NOTE_RAW | NOTE_UNFIT)) == 0) copy_bytes(slot, (const unsigned char*)out.words, body_len, lane);
      __syncwarp();
    }
  }
}
}  // namespace encode
