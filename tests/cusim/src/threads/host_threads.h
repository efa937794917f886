// host_threads.h - device code of one lane on threads of the host: what common.cuh includes with HOST_THREADS.
// A collective of one lane is its own answer. Nothing here waits, and no fiber runs.
#pragma once
#include "core.h"
#include "ordered.h"

#define __device__
#define __forceinline__ inline
#define DEV static inline
#define DEV_MEMBER inline
#define UNROLL
#define FULL 0xffffffffu

static const uint3 threadIdx = {0, 0, 0};
template <class T> static inline T __shfl_sync(unsigned, T v, int, int = 32) { return v; }
template <class T> static inline T __shfl_up_sync(unsigned, T v, unsigned, int = 32) { return v; }
static inline unsigned __ballot_sync(unsigned, int p) { return p != 0; }
static inline int __all_sync(unsigned, int p) { return p != 0; }
static inline unsigned __reduce_or_sync(unsigned, unsigned v) { return v; }
static inline void __syncwarp(unsigned) {}
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)(((uint64_t)hi << 32 | lo) >> (s & 31));
}
template <class T> static inline T atomicCAS(T* p, T c, T v) {
  __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return c;
}
