// core.h - what kernels and the runtime share: lanes, thread blocks, the entries of the runtime, registration.
// No macros of the CUDA language here, so that the runtime may include it.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

// ---------------------------------------------------------------- vector types
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
static inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return uint4{a, b, c, d}; }
static inline uint2 make_uint2(unsigned a, unsigned b) { return uint2{a, b}; }

namespace cusim {
enum Op : uint8_t {
  OP_NONE,
  OP_SHFL_IDX,
  OP_SHFL_UP,
  OP_SHFL_DOWN,
  OP_SHFL_XOR,
  OP_BALLOT,
  OP_ANY,
  OP_ALL,
  OP_SYNCWARP,
  OP_MATCH_ANY,
  OP_MATCH_ALL,
  OP_RED_ADD,
  OP_RED_MIN,
  OP_RED_MAX,
  OP_RED_OR,
  OP_RED_AND,
  OP_RED_XOR,
  OP_COUNT
};

// One GPU thread.
struct Lane {
  uint3 tid;
  uint32_t lane, warp, linear;
  // What it asks of a collective, and the answer.
  uint64_t arg, result;
  uint32_t mask;
  int32_t src;
  uint16_t width;
  uint8_t op, size;
  const char* file;
  int line;
  uint32_t cp_committed;  // groups of cp.async that it has committed
  void* tsan;             // its fiber for ThreadSanitizer
};

// One thread block.
struct Block {
  dim3 grid, dim;
  uint3 bid;
  unsigned char* dyn;
};

// `__thread`, not `thread_local`: without a function that might initialize them.
extern __thread Lane* cur __attribute__((tls_model("initial-exec")));
extern __thread Block* blk __attribute__((tls_model("initial-exec")));

uint64_t rendezvous(Op op, uint32_t mask, uint64_t arg, int src, int width, int size, const char* file, int line);
void bar_sync(const char* file, int line, int* count_pred);
void yield_point();
void* static_shared(const void* key, size_t bytes);
void cp_async(void* dst, const void* src, uint32_t n);
void cp_commit();
void cp_wait(uint32_t pending);

// ---------------------------------------------------------------- registration of kernels
typedef void (*Invoke)(void (*)(), void**);
struct Reg {
  Reg(const char* name, void (*fn)(), Invoke inv, const uint32_t* sizes, uint32_t n);
};
template <class... A> struct Thunk {
  template <size_t... I> static void go(void (*f)(A...), void** a, std::index_sequence<I...>) {
    (void)a;  // a kernel without parameters
    f(*reinterpret_cast<std::remove_reference_t<A>*>(a[I])...);
  }
  static void invoke(void (*f)(), void** a) {
    go(reinterpret_cast<void (*)(A...)>(f), a, std::index_sequence_for<A...>{});
  }
  static constexpr uint32_t n = sizeof...(A);
  static inline const uint32_t sizes[sizeof...(A) + 1] = {(uint32_t)sizeof(A)..., 0};
};
template <class... A> Reg make_reg(const char* name, void (*f)(A...)) {
  return Reg(name, reinterpret_cast<void (*)()>(f), &Thunk<A...>::invoke, Thunk<A...>::sizes, Thunk<A...>::n);
}

// A value of up to 8 bytes as a word, and back.
template <class T> static inline uint64_t bits(T v) {
  static_assert(sizeof(T) <= 8, "a collective takes values of up to 8 bytes");
  uint64_t r = 0;
  memcpy(&r, &v, sizeof v);
  return r;
}
template <class T> static inline T unbits(uint64_t v) {
  T r;
  memcpy(&r, &v, sizeof r);
  return r;
}
}  // namespace cusim
