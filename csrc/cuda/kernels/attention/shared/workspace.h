// What a call keeps in its workspace: arrays, one after the other, each aligned to 16 bytes.
//
// A launcher takes its arrays the same way twice: from a Workspace without a start, to learn how many bytes it needs,
// and from the memory that it is then given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/launch.cuh"

namespace halfgnn::cuda {

class Workspace {
 public:
  explicit Workspace(void* start) : start_(static_cast<char*>(start)), bytes_(0) {}

  // Null if the array has no elements, or the workspace no start.
  template <typename T>
  T* take(int64_t count) {
    constexpr int64_t kAlignment = 16;
    if (count <= 0) return nullptr;
    T* taken = start_ == nullptr ? nullptr : reinterpret_cast<T*>(start_ + bytes_);
    bytes_ += static_cast<size_t>(ceil_div(count * static_cast<int64_t>(sizeof(T)), kAlignment) * kAlignment);
    return taken;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* start_;
  size_t bytes_;
};

}  // namespace halfgnn::cuda
