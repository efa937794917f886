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
// Which line gives way: a counter per line, in a byte of the set, counts its hits, up to 3. A miss takes a line whose
// counter is 0; where there is none, it lowers all of them and stays outside; where all are 0, rows leave before they
// come back, and one miss in 16 comes in. An old row of the same number gives way first, and an empty line next; a
// line that is to stay never does. Counters are stored without atomic operations: a lost one costs a little warmth.
#pragma once
#include "bits.cuh"
#include "gather.h"

enum : uint32_t { NO_WAY = 0xffffffffu, MOST_COUNT = 3, ADMIT_ONE_IN = 16, ALL_WAYS = (1u << WAYS) - 1 };
static_assert(WAYS == 8, "a set's counters are the bytes of one word");

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
    const uint64_t counts = ld_relaxed_gpu(&set->counts);
    if ((counts >> (8 * way) & 255) < MOST_COUNT) st_relaxed_gpu(&set->counts, counts + (1ull << (8 * way)));
  }
  return meta_of(state);
}

// What the lines of a set are to a row: sets of ways, as bits.
struct Ways {
  uint32_t there;  // they hold the row
  uint32_t old;    // they hold an older state of it
  uint32_t empty;
  uint32_t cold;   // their counters are 0
  uint32_t warm;   // they are not
};

DEV void look_at(const CacheSet* set, uint32_t way, uint64_t counts, uint64_t word, uint64_t row, uint64_t state,
                 Ways* ways) {
  const uint32_t bit = 1u << way;
  if (is_written(state)) return;
  if (state == 0) {
    ways->empty |= bit;
  } else if (ld_relaxed_gpu(&set->rows[way]) == row) {
    if (ld_relaxed_gpu(&set->words[way]) == word) {
      ways->there |= bit;
    } else {
      ways->old |= bit;
    }
  } else if (!(meta_of(state) & LINE_KEEP)) {
    if (counts >> (8 * way) & 255) {
      ways->warm |= bit;
    } else {
      ways->cold |= bit;
    }
  }
}

// The first of some ways from `start` on.
DEV uint32_t first_way(uint32_t ways, uint32_t start) {
  const uint32_t turned = (ways | ways << WAYS) >> (start & (WAYS - 1));
  return (start + (uint32_t)__ffs((int)turned) - 1) & (WAYS - 1);
}

// The counters, those of some ways lowered by one.
DEV uint64_t lower(uint64_t counts, uint32_t ways) {
  uint64_t ones = 0;
  UNROLL
  for (uint32_t way = 0; way < WAYS; way++) ones |= (uint64_t)(ways >> way & 1) << (8 * way);
  return counts - ones;
}

// Which way gives way; NO_WAY, and other counters to store, where none does.
DEV uint32_t choose_way(const Ways& ways, uint32_t meta, uint32_t random, uint64_t* counts) {
  const uint32_t start = random >> 8;
  const bool must = (meta & LINE_KEEP) != 0;
  if (ways.there) return first_way(ways.there, start);
  if (ways.old) return first_way(ways.old, start);
  if (ways.empty) return first_way(ways.empty, start);
  if (ways.cold && (must || ways.warm || random % ADMIT_ONE_IN == 0)) return first_way(ways.cold, start);
  if (must && ways.warm) return first_way(ways.warm, start);
  if (ways.cold == 0) *counts = lower(*counts, ways.warm);
  return NO_WAY;
}

// Puts a row, whose bytes stand in shared memory, into the cache; meta has at most line_bytes in LINE_BYTES.
template <int LANES>
DEV uint32_t insert(const Team<LANES>& team, const Cache& cache, uint64_t word, uint64_t row, uint32_t meta,
                    const uint4* window, uint32_t random) {
  const uint32_t number = __umulhi(hash_row(row), cache.n_sets);
  CacheSet* set = set_of(cache, number);
  const uint64_t counts = __shfl_sync(team.mask, ld_relaxed_gpu(&set->counts), 0, LANES);
  // A lane has the states of its ways: of one, unless a team is shorter than a set.
  enum : uint32_t { OWN = LANES < WAYS ? WAYS / LANES : 1 };
  uint64_t states[OWN] = {};
  Ways mine = {};
  UNROLL
  for (uint32_t i = 0; i < OWN; i++) {
    const uint32_t way = team.lane + i * LANES;
    if (way >= WAYS) continue;
    states[i] = ld_acquire_gpu(&set->states[way]);
    look_at(set, way, counts, word, row, states[i], &mine);
  }
  const uint32_t packed = mine.there | mine.old << 8 | mine.empty << 16 | mine.cold << 24;
  const uint32_t all = __reduce_or_sync(team.mask, packed);
  const Ways ways = {all & ALL_WAYS, all >> 8 & ALL_WAYS, all >> 16 & ALL_WAYS, all >> 24,
                     __reduce_or_sync(team.mask, mine.warm)};
  uint64_t left = counts;
  const uint32_t way = choose_way(ways, meta, random, &left);
  if (way == NO_WAY) {
    if (team.lane == 0 && left != counts) st_relaxed_gpu(&set->counts, left);
    return INSERT_REFUSED;
  }
  uint64_t state = 0;
  UNROLL
  for (uint32_t i = 0; i < OWN; i++) {
    const uint64_t other = __shfl_sync(team.mask, states[i], (int)(way % LANES), LANES);
    if (i == way / LANES) state = other;
  }
  const bool there = ways.there != 0;
  const uint32_t kept = there || ways.old ? meta_of(state) & LINE_KEEP : 0;
  if (there && (kept || !(meta & LINE_KEEP))) return INSERT_REFUSED;
  // A line that is to stay from now on is not written again.
  const uint64_t claimed = there ? next_state(state, meta_of(state) | LINE_KEEP) : state + 1;
  unsigned long long old = 0;
  if (team.lane == 0) {
    old = atomicCAS((unsigned long long*)&set->states[way], (unsigned long long)state, (unsigned long long)claimed);
  }
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
    st_relaxed_gpu(&set->counts, counts & ~(255ull << (8 * way)));
  }
  __syncwarp(team.mask);
  if (team.lane == 0) st_release_gpu(&set->states[way], next_state(state, meta | kept));
  return INSERTED;
}
