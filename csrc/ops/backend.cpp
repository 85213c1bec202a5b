#include "backend.h"

#include <c10/util/Exception.h>

#ifdef HALFGNN_CPU_KEY
#include "../cpu/backend.h"
#include "../cpu/graph.h"
#endif
#ifdef HALFGNN_CUDA_KEY
#include "../cuda/backend.h"
#include "../cuda/graph.h"
#endif

namespace halfgnn {
namespace {

struct DeviceBackend {
  c10::DeviceType device;
  const Backend& kernels;
  GraphBackend graph;
};
const DeviceBackend kBackends[] = {
#ifdef HALFGNN_CPU_KEY
    {c10::kCPU, cpu::kBackend, {cpu::coo_to_csr, cpu::transpose}},
#endif
#ifdef HALFGNN_CUDA_KEY
    {cuda::kDevice, cuda::kBackend, {cuda::coo_to_csr, cuda::transpose}},
#endif
};

const DeviceBackend& find(const c10::Device& device) {
  for (const DeviceBackend& backend : kBackends) {
    if (backend.device == device.type()) return backend;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "indptr is on ", device, ", for which halfgnn has no kernels in this build");
}

}  // namespace

const Backend& backend_of(const c10::Device& device) { return find(device).kernels; }
const GraphBackend& graph_backend_of(const c10::Device& device) { return find(device).graph; }

}  // namespace halfgnn
