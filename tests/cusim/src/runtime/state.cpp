// state.cpp - the runtime of each OS thread, the table of kernels, and the C interface that asks about them.
#include <sys/mman.h>

#include <new>
#include <unordered_map>

#include "runtime.h"

namespace cusim {
__thread Lane* cur;
__thread Block* blk;
__thread Runtime* runtime;

static constexpr size_t COPIES_BYTES = sizeof(Copy) * MAX_COPIES * MAX_THREADS;

// Gives a thread's runtime back when the thread ends: a test program has a thread per test.
struct Release {
  ~Release() {
    if (!runtime) return;
    Runtime& rt = *runtime;
#ifdef CUSIM_TSAN
    for (uint32_t i = 0; i < rt.n_tsan; i++) __tsan_destroy_fiber(rt.tsan_pool[i]);
#endif
    if (rt.stacks) munmap(rt.stacks, rt.n_stacks * STACK);
    munmap(rt.copies, COPIES_BYTES);
    rt.~Runtime();
    munmap(&rt, sizeof rt);
    runtime = nullptr;
  }
};

static void* pages(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return p;
}

Runtime& ensure_runtime() {
  if (!runtime) {
    static thread_local Release release;
    (void)release;
    runtime = new (pages(sizeof(Runtime))) Runtime;
    runtime->copies = (Copy*)pages(COPIES_BYTES);
  }
  return *runtime;
}

// Filled by static initializers, before any launch; only read after that.
static std::unordered_map<std::string, Kernel*>& table() {
  static auto* t = new std::unordered_map<std::string, Kernel*>;
  return *t;
}

Reg::Reg(const char* name, void (*fn)(), Invoke invoke, const uint32_t* sizes, uint32_t n) {
  table()[name] = new Kernel{name, fn, invoke, std::vector<uint32_t>(sizes, sizes + n)};
}
}  // namespace cusim

using namespace cusim;
extern "C" {
const void* cusim_find(const char* name) {
  auto it = table().find(name);
  return it == table().end() ? nullptr : it->second;
}
const char* cusim_kernel_name(const void* k) { return ((const Kernel*)k)->name.c_str(); }
uint32_t cusim_kernel_params(const void* k, const uint32_t** sizes) {
  auto* kernel = (const Kernel*)k;
  *sizes = kernel->sizes.data();
  return (uint32_t)kernel->sizes.size();
}
const char* cusim_error() { return ensure_runtime().error.c_str(); }
void cusim_get_stats(cusim_stats* s) { *s = ensure_runtime().stats; }
}
