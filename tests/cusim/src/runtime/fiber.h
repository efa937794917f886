// fiber.h - switching between the stacks of GPU threads.
// x86-64 has 16 lines of assembly (3 ns); other machines, and CUSIM_UCONTEXT, have ucontext (about 300 ns).
#pragma once
#include <stddef.h>

#if defined(__x86_64__) && !defined(CUSIM_UCONTEXT)
extern "C" void cusim_switch(void** save, void* load);
namespace cusim {
struct Fiber {
  void* sp;
};
static inline void fiber_switch(Fiber& from, Fiber& to) { cusim_switch(&from.sp, to.sp); }
#else
#include <ucontext.h>
namespace cusim {
struct Fiber {
  ucontext_t context;
};
static inline void fiber_switch(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
#endif
// Prepares `f` to call `entry` on the stack whose bytes start at `low`; `entry` never returns.
// `shift` moves the start of the stack, so that the lanes' frames do not all fall into one set of the cache.
void fiber_make(Fiber& f, char* low, size_t bytes, size_t shift, void (*entry)());
}  // namespace cusim
