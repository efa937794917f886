// cusim.h - run CUDA kernel source on the CPU: one fiber per GPU thread, exact rendezvous per warp collective.
// Kernel files include common.cuh only; common.cuh includes this header when CUSIM is defined.
#pragma once
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <utility>
#include <type_traits>

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
  OP_RED_ADD,
  OP_RED_MIN,
  OP_RED_MAX,
  OP_RED_OR,
  OP_RED_AND,
  OP_BAR,
  OP_YIELD
};
struct Lane {
  void* sp;  // saved stack pointer
  uint3 tid;
  uint32_t lane, warp, linear;
  // rendezvous request / reply
  uint64_t arg, result;
  uint32_t mask;
  int32_t src;
  uint16_t width;
  uint8_t op, size;
  const char* file;
  int line;
  // cp.async
  uint32_t cp_committed;  // committed cp.async groups
  void* tsan;
};
struct Block {
  dim3 grid, dim;
  uint3 bid;
  unsigned char* dyn;
  uint32_t dyn_bytes;
};
extern thread_local Lane* cur __attribute__((tls_model("initial-exec")));
extern thread_local Block* blk __attribute__((tls_model("initial-exec")));

uint64_t rendezvous(Op op, uint32_t mask, uint64_t arg, int src, int width, int size, const char* file, int line);
void bar_sync(const char* file, int line, int* count_pred);
void yield_point();
void* static_shared(const void* key, size_t bytes);
void cp_async(void* dst, const void* src, uint32_t n);
void cp_commit();
void cp_wait(uint32_t pending);
[[noreturn]] void fail(const char* fmt, ...);

typedef void (*Invoke)(void (*)(), void**);
struct Reg {
  Reg(const char* name, void (*fn)(), Invoke inv, const uint32_t* psizes, uint32_t n);
};
template <class... A> struct Thunk {
  template <size_t... I> static void go(void (*f)(A...), void** a, std::index_sequence<I...>) {
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
template <class T> static inline uint64_t bits(T v) {
  uint64_t r = 0;
  static_assert(sizeof(T) <= 8, "");
  memcpy(&r, &v, sizeof v);
  return r;
}
template <class T> static inline T unbits(uint64_t v) {
  T r;
  memcpy(&r, &v, sizeof r);
  return r;
}
}  // namespace cusim

// ---------------------------------------------------------------- language
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __constant__ static
#define __grid_constant__
#define threadIdx (cusim::cur->tid)
#define blockIdx (cusim::blk->bid)
#define blockDim (cusim::blk->dim)
#define gridDim (cusim::blk->grid)
#define warpSize 32
#define KERNEL extern "C" __global__
#define DEV static __device__ inline
#define EXPORT_KERNEL(f) static cusim::Reg cusim_reg_##f = cusim::make_reg(#f, f);
#define SHARED(T, name, n) \
  static char name##_key;  \
  T(&name)[n] = *reinterpret_cast<T(*)[n]>(cusim::static_shared(&name##_key, sizeof(T) * (n)))
#define DYN_SHARED(name) unsigned char* const name = cusim::blk->dyn
#define UNROLL
#define FULL 0xffffffffu

// ---------------------------------------------------------------- warp intrinsics
#define CUSIM_LOC const char *f_ = __builtin_FILE(), int l_ = __builtin_LINE()
template <class T> static inline T __shfl_sync(unsigned m, T v, int s, int w = 32, CUSIM_LOC) {
  return cusim::unbits<T>(cusim::rendezvous(cusim::OP_SHFL_IDX, m, cusim::bits(v), s, w, sizeof(T), f_, l_));
}
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned s, int w = 32, CUSIM_LOC) {
  return cusim::unbits<T>(cusim::rendezvous(cusim::OP_SHFL_UP, m, cusim::bits(v), (int)s, w, sizeof(T), f_, l_));
}
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned s, int w = 32, CUSIM_LOC) {
  return cusim::unbits<T>(cusim::rendezvous(cusim::OP_SHFL_DOWN, m, cusim::bits(v), (int)s, w, sizeof(T), f_, l_));
}
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int s, int w = 32, CUSIM_LOC) {
  return cusim::unbits<T>(cusim::rendezvous(cusim::OP_SHFL_XOR, m, cusim::bits(v), s, w, sizeof(T), f_, l_));
}
static inline unsigned __ballot_sync(unsigned m, int p, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_BALLOT, m, p != 0, 0, 32, 4, f_, l_);
}
static inline int __any_sync(unsigned m, int p, CUSIM_LOC) {
  return (int)cusim::rendezvous(cusim::OP_ANY, m, p != 0, 0, 32, 4, f_, l_);
}
static inline int __all_sync(unsigned m, int p, CUSIM_LOC) {
  return (int)cusim::rendezvous(cusim::OP_ALL, m, p != 0, 0, 32, 4, f_, l_);
}
template <class T> static inline unsigned __match_any_sync(unsigned m, T v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_MATCH_ANY, m, cusim::bits(v), 0, 32, sizeof(T), f_, l_);
}
static inline unsigned __reduce_add_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_ADD, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_min_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_MIN, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_or_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_OR, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_and_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_AND, m, v, 0, 32, 4, f_, l_);
}
static inline unsigned __reduce_max_sync(unsigned m, unsigned v, CUSIM_LOC) {
  return (unsigned)cusim::rendezvous(cusim::OP_RED_MAX, m, v, 0, 32, 4, f_, l_);
}
static inline void __syncwarp(unsigned m = 0xffffffffu, CUSIM_LOC) {
  cusim::rendezvous(cusim::OP_SYNCWARP, m, 0, 0, 32, 0, f_, l_);
}
static inline void __syncthreads(CUSIM_LOC) { cusim::bar_sync(f_, l_, nullptr); }
static inline int __syncthreads_count(int p, CUSIM_LOC) {
  int c = p != 0;
  cusim::bar_sync(f_, l_, &c);
  return c;
}

// ---------------------------------------------------------------- scalar intrinsics
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= ((v >> i) & 1u) << (31 - i);
  return r;
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)((((uint64_t)hi << 32) | lo) >> (s & 31));
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)(((((uint64_t)hi << 32) | lo) << (s & 31)) >> 32);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  uint64_t v = ((uint64_t)b << 32) | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    unsigned k = (s >> (4 * i)) & 7;
    r |= (unsigned)((v >> (8 * k)) & 0xff) << (8 * i);
  }
  return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) { cusim::yield_point(); }
template <class T> static inline T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicOr(T* p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicAnd(T* p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicExch(T* p, T v) {
  cusim::yield_point();
  return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicCAS(T* p, T c, T v) {
  cusim::yield_point();
  __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return c;
}
template <class T> static inline T atomicMax(T* p, T v) {
  T o = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (o < v && !__atomic_compare_exchange_n(p, &o, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return o;
}

// ---------------------------------------------------------------- common.cuh wrappers
static inline void cp_async16(void* s, const void* g) { cusim::cp_async(s, g, 16); }
static inline void cp_async_commit() { cusim::cp_commit(); }
template <int N> static inline void cp_async_wait() { cusim::cp_wait(N); }
static inline uint4 ld_nc_v4(const uint4* p) { return *p; }
static inline uint32_t ld_acquire_sys(const uint32_t* p) {
  cusim::yield_point();
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void st_release_sys(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
