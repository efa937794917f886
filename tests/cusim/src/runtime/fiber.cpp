// fiber.cpp - the two ways to switch stacks; see fiber.h.
#include "fiber.h"

#if defined(__x86_64__) && !defined(CUSIM_UCONTEXT)
// System V: what a callee must keep, then the return address.
asm(R"(
.text
.globl cusim_switch
.type cusim_switch,@function
cusim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size cusim_switch,.-cusim_switch
)");

namespace cusim {
void fiber_make(Fiber& f, char* low, size_t bytes, size_t shift, void (*entry)()) {
  void** sp = (void**)(low + bytes - 64 - shift);
  *--sp = nullptr;  // the return address of `entry`
  *--sp = (void*)entry;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  f.sp = sp;
}
}  // namespace cusim
#else
namespace cusim {
void fiber_make(Fiber& f, char* low, size_t bytes, size_t shift, void (*entry)()) {
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = low;
  f.context.uc_stack.ss_size = bytes - shift;
  f.context.uc_link = nullptr;
  makecontext(&f.context, entry, 0);
}
}  // namespace cusim
#endif
