// gather_limit on CUDA: checks and allocation.

#include "gather_limit.h"

#include <torch/library.h>

#include <algorithm>

#include "../../csrc/ops/checks.h"
#include "../../csrc/torch/cuda.h"
#include "../../csrc/torch/device.h"

namespace halfgnn::cuda {
namespace {

constexpr int64_t kVectorBytes = 16, kWidestTile = 32 * kVectorBytes;

void check_indices(const Tensor& indices) {
  CHECK_TYPE(indices.scalar_type() == ScalarType::Int || indices.scalar_type() == ScalarType::Long,
             "indices has dtype ", dtype_name(indices.scalar_type()), "; expected torch.int32 or torch.int64");
  CHECK_VALUE(indices.dim() == 1 && indices.is_contiguous(), "indices has shape ", indices.sizes(),
              "; expected one dimension, contiguous");
}

void check_feat(const Tensor& feat, const Tensor& indices) {
  CHECK_VALUE(feat.dim() == 2 && feat.is_contiguous(), "feat has shape ", feat.sizes(), " and strides ", feat.strides(),
              "; expected contiguous rows");
  CHECK_VALUE(feat.device() == indices.device(), "feat is on ", feat.device(), "; expected the indices' ",
              indices.device());
  const int64_t row_bytes = feat.size(1) * feat.element_size();
  const auto address = reinterpret_cast<uintptr_t>(feat.const_data_ptr());
  CHECK_VALUE(row_bytes % kVectorBytes == 0 && address % kVectorBytes == 0, "feat has rows of ", row_bytes,
              " bytes; expected a multiple of ", kVectorBytes, ", and data aligned to it");
}

Tensor gather_words(const Tensor& indices, const Tensor& feat, int64_t tile_bytes) {
  const DeviceGuard guard(indices.device());
  check_indices(indices);
  check_feat(feat, indices);
  CHECK_VALUE(tile_bytes >= 0 && tile_bytes % kVectorBytes == 0, "tile_bytes is ", tile_bytes,
              "; expected a multiple of ", kVectorBytes);
  GatherLimitArgs args;
  args.indices = indices.const_data_ptr();
  args.num_indices = indices.numel();
  args.is_int64 = indices.scalar_type() == ScalarType::Long;
  args.feat = feat.const_data_ptr();
  args.row_bytes = feat.size(1) * feat.element_size();
  args.tile_bytes = tile_bytes == 0 ? kWidestTile : std::min(tile_bytes, kWidestTile);
  Tensor words = empty({gather_limit_words(args)}, feat.options().dtype(ScalarType::Int));
  args.words = reinterpret_cast<uint32_t*>(words.mutable_data_ptr<int32_t>());
  CHECK_CUDA(gather_limit(args, Launch{current_stream()}));
  return words;
}

}  // namespace

TORCH_LIBRARY_IMPL(halfgnn_yardsticks, HALFGNN_CUDA_KEY, m) { m.impl("gather_limit", &gather_words); }

}  // namespace halfgnn::cuda
