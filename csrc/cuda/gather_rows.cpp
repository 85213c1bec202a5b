// gather_rows on CUDA: a table on the device, or one in page-locked memory of the CPU, which is read where it is.

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
const char* device_address_of_table(const GatherRowsArgs& args) {
  const auto* table = static_cast<const char*>(args.table);
  const int64_t bytes = (args.table_rows - 1) * args.table_stride + args.row_bytes;
  if (args.table_rows == 0 || args.row_bytes == 0) return table;  // nothing is read
  const char *first = device_address(table), *last = device_address(table + bytes - 1);
  CHECK_VALUE(first != nullptr && last == first + bytes - 1,
              "table is in pageable memory of the CPU, which a GPU cannot read; expected page-locked memory "
              "(table.pin_memory()), or a table on the device of ids and out");
  return first;
}

}  // namespace

void gather_rows(const GatherRowsArgs& args) {
  CHECK_VALUE(args.row_bytes <= kMostRowBytes, "table has rows of ", args.row_bytes, " bytes; expected at most ",
              kMostRowBytes, " on CUDA");
  GatherRowsArgs device_args = args;
  if (args.table_on_host) device_args.table = device_address_of_table(args);
  CHECK_CUDA(gather_rows(device_args, Launch{current_stream()}));
}

}  // namespace halfgnn::cuda
