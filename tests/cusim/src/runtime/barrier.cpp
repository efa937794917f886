// barrier.cpp - __syncthreads, and the points at which a lane that polls lets others run.
#include "runtime.h"

namespace cusim {
void release_barrier() {
  Runtime& rt = *runtime;
  rt.stats.barriers++;
  for (uint32_t i = 0; i < rt.n_warps; i++) {
    rt.warps[i].runnable |= rt.warps[i].in_barrier;
    rt.warps[i].in_barrier = 0;
  }
  rt.n_in_barrier = 0;
}

static void check_barrier(const char* file, int line) {
  Runtime& rt = *runtime;
  if (rt.n_alive != rt.n_threads && rt.opts.strict_exit)
    fail("__syncthreads after %u of %u threads of the block have exited, at %s:%d", rt.n_threads - rt.n_alive,
         rt.n_threads, file, line);
  const bool other_site = rt.bar_file != file || rt.bar_line != line;
  if (rt.n_in_barrier && other_site && rt.opts.strict_site)
    fail("__syncthreads at %s:%d while other threads wait in the one at %s:%d", file, line, rt.bar_file, rt.bar_line);
}

void bar_sync(const char* file, int line, int* count_pred) {
  Runtime& rt = *runtime;
  Lane* me = cur;
  Warp& w = rt.warps[me->warp];
  rt.stats.lane_steps++;
  me->file = file;
  me->line = line;
  check_barrier(file, line);
  if (rt.n_in_barrier == 0) {
    rt.bar_file = file;
    rt.bar_line = line;
    rt.bar_count = 0;
  }
  if (count_pred) rt.bar_count += *count_pred;
  order_before(&rt.bar_file);
  w.in_barrier |= 1u << me->lane;
  w.runnable &= ~(1u << me->lane);
  if (++rt.n_in_barrier == rt.n_alive)
    release_barrier();
  else
    leave(me);
  order_after(&rt.bar_file);
  if (count_pred) *count_pred = rt.bar_count;
}

void yield_point() {
  Runtime& rt = *runtime;
  Lane* me = cur;
  rt.stats.lane_steps++;
  if (++rt.idle_yields > rt.opts.max_idle_yields)
    fail("livelock: %llu yields without progress", (unsigned long long)rt.idle_yields);
  if (rt.warps[me->warp].runnable & ~(1u << me->lane))
    leave(me);
  else
    to_scheduler(me);  // only this lane of the warp can run: other warps may
}
}  // namespace cusim
