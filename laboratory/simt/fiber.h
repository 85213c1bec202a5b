// Stacks, and switching between them without the kernel's help (swapcontext asks it to save the signal mask).
#pragma once

#include <cstddef>
#include <cstdint>

#include "races.h"

#if !defined(__x86_64__) || defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT 1
#include <ucontext.h>
#endif

namespace simt {

constexpr size_t kStackBytes = 256 * 1024;

// A stack below a page that may not be touched.
class Stack {
 public:
  Stack() = default;
  Stack(const Stack&) = delete;
  ~Stack();

  // Once. `color` staggers the tops, so that equal frames of many stacks do not fall on the same cache lines.
  void allocate(int color);
  void* bottom() const { return bottom_; }
  void* top() const { return top_; }
  Unwatched extent() const { return {reinterpret_cast<uintptr_t>(bottom_), kStackBytes}; }
  // Forgets what an abandoned fiber left behind.
  void unpoison();

 private:
  void* mapping_ = nullptr;
  void* bottom_ = nullptr;
  void* top_ = nullptr;
};

// A suspended computation. AddressSanitizer is told of every switch, so that it knows the bounds of the stack.
class Fiber {
 public:
  // Will start with entry(), which must not return.
  void prepare(const Stack& stack, void (*entry)());
  // Suspends this fiber, which runs now, and goes on with `next`. Returns when something switches back.
  void switch_to(Fiber& next);
  // The same, but this fiber is over.
  [[noreturn]] void finish(Fiber& next);
  // A new fiber's first act. `previous`: the one that it was entered from, if its stack is not known yet.
  static void entered(Fiber* previous);

 private:
  void jump(Fiber& next);

  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void* fake_stack_ = nullptr;
#ifdef SIMT_UCONTEXT
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;
#endif
};

}  // namespace simt
