// schedule.cpp - which lane runs next: forward, reverse or random by seed; and the run of one thread block.
#include <sys/mman.h>

#include "runtime.h"

namespace cusim {
static inline uint32_t random_word(Runtime& rt) {  // xorshift
  rt.random ^= rt.random << 13;
  rt.random ^= rt.random >> 17;
  rt.random ^= rt.random << 5;
  return rt.random;
}

// The next of the lanes `runnable`, after lane `after`.
static inline uint32_t pick(Runtime& rt, uint32_t runnable, uint32_t after) {
  if (rt.opts.order == CUSIM_FORWARD) {
    const uint32_t higher = after < 31 ? runnable & ~((2u << after) - 1) : 0;
    return (uint32_t)__builtin_ctz(higher ? higher : runnable);
  }
  if (rt.opts.order == CUSIM_REVERSE) {
    const uint32_t lower = runnable & ((1u << after) - 1);
    return 31u - (uint32_t)__builtin_clz(lower ? lower : runnable);
  }
  for (uint32_t n = random_word(rt) % (uint32_t)__builtin_popcount(runnable); n; n--) runnable &= runnable - 1;
  return (uint32_t)__builtin_ctz(runnable);
}

// Null is the scheduler.
static inline void switch_to(Lane* from, Lane* to) {
  Runtime& rt = *runtime;
  Fiber& a = from ? rt.fibers[from->linear] : rt.scheduler;
  Fiber& b = to ? rt.fibers[to->linear] : rt.scheduler;
  rt.stats.switches++;
  cur = to;
#if defined(__SANITIZE_ADDRESS__)
  void** fake = from ? &rt.asan_lanes[from->linear] : &rt.asan_scheduler;
  const void* bottom = to ? rt.stacks + (size_t)to->linear * STACK : rt.asan_bottom;
  __sanitizer_start_switch_fiber(fake, bottom, to ? STACK : rt.asan_size);
  fiber_switch(a, b);
  __sanitizer_finish_switch_fiber(*fake, nullptr, nullptr);
#else
#ifdef CUSIM_TSAN
  __tsan_switch_to_fiber(to ? to->tsan : rt.tsan_scheduler, 1);
#endif
  fiber_switch(a, b);
#endif
}

void to_scheduler(Lane* me) { switch_to(me, nullptr); }

void leave(Lane* me) {
  Runtime& rt = *runtime;
  Warp& w = rt.warps[me->warp];
  if (!w.runnable) return to_scheduler(me);
  Lane* next = &w.lanes[pick(rt, w.runnable, me->lane)];
  if (next != me) switch_to(me, next);
}

static void lane_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  Runtime& rt = *runtime;
  order_after(&rt.opts);  // what the host wrote before the launch
  rt.kernel->invoke(rt.kernel->fn, rt.args);
  order_before(&rt.scheduler);  // what the host reads after it
  lane_exits(cur);
  leave(cur);
  __builtin_unreachable();
}

void ensure_stacks(uint32_t n) {
  Runtime& rt = *runtime;
  if (n <= rt.n_stacks) return;
  if (rt.stacks) munmap(rt.stacks, rt.n_stacks * STACK);
  rt.n_stacks = 0;
  void* p = mmap(nullptr, n * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  rt.stacks = (char*)p;
  // A guard page below each: an overflow is a fault of its lane.
  for (uint32_t i = 0; i < n; i++) mprotect(rt.stacks + i * STACK, 4096, PROT_NONE);
  rt.n_stacks = n;
}

static void make_lane(Runtime& rt, const Block& b, uint32_t i) {
  Lane& l = rt.lanes[i];
  rt.n_copies[i] = 0;
  l.cp_committed = 0;
  l.linear = i;
  l.lane = i & 31;
  l.warp = i >> 5;
  l.tid = uint3{i % b.dim.x, i / b.dim.x % b.dim.y, i / (b.dim.x * b.dim.y)};
  char* guarded = rt.stacks + (size_t)i * STACK;
  fiber_make(rt.fibers[i], guarded + 4096, STACK - 4096, (i % 61) * 192, lane_main);
#ifdef CUSIM_TSAN
  while (rt.n_tsan <= i) rt.tsan_pool[rt.n_tsan++] = __tsan_create_fiber(0);
  l.tsan = rt.tsan_pool[i];
#endif
}

static void make_block(Runtime& rt, const Block& b) {
  const uint32_t n = b.dim.x * b.dim.y * b.dim.z;
  ensure_stacks(n);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(rt.stacks, n * STACK);
#endif
  rt.n_threads = rt.n_alive = n;
  rt.n_warps = (n + 31) / 32;
  rt.n_in_barrier = 0;
  rt.idle_yields = 0;
  for (uint32_t i = 0; i < rt.n_warps; i++) {
    Warp& w = rt.warps[i];
    const uint32_t lanes = n - i * 32 < 32 ? n - i * 32 : 32;
    w.present = w.runnable = lanes == 32 ? ~0u : (1u << lanes) - 1;
    w.exited = w.in_barrier = 0;
    w.n_groups = 0;
    w.lanes = &rt.lanes[i * 32];
  }
  for (uint32_t i = 0; i < n; i++) make_lane(rt, b, i);
}

// The next warp with a runnable lane, from `start` on; null without one.
static Warp* next_warp(Runtime& rt, uint32_t& start) {
  for (uint32_t i = 0; i < rt.n_warps; i++) {
    uint32_t k = (start + i) % rt.n_warps;
    if (rt.opts.order == CUSIM_REVERSE) k = rt.n_warps - 1 - k;
    if (!rt.warps[k].runnable) continue;
    start = (start + i + 1) % rt.n_warps;
    return &rt.warps[k];
  }
  return nullptr;
}

bool run_block(Block& b) {
  Runtime& rt = *runtime;
  blk = &b;
  make_block(rt, b);
  uint32_t start = 0;
  while (!rt.failed) {
    Warp* w = next_warp(rt, start);
    if (!w) {
      if (rt.n_alive) {
        rt.error = deadlock();
        rt.failed = true;
      }
      break;
    }
    const uint32_t before_first = rt.opts.order == CUSIM_REVERSE ? 0 : 31;
    switch_to(nullptr, &w->lanes[pick(rt, w->runnable, before_first)]);
  }
  rt.stats.blocks++;
  rt.stats.threads += rt.n_threads;
  blk = nullptr;
  return !rt.failed;
}
}  // namespace cusim
