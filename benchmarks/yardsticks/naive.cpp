// The kernels of naive.h as operators: checks and allocation.

#include "naive.h"

#include <torch/library.h>

#include "../../csrc/ops/checks.h"
#include "../../csrc/torch/cuda.h"
#include "../../csrc/torch/device.h"

namespace halfgnn::cuda {
namespace {

using Pair = std::tuple<Tensor, Tensor>;

// The matrix, and the type of what is computed of it.
NaiveArgs args_of(const Tensor& indptr, const Tensor& indices, const Tensor& feat, const char* name) {
  const Topology topology = topology_of(indptr, indices, std::nullopt, indices.numel());
  CHECK_TYPE(!topology.is_int64, "indptr has dtype torch.int64; expected torch.int32");
  NaiveArgs args;
  args.indptr = indptr.const_data_ptr<int32_t>();
  args.indices = indices.const_data_ptr<int32_t>();
  args.num_rows = topology.num_rows;
  args.num_edges = topology.num_edges;
  args.type = dtype_of(feat.scalar_type(), name);
  CHECK_TYPE(args.type != DType::kDouble, name, " has dtype torch.float64; expected a half type or torch.float32");
  return args;
}

const void* checked(const Tensor& x, const char* name, IntArrayRef shape, const Tensor& like) {
  CHECK_VALUE(x.sizes() == shape, name, " has shape ", x.sizes(), "; expected ", shape);
  CHECK_TYPE(x.scalar_type() == like.scalar_type(), name, " has dtype ", dtype_name(x.scalar_type()), "; expected ",
             dtype_name(like.scalar_type()));
  CHECK_VALUE(x.device() == like.device() && x.is_contiguous(), name, " is on ", x.device(), " with strides ",
              x.strides(), "; expected contiguous rows on ", like.device());
  return x.const_data_ptr();
}

// Takes the shape (rows, heads, dim) of features.
void set_features(NaiveArgs& args, const Tensor& x, const char* name) {
  CHECK_VALUE(x.dim() == 3, name, " has shape ", x.sizes(), "; expected (rows, heads, dim)");
  args.heads = x.size(1);
  args.dim = x.size(2);
  args.x = checked(x, name, x.sizes(), x);
}

Tensor sum_op(const Tensor& indptr, const Tensor& indices, const Tensor& x, const Tensor& weight) {
  const DeviceGuard guard(indptr.device());
  NaiveArgs args = args_of(indptr, indices, x, "x");
  set_features(args, x, "x");
  args.weight = checked(weight, "weight", {args.num_edges, args.heads}, x);
  Tensor out = empty({args.num_rows, args.heads, args.dim}, x.options());
  args.out = out.mutable_data_ptr();
  CHECK_CUDA(naive_sum(args, Launch{current_stream()}));
  return out;
}

Pair max_op(const Tensor& indptr, const Tensor& indices, const Tensor& x) {
  const DeviceGuard guard(indptr.device());
  NaiveArgs args = args_of(indptr, indices, x, "x");
  set_features(args, x, "x");
  Tensor out = empty({args.num_rows, args.heads, args.dim}, x.options());
  Tensor winner = empty(out.sizes(), indptr.options());
  args.out = out.mutable_data_ptr();
  args.winner = winner.mutable_data_ptr<int32_t>();
  CHECK_CUDA(naive_max(args, Launch{current_stream()}));
  return {out, winner};
}

Tensor dot_op(const Tensor& indptr, const Tensor& indices, const Tensor& x, const Tensor& y) {
  const DeviceGuard guard(indptr.device());
  NaiveArgs args = args_of(indptr, indices, x, "x");
  set_features(args, x, "x");
  args.y = checked(y, "y", {args.num_rows, args.heads, args.dim}, x);
  Tensor out = empty({args.num_edges, args.heads}, x.options());
  args.out = out.mutable_data_ptr();
  CHECK_CUDA(naive_dot(args, Launch{current_stream()}));
  return out;
}

Tensor softmax_op(const Tensor& indptr, const Tensor& logits) {
  const DeviceGuard guard(indptr.device());
  CHECK_VALUE(logits.dim() == 2, "logits has shape ", logits.sizes(), "; expected (edges, heads)");
  NaiveArgs args = args_of(indptr, empty({logits.size(0)}, indptr.options()), logits, "logits");
  args.heads = logits.size(1);
  args.weight = checked(logits, "logits", logits.sizes(), logits);
  Tensor out = empty(logits.sizes(), logits.options());
  args.out = out.mutable_data_ptr();
  CHECK_CUDA(naive_softmax(args, Launch{current_stream()}));
  return out;
}

Tensor attention_op(const Tensor& indptr, const Tensor& indices, string_view name, const Tensor& of_src,
                    const Tensor& of_dst, const OptionalTensor& attn, const Tensor& x, double constant) {
  const DeviceGuard guard(indptr.device());
  NaiveArgs args = args_of(indptr, indices, x, "x");
  set_features(args, x, "x");
  CHECK_VALUE(name == "gat" || name == "gatv2" || name == "dot", "score is '", name, "'; expected gat, gatv2 or dot");
  NaiveScore score;
  score.score = name == "gat" ? Score::kGat : name == "gatv2" ? Score::kGatv2 : Score::kDot;
  const int64_t dim = name == "gat" ? 1 : args.dim;
  score.of_src = checked(of_src, "of_src", {x.size(0), args.heads, dim}, x);
  score.of_dst = checked(of_dst, "of_dst", {args.num_rows, args.heads, dim}, x);
  CHECK_VALUE((name == "gatv2") == attn.has_value(), "attn is for gatv2, which needs it");
  if (attn) score.attn = checked(*attn, "attn", {args.heads, args.dim}, x);
  score.constant = static_cast<float>(constant);
  Tensor out = empty({args.num_rows, args.heads, args.dim}, x.options());
  args.out = out.mutable_data_ptr();
  CHECK_CUDA(naive_attention(args, score, Launch{current_stream()}));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(halfgnn_yardsticks, HALFGNN_CUDA_KEY, m) {
  m.impl("naive_sum", &sum_op);
  m.impl("naive_max", &max_op);
  m.impl("naive_dot", &dot_op);
  m.impl("naive_softmax", &softmax_op);
  m.impl("naive_attention", &attention_op);
}

}  // namespace halfgnn::cuda
