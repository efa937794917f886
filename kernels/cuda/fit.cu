// Kernels that count what a fit starts from: ones per bit position, exponents.
#include "shared.h"

// Threads of which each looks at a column of its own, at least.
#define COUNT_WIDTH 4096u

// Adds to `counts` how often each of the 8 bits of each byte of a period is one; by bytes, then by bits.
KERNEL void count_bits(const CountJob* __restrict__ jobs, uint32_t n_jobs) {
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) {
    const CountJob job = jobs[j];
    const unsigned char* src = (const unsigned char*)job.src;
    const uint32_t width = job.period * ((COUNT_WIDTH + job.period - 1) / job.period);
    for (uint32_t column = blockIdx.y * blockDim.x + threadIdx.x; column < width; column += gridDim.y * blockDim.x) {
      uint32_t* counts = (uint32_t*)job.counts + (uint64_t)(column % job.period) * 8;
      // Each byte of the two sums counts one bit, up to 255 times; 64 bits, since `len` plus `width` may have more than 32.
      for (uint64_t at = column; at < job.len;) {
        uint32_t lower = 0, upper = 0;
        for (uint32_t n = 0; n < 255 && at < job.len; n++, at += width) {
          const uint32_t byte = src[at];
          // Bit i of four goes to bit 8 i: 1, 2^7, 2^14 and 2^21 times the bits.
          lower += (byte & 15) * 0x00204081u & 0x01010101u;
          upper += (byte >> 4) * 0x00204081u & 0x01010101u;
        }
        for (uint32_t bit = 0; bit < 8; bit++) {
          const uint32_t count = (bit < 4 ? lower : upper) >> (8 * (bit & 3)) & 255;
          if (count != 0) atomicAdd(counts + bit, count);
        }
      }
    }
  }
}

DEV uint64_t and_of_warp(uint64_t bits) {
  const uint32_t lower = __reduce_and_sync(FULL, (uint32_t)bits), upper = __reduce_and_sync(FULL, (uint32_t)(bits >> 32));
  return lower | (uint64_t)upper << 32;
}

DEV uint64_t word_at(uint64_t src, uint32_t i, uint32_t word_bytes) {
  switch (word_bytes) {
    case 1: return ((const unsigned char*)src)[i];
    case 2: return ((const uint16_t*)src)[i];
    case 4: return ((const uint32_t*)src)[i];
    default: return ((const uint64_t*)src)[i];
  }
}

#define MAX_EXPONENTS 2048u

// Adds to the counters how often each exponent is there, less its base, by column where the period is more than 1.
// Before the counters stand the bits that are one in all words, and those that are zero in all.
KERNEL void count_exponents(const CountJob* __restrict__ jobs, uint32_t n_jobs) {
  SHARED(uint32_t, sums, MAX_EXPONENTS);
  for (uint32_t j = blockIdx.x; j < n_jobs; j += gridDim.x) {
    const CountJob job = jobs[j];
    const uint16_t* bases = (const uint16_t*)job.bases;
    uint64_t* const always = (uint64_t*)job.counts;
    uint32_t* const counts = (uint32_t*)(job.counts + 16);
    const uint32_t n_words = job.len / job.word_bytes, n_exponents = 1u << job.exponent_bits;
    const uint32_t shift = 8 * job.word_bytes - job.exponent_bits - 1;
    for (uint32_t i = threadIdx.x; i < n_exponents; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    uint64_t ones = ~0ull, zeros = ~0ull;
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < n_words; i += gridDim.y * blockDim.x) {
      const uint64_t word = word_at(job.src, i, job.word_bytes);
      ones &= word;
      zeros &= ~word;
      uint32_t exponent = (uint32_t)(word >> shift);
      if (job.bases != 0) exponent -= bases[i % job.columns];
      exponent &= n_exponents - 1;
      if (job.period > 1) {
        atomicAdd(counts + (uint64_t)(i % job.period) * n_exponents + exponent, 1u);
      } else {
        atomicAdd(sums + exponent, 1u);
      }
    }
    ones = and_of_warp(ones);
    zeros = and_of_warp(zeros);
    if ((threadIdx.x & 31) == 0) {
      atomicAnd(always, ones);
      atomicAnd(always + 1, zeros);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_exponents && job.period <= 1; i += blockDim.x) {
      if (sums[i] != 0) atomicAdd(counts + i, sums[i]);
    }
    __syncthreads();
  }
}

EXPORT_KERNEL(count_bits)
EXPORT_KERNEL(count_exponents)
