// runtime.h - state of the runtime: one per OS thread, for one launch at a time, its thread blocks one by one.
#pragma once
#include <setjmp.h>

#include <string>
#include <vector>

#include "core.h"
#include "cusim_rt.h"
#include "fiber.h"
#include "sanitize.h"

namespace cusim {
struct Kernel {
  std::string name;
  void (*fn)();
  Invoke invoke;
  std::vector<uint32_t> sizes;
};
// Lanes that wait for each other in one collective.
struct Group {
  uint32_t mask, arrived;
  uint8_t op, size;
  uint16_t width;
  const char* file;
  int line;
};
struct Warp {
  uint32_t runnable, exited, present, in_barrier;
  int n_groups;
  Group groups[32];
  Lane* lanes;
};
// One cp.async in flight: it lands when its lane waits for its group.
struct Copy {
  void* d;
  const void* s;
  uint32_t n, group;
};
// A static shared array of the running thread block.
struct Static {
  const void* key;
  void* p;
};

constexpr uint32_t MAX_THREADS = 1024, MAX_WARPS = 32, MAX_COPIES = 1024, MAX_STATICS = 64;
constexpr size_t STACK = 128 << 10;
constexpr int POISON_SHARED = 0xA5, POISON_COPY = 0xCD;

struct Runtime {
  // The launch.
  Kernel* kernel = nullptr;
  void** args = nullptr;
  cusim_opts opts{};
  std::string error;
  bool failed = false;
  cusim_stats stats{};
  uint32_t random = 1;
  // The thread block.
  uint32_t n_threads = 0, n_warps = 0, n_alive = 0, n_in_barrier = 0;
  uint64_t idle_yields = 0;
  const char* bar_file = nullptr;
  int bar_line = 0, bar_count = 0;
  Lane lanes[MAX_THREADS];
  Warp warps[MAX_WARPS];
  uint32_t n_copies[MAX_THREADS];
  Copy* copies = nullptr;
  Static statics[MAX_STATICS];
  uint32_t n_statics = 0;
  void* dyn = nullptr;
  // Fibers: the scheduler's and one per lane.
  Fiber scheduler{};
  Fiber fibers[MAX_THREADS];
  char* stacks = nullptr;
  uint32_t n_stacks = 0;
  // Faults of a kernel come back to the launch.
  sigjmp_buf on_fault;
  bool in_launch = false;
  // ThreadSanitizer.
  void* tsan_pool[MAX_THREADS];
  uint32_t n_tsan = 0;
  void* tsan_scheduler = nullptr;
  char* tsan_arena = nullptr;
  size_t tsan_arena_used = 0;
  // AddressSanitizer.
  void* asan_scheduler = nullptr;
  void* asan_lanes[MAX_THREADS] = {};
  const void* asan_bottom = nullptr;
  size_t asan_size = 0;
};
// A pointer only: a library that is loaded late has few bytes of thread-local storage.
extern __thread Runtime* runtime __attribute__((tls_model("initial-exec")));

Runtime& ensure_runtime();
Kernel* find_kernel(const char* name);

// ---------------------------------------------------------------- error.cpp
std::string format(const char* f, ...) __attribute__((format(printf, 1, 2)));
std::string where(const Lane* l);
const char* op_name(uint8_t op);
// Ends the launch with the text; the lane that calls is never resumed.
[[noreturn]] void fail(const char* f, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void stop();
std::string deadlock();

// ---------------------------------------------------------------- fault.cpp
// Faults of the kernels of this thread become errors while one lives; sanitizer builds leave them to the sanitizer.
struct FaultGuard {
  FaultGuard();
  ~FaultGuard();
  void* stack;
  void *old_stack;
  size_t old_size;
  int old_flags;
};

// ---------------------------------------------------------------- schedule.cpp
// Leaves the current lane for the next runnable lane of its warp, or for the scheduler.
void leave(Lane* me);
void to_scheduler(Lane* me);
bool run_block(Block& b);
void ensure_stacks(uint32_t n);

// ---------------------------------------------------------------- rendezvous.cpp, barrier.cpp, shared.cpp
void complete(Warp& w, Group& g);
void lane_exits(Lane* me);
void release_barrier();
void begin_shared(Block& b, uint32_t dyn_bytes);
void end_shared();
}  // namespace cusim
