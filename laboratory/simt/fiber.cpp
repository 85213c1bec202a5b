#include "fiber.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#ifndef SIMT_UCONTEXT
extern "C" void simt_jump(void** save, void* load);
// Saves what a function must preserve, stores the stack pointer in *save and goes on where `load` was saved.
asm(R"(
  .text
  .hidden simt_jump
  .globl simt_jump
  .type simt_jump, @function
simt_jump:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size simt_jump, . - simt_jump
)");
#endif

namespace simt {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

void Stack::allocate(int color) {
  if (mapping_ != nullptr) return;
  void* const mapping = mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, kPage, PROT_NONE) != 0) throw std::bad_alloc();
  mapping_ = mapping;
  bottom_ = static_cast<char*>(mapping) + kPage;
  top_ = static_cast<char*>(bottom_) + kStackBytes - static_cast<size_t>(color) * 192 % kPage;
}

Stack::~Stack() {
  if (mapping_ != nullptr) munmap(mapping_, kPage + kStackBytes);
}

void Stack::unpoison() {
  if (mapping_ != nullptr) __asan_unpoison_memory_region(bottom_, kStackBytes);
}

void Fiber::prepare(const Stack& stack, void (*entry)()) {
  bottom_ = stack.bottom();
  size_ = static_cast<size_t>(static_cast<char*>(stack.top()) - static_cast<char*>(stack.bottom()));
#ifdef SIMT_UCONTEXT
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack.bottom();
  context_.uc_stack.ss_size = size_;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#else
  // What simt_jump pops: six registers, then the address it returns to. The entry finds the stack as after a call.
  void** frame = static_cast<void**>(stack.top()) - 8;
  for (int i = 0; i < 6; ++i) frame[i] = nullptr;
  frame[6] = reinterpret_cast<void*>(entry);
  frame[7] = nullptr;
  stack_pointer_ = frame;
#endif
}

void Fiber::jump(Fiber& next) {
#ifdef SIMT_UCONTEXT
  swapcontext(&context_, &next.context_);
#else
  simt_jump(&stack_pointer_, next.stack_pointer_);
#endif
}

void Fiber::switch_to(Fiber& next) {
  __sanitizer_start_switch_fiber(&fake_stack_, next.bottom_, next.size_);
  jump(next);
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
}

void Fiber::finish(Fiber& next) {
  __sanitizer_start_switch_fiber(nullptr, next.bottom_, next.size_);
  jump(next);
  std::abort();
}

void Fiber::entered(Fiber* previous) {
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (previous != nullptr) {
    previous->bottom_ = bottom;
    previous->size_ = size;
  }
}

}  // namespace simt
