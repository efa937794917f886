// cusim.h - CUDA kernel source on the CPU: one fiber per GPU thread, exact rendezvous per warp collective.
// Kernel files include common.cuh only; common.cuh includes this header when CUSIM is defined.
// At the end: the CPU twins of the wrappers in common.cuh.
#pragma once
#include "core.h"
#include "ordered.h"
#include "scalar.h"
#include "warp.h"

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
#define threadIdx (cusim::cur->tid)
#define blockIdx (cusim::blk->bid)
#define blockDim (cusim::blk->dim)
#define gridDim (cusim::blk->grid)
#define warpSize 32
#define KERNEL extern "C" __global__
#define DEV static __device__ inline
#define DEV_MEMBER __device__ inline
#define EXPORT_KERNEL(f) static cusim::Reg cusim_reg_##f = cusim::make_reg(#f, f);
#define SHARED(T, name, n) \
  static char name##_key;  \
  T(&name)[n] = *reinterpret_cast<T(*)[n]>(cusim::static_shared(&name##_key, sizeof(T) * (n)))
#define DYN_SHARED(name) unsigned char* const name = cusim::blk->dyn
#define UNROLL
#define FULL 0xffffffffu

// ---------------------------------------------------------------- common.cuh wrappers
static inline void cp_async16(void* s, const void* g) { cusim::cp_async(s, g, 16); }
static inline void cp_async8(void* s, const void* g) { cusim::cp_async(s, g, 8); }
static inline void cp_async4(void* s, const void* g) { cusim::cp_async(s, g, 4); }
static inline void cp_async_commit() { cusim::cp_commit(); }
template <int N> static inline void cp_async_wait() { cusim::cp_wait(N); }
static inline uint4 ld_nc_v4(const uint4* p) { return *p; }
static inline uint32_t ld_acquire_sys(const uint32_t* p) {
  cusim::yield_point();
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void st_release_sys(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
