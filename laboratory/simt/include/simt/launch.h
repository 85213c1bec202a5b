// Launching a kernel on the simulator.
#pragma once

#include <cuda_runtime_api.h>

#include <tuple>
#include <utility>

namespace simt {

// What every lane runs.
struct Body {
  void (*run)(const void* context);
  const void* context;
};

// Runs the whole grid. `kernel` is its address, for messages. cudaErrorInvalidValue and the like where CUDA would
// refuse the launch; throws std::runtime_error where the kernel goes wrong.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, const Body& body);

}  // namespace simt

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  // Parameters are copied for each lane, as in CUDA.
  using Bound = std::pair<void (*)(Parameters...), std::tuple<Parameters...>>;
  const Bound bound(kernel, std::tuple<Parameters...>(std::forward<Arguments>(arguments)...));
  const auto run = [](const void* context) {
    const auto& [function, values] = *static_cast<const Bound*>(context);
    std::apply(function, values);
  };
  return simt::launch(*config, reinterpret_cast<const void*>(kernel), {run, &bound});
}

// Kernels that want more than 48 KiB of dynamic shared memory must say so first.
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
