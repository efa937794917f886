// sweep.cuh - empties the lines whose block has another word now: so that a sequence that has come round revives none.
#pragma once
#include "cache.cuh"

// The block of a row of the cache, whose rows have one block each.
DEV uint64_t block_of(const GatherTensor& tensor, uint64_t row) {
  return tensor.block_shift < 32 ? row >> tensor.block_shift : row / tensor.block_rows;
}

// Empties line `number` of the cache if it is out of date; it keeps its place where it is to stay.
DEV void sweep_line(const GatherTensor& tensor, uint64_t number) {
  CacheSet* set = set_of(tensor.cache, (uint32_t)(number / WAYS));
  const uint32_t way = number % WAYS;
  const uint64_t state = ld_acquire_gpu(&set->states[way]);
  if (state == 0 || is_written(state)) return;
  const uint64_t block = block_of(tensor, ld_relaxed_gpu(&set->rows[way]));
  const uint64_t word = ld_relaxed_gpu(&set->words[way]);
  if (block < tensor.n_blocks && ((const uint64_t*)tensor.words)[block] == word) return;
  // A team that writes the line meanwhile gives it a word of today.
  if (atomicCAS((unsigned long long*)&set->states[way], (unsigned long long)state, (unsigned long long)(state + 1)) != state) {
    return;
  }
  fence_gpu();
  st_relaxed_gpu(&set->words[way], (uint64_t)0);
  st_release_gpu(&set->states[way], next_state(state, meta_of(state)));
}
