// ordered.h - CPU twins of the accesses in common.cuh that other thread blocks, here threads, may make at the same time.
#pragma once
#include "core.h"

// ThreadSanitizer does not model fences, and needs none to see that every access is atomic.
#if defined(__SANITIZE_THREAD__)
static inline void fence_gpu() { __sync_synchronize(); }
#else
static inline void fence_gpu() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
#endif
static inline uint64_t ld_acquire_gpu(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline uint64_t ld_relaxed_gpu(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline uint32_t ld_relaxed_gpu(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline uint4 ld_relaxed_gpu_v4(const uint4* p) {
  return uint4{ld_relaxed_gpu(&p->x), ld_relaxed_gpu(&p->y), ld_relaxed_gpu(&p->z), ld_relaxed_gpu(&p->w)};
}
static inline void st_release_gpu(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void st_relaxed_gpu(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline void st_relaxed_gpu(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline void st_relaxed_gpu_v4(uint4* p, uint4 v) {
  st_relaxed_gpu(&p->x, v.x), st_relaxed_gpu(&p->y, v.y), st_relaxed_gpu(&p->z, v.z), st_relaxed_gpu(&p->w, v.w);
}
