// gather_rows on CUDA: a table on the device, or one in page-locked memory of the CPU, which is read where it is. So
// are the scales of codes.

#include "gather_rows.h"

#include <cuda_runtime_api.h>

#include "../torch/cuda.h"
#include "../torch/errors.h"
#include "kernels/graph/gather_rows.h"

namespace halfgnn::cuda {
namespace {

// The address by which the GPU knows page-locked memory of the CPU; null where it knows none.
const char* device_address(const char* host) {
  cudaPointerAttributes attributes{};
  CHECK_CUDA(cudaPointerGetAttributes(&attributes, host));
  const bool is_known = attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged;
  return is_known ? static_cast<const char*>(attributes.devicePointer) : nullptr;
}

// Both ends are looked at: memory that somebody has locked in part may begin with that part.
const char* device_address_of(const void* memory, int64_t bytes, const char* name) {
  const auto* host = static_cast<const char*>(memory);
  const char *first = device_address(host), *last = device_address(host + bytes - 1);
  CHECK_VALUE(first != nullptr && last == first + bytes - 1, name,
              " is in pageable memory of the CPU, which a GPU cannot read; expected page-locked memory (", name,
              ".pin_memory()), or a ", name, " on the device of ids and out");
  return first;
}

const void* device_address_of_table(const GatherRowsArgs& args) {
  if (args.table_rows == 0 || args.row_bytes == 0) return args.table;  // nothing is read
  return device_address_of(args.table, (args.table_rows - 1) * args.table_stride + args.row_bytes, "table");
}

Scales device_scales(const GatherRowsArgs& args) {
  Scales scales = args.scales;
  const int64_t count = scales.per == ScalePer::kTable ? 1
                        : scales.per == ScalePer::kRow ? args.table_rows
                                                       : args.row_bytes;
  if (count == 0) return scales;  // nothing is read
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  const auto on_device = [&](const float* values, const char* name) {
    return static_cast<const float*>(static_cast<const void*>(device_address_of(values, bytes, name)));
  };
  scales.scale = on_device(scales.scale, "scale");
  if (scales.zero_point != nullptr) scales.zero_point = on_device(scales.zero_point, "zero_point");
  return scales;
}

}  // namespace

void gather_rows(const GatherRowsArgs& args) {
  CHECK_VALUE(args.row_bytes <= kMostRowBytes, "table has rows of ", args.row_bytes, " bytes; expected at most ",
              kMostRowBytes, " on CUDA");
  GatherRowsArgs device_args = args;
  if (args.table_on_host) device_args.table = device_address_of_table(args);
  const bool copies = args.code == Code::kNone;
  if (!copies && args.scales_on_host) device_args.scales = device_scales(args);
  const Launch launch{current_stream()};
  CHECK_CUDA(copies ? gather_rows(device_args, launch) : dequantize_rows(device_args, launch));
}

}  // namespace halfgnn::cuda
