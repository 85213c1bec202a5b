// PyTorch's threads.
#pragma once

#include <atomic>
#include <exception>

#include "abi.h"

namespace halfgnn {

inline int64_t num_threads() {
  uint32_t threads;
  HALFGNN_ABI(torch_get_num_threads, &threads);
  return threads;
}

// The first exception of a thread is thrown here, as it is: PyTorch would only say that there was one.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain_size, const F& f) {
  struct Call {
    const F& f;
    std::atomic_flag has_failed = ATOMIC_FLAG_INIT;
    std::exception_ptr error = nullptr;
  } call{f};
  const auto run = [](int64_t first, int64_t last, void* context) {
    auto& call = *static_cast<Call*>(context);
    try {
      call.f(first, last);
    } catch (...) {
      if (!call.has_failed.test_and_set()) call.error = std::current_exception();
    }
  };
  HALFGNN_ABI(torch_parallel_for, begin, end, grain_size, run, &call);
  if (call.error) std::rethrow_exception(call.error);
}

}  // namespace halfgnn
