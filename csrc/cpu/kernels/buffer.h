// Uninitialised workspace of one kernel call.
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include <new>

namespace halfgnn::HALFGNN_ISA {

template <class E>
class Buffer {
 public:
  explicit Buffer(int64_t n) : data_(static_cast<E*>(malloc(static_cast<size_t>(n > 0 ? n : 1) * sizeof(E)))) {
    if (!data_) throw std::bad_alloc();
  }
  ~Buffer() { free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator E*() const { return data_; }
  E* get() const { return data_; }

 private:
  E* data_;
};

}  // namespace halfgnn::HALFGNN_ISA
