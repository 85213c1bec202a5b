// Memory of one call, for what kernels hand to one another.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "../core/huge_pages.h"
#include "../core/types.h"

namespace halfgnn {

// Bytes of Acc, the type that data of `type` is computed in.
constexpr int64_t size_of_accumulator(DType type) { return type == DType::kDouble ? 8 : 4; }

// Uninitialised values of Acc, aligned to cache lines.
class Workspace {
 public:
  Workspace(DType type, int64_t values)
      : bytes_(std::max<int64_t>(values, 1) * size_of_accumulator(type)),
        data_(std::aligned_alloc(kLine, static_cast<size_t>((bytes_ + kLine - 1) / kLine * kLine))) {
    if (!data_) throw std::bad_alloc();
    advise_huge_pages(data_.get(), bytes_);
  }
  void* get() const { return data_.get(); }

 private:
  static constexpr int64_t kLine = 64;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  int64_t bytes_;
  std::unique_ptr<void, Free> data_;
};

}  // namespace halfgnn
