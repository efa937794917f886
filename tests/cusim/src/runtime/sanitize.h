// sanitize.h - what the sanitizers must be told about fibers and copies.
// ThreadSanitizer: only kernels are instrumented, the runtime is built with CUSIM_TSAN and without the flag. Its
// fibers switch without happens-before, so only what orders lanes on a GPU orders them here.
// AddressSanitizer: runtime and kernels are both instrumented.
#pragma once
#include <stddef.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
extern "C" {
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
void __asan_unpoison_memory_region(void const volatile*, size_t);
}
#endif

#ifdef CUSIM_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void __tsan_read_range(void*, unsigned long);
void __tsan_write_range(void*, unsigned long);
}
#endif

namespace cusim {
#ifdef CUSIM_TSAN
static inline void order_before(void* what) { __tsan_release(what); }
static inline void order_after(void* what) { __tsan_acquire(what); }
// Volatile loops: ThreadSanitizer intercepts memset and memcpy.
// Not seen as an access of any lane.
static inline void raw_set(void* d, int v, size_t n) {
  for (size_t i = 0; i < n; i++) ((volatile unsigned char*)d)[i] = (unsigned char)v;
}
// An access of the current lane.
static inline void lane_copy(void* d, const void* s, size_t n) {
  __tsan_read_range((void*)s, n);
  __tsan_write_range(d, n);
  for (size_t i = 0; i < n; i++) ((volatile unsigned char*)d)[i] = ((const volatile unsigned char*)s)[i];
}
#else
static inline void order_before(void*) {}
static inline void order_after(void*) {}
static inline void raw_set(void* d, int v, size_t n) {
  if (n) memset(d, v, n);
}
static inline void lane_copy(void* d, const void* s, size_t n) { memcpy(d, s, n); }
#endif
}  // namespace cusim
