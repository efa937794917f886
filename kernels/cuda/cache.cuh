// cache.cuh - the cache of rows in device memory: probe, insert, and which line gives way.
//
// A line holds what is needed to decode one row, and its tag says which: the block word and the row. Teams of all
// thread blocks read and write lines at the same time, and nobody waits:
//
//   insert: claim = compare-and-swap the state from even to odd; fence; write line, word, row; state = even, release
//   probe:  state, acquire; word, row; copy the line to shared memory; fence; the same state again, or it is a miss
//
// So a copy is that of one insert, or it is not used. The state's version goes up by two per insert; kernels/tests/
// loom.rs has the protocol as a model, and tests/cusim runs this file on threads. A word that the daemon has replaced
// is in no table of words, so an update, a refit and a demotion make their lines misses without being told.
//
// Which line gives way: a mark of two bits per line counts its hits, up to 3. A miss takes a line whose mark is 0;
// where there is none, it lowers all marks, one time in AGE_ONE_IN, and stays outside. Marks are not exact: a store of
// one may undo another.
#pragma once
#include "bits.cuh"
#include "gather.h"

enum : uint32_t { NO_WAY = 0xffffffffu, MOST_MARK = 3, AGE_ONE_IN = 4, ALL_MARKS = 0x5555, HAND_SHIFT = 16 };

// What an insert did.
enum Inserted : uint32_t {
  INSERTED,
  INSERT_LOST,     // another team writes the line
  INSERT_REFUSED,  // the lines of the set are worth more, or the row is there
};

DEV uint32_t hash_row(uint64_t row) {
  row *= 0x9e3779b97f4a7c15ull;
  return (uint32_t)(row >> 32) ^ (uint32_t)(row >> 16);
}

DEV CacheSet* set_of(const Cache& cache, uint32_t set) { return (CacheSet*)cache.sets + set; }
DEV uint4* line_of(const Cache& cache, uint32_t set, uint32_t way) {
  return (uint4*)(cache.lines + ((uint64_t)set * WAYS + way) * cache.line_bytes);
}
DEV bool is_written(uint64_t state) { return (state & 1) != 0; }
DEV uint32_t meta_of(uint64_t state) { return (uint32_t)(state >> 32); }
// The state after a claim and a publication.
DEV uint64_t next_state(uint64_t state, uint32_t meta) { return (uint64_t)meta << 32 | (uint32_t)((uint32_t)state + 2); }

// Copies the line of a row into shared memory, and gives its LineMeta; 0 where there is none.
template <int LANES>
DEV uint32_t probe(const Team<LANES>& team, const Cache& cache, uint64_t word, uint64_t row, uint4* window,
                   bool* changed) {
  const uint32_t number = __umulhi(hash_row(row), cache.n_sets);
  CacheSet* set = set_of(cache, number);
  uint32_t way = NO_WAY;
  uint64_t state = 0;
  for (uint32_t i = team.lane; i < WAYS; i += LANES) {
    const uint64_t seen = ld_acquire_gpu(&set->states[i]);
    if (seen == 0 || is_written(seen)) continue;
    if (ld_relaxed_gpu(&set->words[i]) == word && ld_relaxed_gpu(&set->rows[i]) == row) way = i, state = seen;
  }
  const uint32_t found = __ballot_sync(team.mask, way != NO_WAY);
  *changed = false;
  if (found == 0) return 0;
  const int source = (__ffs((int)found) - 1) & (LANES - 1);
  way = __shfl_sync(team.mask, way, source, LANES);
  state = __shfl_sync(team.mask, state, source, LANES);
  // What the source has acquired comes before the reads of all lanes.
  __syncwarp(team.mask);
  const uint4* line = line_of(cache, number, way);
  const uint32_t n = ((meta_of(state) & LINE_BYTES) + 15) / 16;
  for (uint32_t i = team.lane; i < n; i += LANES) window[i] = ld_relaxed_gpu_v4(line + i);
  fence_gpu();
  const bool same = __all_sync(team.mask, ld_relaxed_gpu(&set->states[way]) == state);
  // The copy comes before the reads of all lanes, or before what is put in its place.
  __syncwarp(team.mask);
  if (!same) {
    *changed = true;
    return 0;
  }
  if (team.lane == 0) {
    const uint32_t marks = ld_relaxed_gpu(&set->marks);
    if ((marks >> (2 * way) & MOST_MARK) < MOST_MARK) st_relaxed_gpu(&set->marks, marks + (1u << (2 * way)));
  }
  return meta_of(state);
}

// What a line is worth to an insert, the least first; NO_WAY: it must stay.
enum Rank : uint32_t { RANK_THERE, RANK_OLD_ROW, RANK_EMPTY, RANK_UNMARKED };
DEV uint32_t rank_of(const CacheSet* set, uint32_t way, uint32_t marks, uint64_t word, uint64_t row, uint64_t state) {
  uint32_t rank;
  if (is_written(state)) return NO_WAY;
  if (state != 0 && ld_relaxed_gpu(&set->rows[way]) == row) {
    rank = ld_relaxed_gpu(&set->words[way]) == word ? RANK_THERE : RANK_OLD_ROW;
  } else if (state == 0) {
    rank = RANK_EMPTY;
  } else if ((marks >> (2 * way) & MOST_MARK) == 0 && !(meta_of(state) & LINE_KEEP)) {
    rank = RANK_UNMARKED;
  } else {
    return NO_WAY;
  }
  return rank << 8 | ((way - (marks >> HAND_SHIFT)) & (WAYS - 1)) << 4 | way;
}

// All marks, each lowered by one where it is not 0.
DEV uint32_t lower(uint32_t marks) { return marks - ((marks | marks >> 1) & ALL_MARKS); }

// Puts a row, whose bytes stand in shared memory, into the cache; meta has at most line_bytes in LINE_BYTES.
template <int LANES>
DEV uint32_t insert(const Team<LANES>& team, const Cache& cache, uint64_t word, uint64_t row, uint32_t meta,
                    const uint4* window) {
  const uint32_t hash = hash_row(row), number = __umulhi(hash, cache.n_sets);
  CacheSet* set = set_of(cache, number);
  const uint32_t marks = __shfl_sync(team.mask, ld_relaxed_gpu(&set->marks), 0, LANES);
  uint32_t best = NO_WAY;
  uint64_t state = 0;
  for (uint32_t i = team.lane; i < WAYS; i += LANES) {
    const uint64_t seen = ld_acquire_gpu(&set->states[i]);
    const uint32_t rank = rank_of(set, i, marks, word, row, seen);
    if (rank < best) best = rank, state = seen;
  }
  const uint32_t first = __reduce_min_sync(team.mask, best);
  if (first == NO_WAY) {
    if (team.lane == 0 && ((hash ^ marks >> HAND_SHIFT) & (AGE_ONE_IN - 1)) == 0) {
      st_relaxed_gpu(&set->marks, lower(marks & 0xffff) | (((marks >> HAND_SHIFT) + 1) & 255) << HAND_SHIFT);
    } else if (team.lane == 0) {
      st_relaxed_gpu(&set->marks, (marks & 0xffff) | (((marks >> HAND_SHIFT) + 1) & 255) << HAND_SHIFT);
    }
    return INSERT_REFUSED;
  }
  const uint32_t way = first & (WAYS - 1);
  const uint32_t owner = __ballot_sync(team.mask, best == first);
  state = __shfl_sync(team.mask, state, (__ffs((int)owner) - 1) & (LANES - 1), LANES);
  const bool there = first >> 8 == RANK_THERE;
  const uint32_t kept = first >> 8 <= RANK_OLD_ROW ? meta_of(state) & LINE_KEEP : 0;
  if (there && (kept || !(meta & LINE_KEEP))) return INSERT_REFUSED;
  // A line that is to stay from now on is not written again.
  const uint64_t claimed = there ? next_state(state, meta_of(state) | LINE_KEEP) : state + 1;
  unsigned long long old = 0;
  if (team.lane == 0) old = atomicCAS((unsigned long long*)&set->states[way], (unsigned long long)state, (unsigned long long)claimed);
  if (__shfl_sync(team.mask, (uint64_t)old, 0, LANES) != state) return INSERT_LOST;
  if (there) return INSERT_REFUSED;
  // The claim comes before every store to the line.
  __syncwarp(team.mask);
  fence_gpu();
  uint4* line = line_of(cache, number, way);
  const uint32_t n = ((meta & LINE_BYTES) + 15) / 16;
  for (uint32_t i = team.lane; i < n; i += LANES) st_relaxed_gpu_v4(line + i, window[i]);
  if (team.lane == 0) {
    st_relaxed_gpu(&set->words[way], word);
    st_relaxed_gpu(&set->rows[way], row);
    st_relaxed_gpu(&set->marks, (marks & 0xffff & ~(MOST_MARK << (2 * way))) | (way + 1) << HAND_SHIFT);
  }
  __syncwarp(team.mask);
  if (team.lane == 0) st_release_gpu(&set->states[way], next_state(state, meta | kept));
  return INSERTED;
}
