// What the operators of the fused attentions share: their arguments by name, checks of those, and results.
#pragma once

#include <algorithm>
#include <cmath>

#include "../core/attention.h"
#include "checks.h"
#include "results.h"

namespace halfgnn {

// An adjacency, as an operator is given it.
struct AdjacencyTensors {
  const Tensor &indptr, &indices;
  const OptionalTensor& edge_ids;
  bool short_rows;

  Topology topology() const { return topology_of(indptr, indices, edge_ids, indices.numel(), short_rows); }
};
struct DropoutArguments {
  double probability;
  const OptionalTensor& seed;
};

inline void check_shape(const Feature& feature, const char* name, std::initializer_list<int64_t> expected,
                        const char* what) {
  CHECK_VALUE(feature.tensor.sizes() == IntArrayRef(expected), name, " has shape ", feature.tensor.sizes(),
              "; expected ", IntArrayRef(expected), ", ", what);
}
inline void check_type(const Feature& feature, const char* name, const Feature& like, const char* like_name) {
  CHECK_TYPE(feature.operand.type == like.operand.type, name, " has dtype ", dtype_name(feature.tensor.scalar_type()),
             "; expected that of ", like_name, ", ", dtype_name(like.tensor.scalar_type()));
}

// A feature (rows, heads, dim).
inline Feature head_feature(const Tensor& tensor, const char* name, const Device& device) {
  const Feature feature = feature_of(tensor, name, Target::kCol, device);
  CHECK_VALUE(tensor.dim() == 3, name, " has shape ", tensor.sizes(), "; expected (rows, heads, dim)");
  return feature;
}
inline Feature like(const Tensor& tensor, const char* name, int64_t rows, const Feature& other, const char* other_name,
                    const char* what) {
  const Feature feature = head_feature(tensor, name, other.tensor.device());
  check_shape(feature, name, {rows, other.tensor.size(1), other.tensor.size(2)}, what);
  check_type(feature, name, other, other_name);
  return feature;
}

inline Dropout dropout_of(const DropoutArguments& arguments, const Device& device) {
  const auto& [probability, seed] = arguments;
  CHECK_VALUE(probability >= 0 && probability <= 1, "dropout_p is ", probability, "; expected a probability in [0, 1]");
  Dropout dropout;
  if (probability == 0) return dropout;
  CHECK_VALUE(seed.has_value(), "seed is None; expected (2,) int64, because dropout_p is not 0");
  CHECK_TYPE(seed->scalar_type() == ScalarType::Long, "seed has dtype ", dtype_name(seed->scalar_type()),
             "; expected torch.int64");
  CHECK_VALUE(seed->dim() == 1 && seed->numel() == 2 && seed->is_contiguous(), "seed has shape ", seed->sizes(),
              "; expected (2,), contiguous");
  CHECK_VALUE(seed->device() == device, "seed is on ", seed->device(), "; expected the graph's device, ", device);
  dropout.seed = seed->const_data_ptr<int64_t>();
  dropout.threshold = static_cast<uint32_t>(std::min(std::round(probability * 0x1p32), 0x1p32 - 1));
  dropout.scale = probability == 1 ? 0 : 1 / (1 - probability);
  return dropout;
}

// Of lse, and of what is summed before it is rounded.
inline ScalarType statistics_type(const Feature& feat) {
  return feat.operand.type == DType::kDouble ? ScalarType::Double : ScalarType::Float;
}
inline TensorOptions statistics_options(const Feature& feat) {
  return feat.tensor.options().dtype(statistics_type(feat));
}

inline Tensor result_like(const Feature& feature) {
  return new_result(feature.tensor.sizes(), feature.tensor.options());
}
// Null for a result that is empty, because it is not needed.
inline void* pointer_to(Tensor& result) { return result.numel() == 0 ? nullptr : result.mutable_data_ptr(); }

// Results of a forward, of which one that is not needed is empty. save: with lse. precise: with the residual of halves.
struct ForwardResults {
  Tensor out, lse, out_residual;
  ForwardResults(const Topology& topology, const Feature& feat, bool is_wide, bool save, bool precise) {
    const auto options = feat.tensor.options(), wide = statistics_options(feat);
    const int64_t sizes[] = {topology.num_rows, feat.tensor.size(1), feat.tensor.size(2)}, none[] = {0};
    const IntArrayRef empty(none), rows(sizes), per_head(sizes, 2);
    const bool has_residual = save && precise && !is_wide && size_of(feat.operand.type) == 2;
    out = new_result(rows, is_wide ? wide : options);
    lse = new_result(save ? per_head : empty, wide);
    out_residual = new_result(has_residual ? rows : empty, options);
  }
};

// A result of the forward, which the backward reads.
struct Saved {
  Feature value, residual;
  Saved(const Tensor& value_data, const Tensor& residual_data, const char* name, const char* residual_name,
        int64_t rows, const Feature& feat, const char* feat_name)
      : value(like(value_data, name, rows, feat, feat_name, "one row per destination node")) {
    if (residual_data.numel() != 0) {
      residual = like(residual_data, residual_name, rows, feat, feat_name, "the shape of its value");
    }
  }
  Precise args() const { return {const_cast<void*>(value.operand.data), const_cast<void*>(residual.operand.data)}; }
};
inline Feature statistic_of(const Tensor& tensor, const char* name, int64_t rows, const Feature& feat) {
  const Feature statistic = feature_of(tensor, name, Target::kRow, feat.tensor.device());
  check_shape(statistic, name, {rows, feat.tensor.size(1)}, "one number per destination node and head");
  CHECK_TYPE(tensor.scalar_type() == statistics_type(feat), name, " has dtype ", dtype_name(tensor.scalar_type()),
             "; expected ", dtype_name(statistics_type(feat)));
  return statistic;
}
inline void* writable(const Feature& feature) { return const_cast<void*>(feature.operand.data); }

// Whether nothing is summed.
inline bool is_empty(const Topology& topology, const Feature& feat) {
  return topology.num_edges == 0 || feat.tensor.size(1) * feat.tensor.size(2) == 0;
}

}  // namespace halfgnn
