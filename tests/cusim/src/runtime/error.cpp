// error.cpp - what is said of a kernel that breaks a rule, and how it is stopped.
#include <stdarg.h>
#include <stdio.h>

#include "runtime.h"

namespace cusim {
static const char* const OP_NAMES[OP_COUNT] = {
    "none",
    "__shfl_sync",
    "__shfl_up_sync",
    "__shfl_down_sync",
    "__shfl_xor_sync",
    "__ballot_sync",
    "__any_sync",
    "__all_sync",
    "__syncwarp",
    "__match_any_sync",
    "__match_all_sync",
    "__reduce_add_sync",
    "__reduce_min_sync",
    "__reduce_max_sync",
    "__reduce_or_sync",
    "__reduce_and_sync",
    "__reduce_xor_sync",
};

const char* op_name(uint8_t op) { return OP_NAMES[op]; }

static std::string format_list(const char* f, va_list list) {
  char text[4096];
  vsnprintf(text, sizeof text, f, list);
  return text;
}

std::string format(const char* f, ...) {
  va_list list;
  va_start(list, f);
  auto text = format_list(f, list);
  va_end(list);
  return text;
}

std::string where(const Lane* l) {
  const uint3 b = blk->bid;
  return format("kernel %s block (%u,%u,%u) warp %u lane %u", runtime->kernel->name.c_str(), b.x, b.y, b.z, l->warp,
                l->lane);
}

void stop() {
  runtime->failed = true;
  to_scheduler(cur);
  __builtin_unreachable();
}

void fail(const char* f, ...) {
  {  // the text's memory is given back before the lane is left for good
    va_list list;
    va_start(list, f);
    runtime->error = where(cur) + ": " + format_list(f, list);
    va_end(list);
  }
  stop();
}

std::string deadlock() {
  const Runtime& rt = *runtime;
  const uint3 b = blk->bid;
  std::string s = format("deadlock in kernel %s block (%u,%u,%u):", rt.kernel->name.c_str(), b.x, b.y, b.z);
  for (uint32_t i = 0; i < rt.n_warps; i++) {
    const Warp& w = rt.warps[i];
    for (int j = 0; j < w.n_groups; j++) {
      const Group& g = w.groups[j];
      s += format("\n  warp %u: lanes %08x wait in %s(mask %08x) at %s:%d for lanes %08x", i, g.arrived,
                  op_name(g.op), g.mask, g.file, g.line, g.mask & ~g.arrived);
    }
    if (w.in_barrier) {
      const Lane& l = w.lanes[__builtin_ctz(w.in_barrier)];
      s += format("\n  warp %u: lanes %08x wait in __syncthreads at %s:%d", i, w.in_barrier, l.file, l.line);
    }
    if (w.exited) s += format("\n  warp %u: lanes %08x have exited", i, w.exited);
  }
  return s;
}
}  // namespace cusim
