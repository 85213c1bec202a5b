// What the operators of the fused attentions share: checks of their arguments, and results.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "../core/attention.h"
#include "checks.h"
#include "results.h"

namespace halfgnn {

inline void check_shape(const Feature& feature, const char* name, std::initializer_list<int64_t> expected,
                        const char* what) {
  TORCH_CHECK_VALUE(feature.tensor.sizes() == at::IntArrayRef(expected), name, " has shape ", feature.tensor.sizes(),
                    "; expected ", at::IntArrayRef(expected), ", ", what);
}
inline void check_type(const Feature& feature, const char* name, const Feature& like, const char* like_name) {
  TORCH_CHECK_TYPE(feature.operand.type == like.operand.type, name, " has dtype ",
                   dtype_name(feature.tensor.scalar_type()), "; expected that of ", like_name, ", ",
                   dtype_name(like.tensor.scalar_type()));
}

// A feature (rows, heads, dim).
inline Feature head_feature(const Tensor& tensor, const char* name, const at::Device& device) {
  const Feature feature = feature_of(tensor, name, Target::kCol, device);
  TORCH_CHECK_VALUE(tensor.dim() == 3, name, " has shape ", tensor.sizes(), "; expected (rows, heads, dim)");
  return feature;
}
inline Feature like(const Tensor& tensor, const char* name, int64_t rows, const Feature& other, const char* other_name,
                    const char* what) {
  const Feature feature = head_feature(tensor, name, other.tensor.device());
  check_shape(feature, name, {rows, other.tensor.size(1), other.tensor.size(2)}, what);
  check_type(feature, name, other, other_name);
  return feature;
}

inline Dropout dropout_of(double probability, const OptionalTensor& seed, const at::Device& device) {
  TORCH_CHECK_VALUE(probability >= 0 && probability <= 1, "dropout_p is ", probability,
                    "; expected a probability in [0, 1]");
  Dropout dropout;
  if (probability == 0) return dropout;
  TORCH_CHECK_VALUE(seed.has_value(), "seed is None; expected (2,) int64, because dropout_p is not 0");
  TORCH_CHECK_TYPE(seed->scalar_type() == at::kLong, "seed has dtype ", dtype_name(seed->scalar_type()),
                   "; expected torch.int64");
  TORCH_CHECK_VALUE(seed->dim() == 1 && seed->numel() == 2 && seed->is_contiguous(), "seed has shape ", seed->sizes(),
                    "; expected (2,), contiguous");
  TORCH_CHECK_VALUE(seed->device() == device, "seed is on ", seed->device(), "; expected the graph's device, ", device);
  dropout.seed = seed->const_data_ptr<int64_t>();
  dropout.threshold = static_cast<uint32_t>(std::min(std::round(probability * 0x1p32), 0x1p32 - 1));
  dropout.scale = probability == 1 ? 0 : 1 / (1 - probability);
  return dropout;
}

inline at::TensorOptions statistics_options(const Feature& feat) {
  return feat.tensor.options().dtype(feat.operand.type == DType::kDouble ? at::kDouble : at::kFloat);
}

// A result and what rounding lost of it. `residual` is empty unless the type is half and it is wanted.
struct PreciseTensor {
  Tensor value, residual;
  PreciseTensor(at::IntArrayRef sizes, const Feature& feat, bool wanted, bool precise) {
    const auto options = feat.tensor.options();
    value = new_result(wanted ? sizes : at::IntArrayRef{0}, options);
    const bool keep = wanted && precise && size_of(feat.operand.type) == 2;
    residual = new_result(keep ? sizes : at::IntArrayRef{0}, options);
  }
  Precise args() {
    const auto pointer = [](Tensor& tensor) { return tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr(); };
    return {pointer(value), pointer(residual)};
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
  TORCH_CHECK_TYPE(tensor.scalar_type() == c10::typeMetaToScalarType(statistics_options(feat).dtype()), name,
                   " has dtype ", dtype_name(tensor.scalar_type()), "; expected ",
                   dtype_name(c10::typeMetaToScalarType(statistics_options(feat).dtype())));
  return statistic;
}
inline void* writable(const Feature& feature) { return const_cast<void*>(feature.operand.data); }

// Whether nothing is summed.
inline bool is_empty(const Topology& topology, const Feature& feat) {
  return topology.num_edges == 0 || feat.tensor.size(1) * feat.tensor.size(2) == 0;
}

// The out-edges (CSR) of the graph whose in-edges (CSC) `topology` has.
inline Topology other_side(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, bool short_rows,
                           const Topology& topology, int64_t num_rows) {
  const Topology other = topology_of(indptr, indices, edge_ids, topology.num_edges, short_rows);
  TORCH_CHECK_TYPE(other.is_int64 == topology.is_int64, "out_indptr has dtype ", dtype_name(indptr.scalar_type()),
                   "; expected that of indptr");
  TORCH_CHECK_VALUE(other.num_rows == num_rows, "out_indptr has shape ", indptr.sizes(), "; expected (", num_rows + 1,
                    ",), one more than there are source nodes");
  return other;
}

struct DotInputs {
  Feature key, query, value;
  PairAttentionArgs args;

  DotInputs(const Topology& topology, const at::Device& device, const Tensor& query_data, const Tensor& key_data,
            const Tensor& value_data, double scale, double dropout_p, const OptionalTensor& seed)
      : key(head_feature(key_data, "key", device)),
        query(like(query_data, "query", topology.num_rows, key, "key", "one row per destination node")),
        value(like(value_data, "value", key.tensor.size(0), key, "key", "one row per source node")) {
    args.topology = topology;
    args.heads = key.tensor.size(1);
    args.dim = key.tensor.size(2);
    args.type = key.operand.type;
    args.query = query.operand.data;
    args.key = key.operand.data;
    args.value = value.operand.data;
    args.factor = scale;
    args.dropout = dropout_of(dropout_p, seed, device);
  }
};

struct Gatv2Inputs {
  Feature src, dst, attn;
  PairAttentionArgs args;

  Gatv2Inputs(const Topology& topology, const at::Device& device, const Tensor& src_data, const Tensor& dst_data,
              const Tensor& attn_data, double negative_slope, double dropout_p, const OptionalTensor& seed)
      : src(head_feature(src_data, "feat_src", device)),
        dst(like(dst_data, "feat_dst", topology.num_rows, src, "feat_src", "one row per destination node")),
        attn(feature_of(attn_data, "attn", Target::kRow, device)) {
    check_shape(attn, "attn", {src.tensor.size(1), src.tensor.size(2)}, "(heads, dim)");
    check_type(attn, "attn", src, "feat_src");
    args.topology = topology;
    args.heads = src.tensor.size(1);
    args.dim = src.tensor.size(2);
    args.type = src.operand.type;
    args.score = PairScore::kLeaky;
    args.query = dst.operand.data;
    args.key = args.value = src.operand.data;
    args.attn = attn.operand.data;
    args.factor = negative_slope;
    args.dropout = dropout_of(dropout_p, seed, device);
  }
};

// Runs the forward of GATv2 or dot attention.
template <class Args>
std::tuple<Tensor, Tensor, Tensor> run_forward(void (*kernel)(const Args&), Args& args, const Feature& feat, bool save,
                                               bool precise) {
  const std::vector<int64_t> sizes{args.topology.num_rows, args.heads, args.dim};
  const std::vector<int64_t> per_head =
      save ? std::vector<int64_t>{args.topology.num_rows, args.heads} : std::vector<int64_t>{0};
  PreciseTensor out(sizes, feat, true, save && precise);
  Tensor lse = new_result(per_head, statistics_options(feat));
  if (is_empty(args.topology, feat)) {
    for (Tensor* tensor : {&out.value, &out.residual, &lse}) tensor->zero_();
  } else {
    args.out = out.args();
    args.lse = save ? lse.mutable_data_ptr() : nullptr;
    kernel(args);
  }
  return {out.value, lse, out.residual};
}

// Runs the backward of either. `results`: the members of Args for the gradients of the three operands.
template <class Args>
std::tuple<Tensor, Tensor, Tensor> run_backward(void (*kernel)(const Args&), Args& args, const Feature& feat,
                                                const Tensor& grad, const Tensor& out, const Tensor& lse,
                                                const Tensor& out_residual, const Feature (&operands)[3],
                                                void* Args::* const (&results)[3]) {
  const int64_t num_dst = args.topology.num_rows;
  const Feature upstream = like(grad, "grad", num_dst, feat, "the features", "one row per destination node");
  const Saved saved(out, out_residual, "out", "out_residual", num_dst, feat, "the features");
  const Feature saved_lse = statistic_of(lse, "lse", num_dst, feat);
  Tensor grads[3];
  for (int i = 0; i < 3; ++i) {
    grads[i] = new_result(operands[i].tensor.sizes(), operands[i].tensor.options());
    args.*results[i] = grads[i].mutable_data_ptr();
    if (is_empty(args.topology, feat)) grads[i].zero_();
  }
  if (!is_empty(args.topology, feat)) {
    args.grad = upstream.operand.data;
    args.out = saved.args();
    args.lse = writable(saved_lse);
    kernel(args);
  }
  return {grads[0], grads[1], grads[2]};
}

}  // namespace halfgnn
