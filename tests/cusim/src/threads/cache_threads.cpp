// cache_threads.cpp - many threads probe and insert rows of one cache, by the code that the kernels run.
// Each thread is a team of one lane. What a line must hold follows from its word and row, so that a mixture shows.
#define HOST_THREADS
#include <thread>
#include <vector>

#include "cache.cuh"

namespace {
struct Tally {
  uint64_t hits, inserts, changed, lost, mixed;
};

enum : uint32_t { MOST_UNITS = 12 };

uint32_t content(uint64_t word, uint64_t row, uint32_t i) {
  uint64_t v = (word * 0x9e3779b97f4a7c15ull ^ row) + i;
  v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9ull;
  return (uint32_t)(v >> 32);
}

void fill(uint64_t word, uint64_t row, uint32_t n, uint4* line) {
  for (uint32_t i = 0; i < n; i++) {
    line[i] = uint4{content(word, row, 4 * i), content(word, row, 4 * i + 1), content(word, row, 4 * i + 2),
                    content(word, row, 4 * i + 3)};
  }
}

bool holds(uint64_t word, uint64_t row, uint32_t n, const uint4* line) {
  uint4 wanted[MOST_UNITS];
  fill(word, row, n, wanted);
  return memcmp(wanted, line, 16 * n) == 0;
}

// Rows have a word each, which one in 64 steps replaces, as an update does.
void work(const Cache& cache, std::vector<uint64_t>& words, uint64_t seed, uint32_t steps, Tally* tally) {
  const Team<1> team = {0, 1};
  uint64_t state = seed * 2 + 1;
  for (uint32_t step = 0; step < steps; step++) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    // Squared, so that some rows are wanted more often.
    const uint64_t x = state >> 40, row = (x * x >> 24) * words.size() >> 24;
    if ((state >> 33 & 63) == 0) __atomic_fetch_add(&words[row], 1ull << 46, __ATOMIC_RELAXED);
    const uint64_t word = __atomic_load_n(&words[row], __ATOMIC_RELAXED);
    const uint32_t n = 1 + (uint32_t)(row + (word >> 46)) % MOST_UNITS;
    uint4 window[MOST_UNITS];
    bool changed;
    const uint32_t meta = probe(team, cache, word, row, window, &changed);
    tally->changed += changed;
    if (meta) {
      tally->hits++;
      if ((meta & LINE_BYTES) != 16 * n || !holds(word, row, n, window)) tally->mixed++;
      continue;
    }
    fill(word, row, n, window);
    const uint32_t keep = row % 16 == 3 ? (uint32_t)LINE_KEEP : 0;
    const uint32_t done = insert(team, cache, word, row, 16 * n | keep, window, (uint32_t)(state >> 32));
    tally->inserts += done == INSERTED;
    tally->lost += done == INSERT_LOST;
  }
}
}  // namespace

// What the threads saw, together: hits, inserts, probes of lines that changed, claims lost, and mixed rows.
extern "C" void cusim_cache_threads(uint32_t n_threads, uint32_t n_sets, uint32_t n_rows, uint32_t steps, uint64_t out[5]) {
  std::vector<CacheSet> sets(n_sets);
  std::vector<uint4> lines((size_t)n_sets * WAYS * MOST_UNITS);
  std::vector<uint64_t> words(n_rows, 1ull << 43);
  memset(sets.data(), 0, n_sets * sizeof(CacheSet));
  const Cache cache = {(uint64_t)sets.data(), (uint64_t)lines.data(), n_sets, 16 * MOST_UNITS};
  std::vector<Tally> tallies(n_threads);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < n_threads; i++) {
    threads.emplace_back([&, i] { work(cache, words, i + 1, steps, &tallies[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tally& tally : tallies) {
    out[0] += tally.hits, out[1] += tally.inserts, out[2] += tally.changed, out[3] += tally.lost, out[4] += tally.mixed;
  }
}
