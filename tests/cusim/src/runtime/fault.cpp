// fault.cpp - SIGSEGV and SIGBUS of a kernel become an error of its launch.
// The handler is installed once and stays: launches run on several threads at once. What is not a kernel's fault
// goes to the handler that was there before.
#include "runtime.h"

#if defined(__SANITIZE_ADDRESS__) || defined(CUSIM_TSAN)
namespace cusim {
FaultGuard::FaultGuard() {}
FaultGuard::~FaultGuard() {}
}  // namespace cusim
#else
#include <signal.h>
#include <stdlib.h>

#include <mutex>

namespace cusim {
static constexpr size_t HANDLER_STACK = 64 << 10;
static struct sigaction old_segv, old_bus;

static void hand_on(int sig, siginfo_t* info, void* context) {
  const struct sigaction& old = sig == SIGSEGV ? old_segv : old_bus;
  if ((old.sa_flags & SA_SIGINFO) && old.sa_sigaction) {
    old.sa_sigaction(sig, info, context);
  } else if (!(old.sa_flags & SA_SIGINFO) && old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
    old.sa_handler(sig);
  } else {
    signal(sig, SIG_DFL);  // the access is repeated and ends the process
  }
}

static void on_fault(int sig, siginfo_t* info, void* context) {
  if (!runtime || !runtime->in_launch || !cur) {
    hand_on(sig, info, context);
    return;
  }
  runtime->error = where(cur) + format(": illegal memory access at %p (signal %d)", info->si_addr, sig);
  siglongjmp(runtime->on_fault, 1);
}

static void install() {
  struct sigaction a {};
  a.sa_sigaction = on_fault;
  a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &a, &old_segv);
  sigaction(SIGBUS, &a, &old_bus);
}

FaultGuard::FaultGuard() {
  static std::once_flag once;
  std::call_once(once, install);
  // A stack of its own: the fault may be an overflow of a lane's stack.
  stack = malloc(HANDLER_STACK);
  stack_t mine{}, old{};
  mine.ss_sp = stack;
  mine.ss_size = HANDLER_STACK;
  sigaltstack(&mine, &old);
  old_stack = old.ss_sp;
  old_size = old.ss_size;
  old_flags = old.ss_flags;
  runtime->in_launch = true;
}

FaultGuard::~FaultGuard() {
  runtime->in_launch = false;
  stack_t old{};
  old.ss_sp = old_stack;
  old.ss_size = old_size;
  old.ss_flags = old_flags;
  sigaltstack(&old, nullptr);
  free(stack);
}
}  // namespace cusim
#endif
