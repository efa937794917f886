// launch.cpp - one launch: its thread blocks one after another, on the calling thread.
#include <pthread.h>

#include "runtime.h"

using namespace cusim;

static constexpr uint64_t DEFAULT_IDLE_YIELDS = 50'000'000;
static constexpr uint32_t MAX_SHARED = 227 << 10;  // of one thread block on compute capability 9.0

static bool legal(const uint32_t g[3], const uint32_t b[3], uint32_t dyn) {
  const uint64_t threads = (uint64_t)b[0] * b[1] * b[2];
  return threads && b[0] <= MAX_THREADS && b[1] <= MAX_THREADS && threads <= MAX_THREADS && g[0] && g[1] && g[2] &&
         g[1] <= 65535 && g[2] <= 65535 && dyn <= MAX_SHARED;
}

static void begin(Runtime& rt, const void* kernel, void** args, const cusim_opts* o) {
  rt.kernel = (Kernel*)kernel;
  rt.args = args;
  rt.error.clear();
  rt.failed = false;
  rt.opts = o ? *o : cusim_opts{CUSIM_FORWARD, 1, 1, 1, 0};
  if (!rt.opts.max_idle_yields) rt.opts.max_idle_yields = DEFAULT_IDLE_YIELDS;
  rt.random = rt.opts.seed ? rt.opts.seed : 1;
  rt.stats = cusim_stats{};
}

static void tell_sanitizer([[maybe_unused]] Runtime& rt, const uint32_t b[3]) {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  void* low;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &rt.asan_size);
  pthread_attr_destroy(&attributes);
  rt.asan_bottom = low;
#endif
#ifdef CUSIM_TSAN
  rt.tsan_scheduler = __tsan_get_current_fiber();
#endif
  ensure_stacks(b[0] * b[1] * b[2]);
}

static bool run_one(const uint32_t g[3], const uint32_t b[3], uint3 bid, uint32_t dyn) {
  Runtime& rt = *runtime;
  Block block{dim3{g[0], g[1], g[2]}, dim3{b[0], b[1], b[2]}, bid, nullptr};
  begin_shared(block, dyn);
  order_before(&rt.opts);
  const bool ok = run_block(block);
  end_shared();
  return ok;
}

static bool run_grid(const uint32_t g[3], const uint32_t b[3], uint32_t dyn) {
  for (uint32_t z = 0; z < g[2]; z++)
    for (uint32_t y = 0; y < g[1]; y++)
      for (uint32_t x = 0; x < g[0]; x++)
        if (!run_one(g, b, uint3{x, y, z}, dyn)) return false;
  return true;
}

extern "C" int cusim_launch(const void* kernel, const uint32_t g[3], const uint32_t b[3], uint32_t dyn, void** args,
                            const cusim_opts* o) {
  Runtime& rt = ensure_runtime();
  begin(rt, kernel, args, o);
  if (!legal(g, b, dyn)) {
    rt.error = format("invalid launch configuration of kernel %s: grid (%u,%u,%u), thread block (%u,%u,%u), %u bytes "
                      "of shared memory",
                      rt.kernel->name.c_str(), g[0], g[1], g[2], b[0], b[1], b[2], dyn);
    return CUSIM_BAD_LAUNCH;
  }
  FaultGuard guard;
  if (sigsetjmp(rt.on_fault, 1)) {
    cur = nullptr;
    blk = nullptr;
    end_shared();
    return CUSIM_FAULT;
  }
  tell_sanitizer(rt, b);
  const bool ok = run_grid(g, b, dyn);
  order_after(&rt.scheduler);
  return ok ? CUSIM_OK : CUSIM_RULE;
}
