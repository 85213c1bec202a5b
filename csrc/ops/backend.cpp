#include "backend.h"

#include "../torch/errors.h"

#include <algorithm>
#include <iterator>

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
  DeviceType device;
  const Backend& kernels;
  GraphBackend graph;
};
const DeviceBackend kBackends[] = {
#ifdef HALFGNN_CPU_KEY
    {DeviceType::CPU, cpu::kBackend, {cpu::coo_to_csr, cpu::transpose}},
#endif
#ifdef HALFGNN_CUDA_KEY
    {cuda::kDevice, cuda::kBackend, {cuda::coo_to_csr, cuda::transpose}},
#endif
};

const DeviceBackend& find(const Device& device) {
  for (const DeviceBackend& backend : kBackends) {
    if (backend.device == device.type()) return backend;
  }
  CHECK_IMPLEMENTED(false, "indptr is on ", device, ", for which halfgnn has no kernels in this build");
}

}  // namespace

const Backend& backend_of(const Device& device) { return find(device).kernels; }
const GraphBackend& graph_backend_of(const Device& device) { return find(device).graph; }

}  // namespace halfgnn

// For halfgnn.ops.attention: writes the first four numbers of EdgeTermLimits of a device type's back end, and
// half_columns_capability. False if this build has no back end for it.
extern "C" __attribute__((visibility("default"))) bool halfgnn_edge_term_limits(const char* device,
                                                                                int64_t (&limits)[5]) try {
  const halfgnn::EdgeTermLimits& of = halfgnn::backend_of(halfgnn::Device(device)).edge_term_limits;
  const int64_t values[] = {of.head_bytes, of.dot_columns, of.leaky_columns, of.columns_beside_rows,
                            of.half_columns_capability};
  std::copy(std::begin(values), std::end(values), limits);
  return true;
} catch (const std::exception&) {
  return false;
}
