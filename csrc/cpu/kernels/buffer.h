// Uninitialised workspace of one kernel call, whose vectors lie in one line of the cache each.
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include <new>

namespace halfgnn::HALFGNN_ISA {

template <class E>
class Buffer {
 public:
  explicit Buffer(int64_t n) : data_(static_cast<E*>(aligned_alloc(kLine, bytes(n)))) {
    if (!data_) throw std::bad_alloc();
  }
  ~Buffer() { free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator E*() const { return data_; }
  E* get() const { return data_; }

 private:
  static constexpr size_t kLine = 64;
  // A whole number of lines, and never none.
  static size_t bytes(int64_t n) {
    return (static_cast<size_t>(n > 0 ? n : 1) * sizeof(E) + kLine - 1) / kLine * kLine;
  }
  E* data_;
};

}  // namespace halfgnn::HALFGNN_ISA
