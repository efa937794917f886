// shared.cpp - shared memory of a thread block, and cp.async into it.
// Bytes that nobody wrote and bytes whose copy nobody waited for show as poison.
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime.h"

namespace cusim {
static constexpr size_t ALIGN = 128;

#ifdef CUSIM_TSAN
// Fresh pages per thread block: no history of the block before. Static arrays first, dynamic memory after them.
static constexpr size_t ARENA_STATIC = 256 << 10, ARENA = 512 << 10;

static void* shared_bytes(size_t bytes) {
  Runtime& rt = *runtime;
  void* p = rt.tsan_arena + rt.tsan_arena_used;
  rt.tsan_arena_used += (bytes + ALIGN - 1) & ~(ALIGN - 1);
  if (rt.tsan_arena_used > ARENA_STATIC) fail("static shared memory of more than %zu bytes", ARENA_STATIC);
  return p;
}

void begin_shared(Block& b, uint32_t dyn_bytes) {
  Runtime& rt = *runtime;
  void* p = mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED || dyn_bytes > ARENA - ARENA_STATIC) abort();
  rt.tsan_arena = (char*)p;
  rt.tsan_arena_used = 0;
  rt.n_statics = 0;
  b.dyn = (unsigned char*)rt.tsan_arena + ARENA_STATIC;
  raw_set(b.dyn, POISON_SHARED, dyn_bytes);
}

void end_shared() {
  Runtime& rt = *runtime;
  if (rt.tsan_arena) munmap(rt.tsan_arena, ARENA);
  rt.tsan_arena = nullptr;
  rt.n_statics = 0;
}
#else
static void* shared_bytes(size_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, ALIGN, bytes)) abort();
  return p;
}

void begin_shared(Block& b, uint32_t dyn_bytes) {
  Runtime& rt = *runtime;
  rt.n_statics = 0;
  rt.dyn = dyn_bytes ? shared_bytes(dyn_bytes) : nullptr;
  b.dyn = (unsigned char*)rt.dyn;
  raw_set(b.dyn, POISON_SHARED, dyn_bytes);
}

void end_shared() {
  Runtime& rt = *runtime;
  for (uint32_t i = 0; i < rt.n_statics; i++) free(rt.statics[i].p);
  free(rt.dyn);
  rt.dyn = nullptr;
  rt.n_statics = 0;
}
#endif

void* static_shared(const void* key, size_t bytes) {
  Runtime& rt = *runtime;
  for (uint32_t i = 0; i < rt.n_statics; i++)
    if (rt.statics[i].key == key) return rt.statics[i].p;
  if (rt.n_statics == MAX_STATICS) fail("more than %u static shared arrays", MAX_STATICS);
  void* p = shared_bytes(bytes);
  raw_set(p, POISON_SHARED, bytes);
  rt.statics[rt.n_statics++] = Static{key, p};
  return p;
}

void cp_async(void* d, const void* s, uint32_t n) {
  Runtime& rt = *runtime;
  Lane* me = cur;
  if (((uintptr_t)d | (uintptr_t)s) & (n - 1)) fail("cp.async misaligned: shared %p global %p size %u", d, s, n);
  if (rt.n_copies[me->linear] == MAX_COPIES) fail("more than %u cp.async in flight", MAX_COPIES);
  rt.copies[me->linear * MAX_COPIES + rt.n_copies[me->linear]++] = Copy{d, s, n, me->cp_committed};
  raw_set(d, POISON_COPY, n);
}

void cp_commit() { cur->cp_committed++; }

void cp_wait(uint32_t pending) {
  Runtime& rt = *runtime;
  Lane* me = cur;
  Copy* q = rt.copies + me->linear * MAX_COPIES;
  const uint32_t n = rt.n_copies[me->linear];
  uint32_t done = 0;
  for (; done < n && q[done].group + pending < me->cp_committed; done++) lane_copy(q[done].d, q[done].s, q[done].n);
  for (uint32_t i = done; i < n; i++) q[i - done] = q[i];
  rt.n_copies[me->linear] = n - done;
}
}  // namespace cusim
