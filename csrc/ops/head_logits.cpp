// head_logits and head_logits_backward: checks, allocation, the sum of the parts of the gradient of attn.

#include "../torch/device.h"
#include "checks.h"
#include "register.h"
#include "results.h"

namespace halfgnn {
namespace {

// A tensor that is read beside feat, contiguous; undefined if there is none.
Tensor beside(OptionalRef tensor, const char* name, IntArrayRef shape, ScalarType type, const Tensor& feat) {
  if (!tensor) return Tensor();
  CHECK_VALUE(tensor->device() == feat.device(), name, " is on ", tensor->device(), "; expected the device of feat, ",
              feat.device());
  CHECK_VALUE(tensor->sizes() == shape, name, " has shape ", tensor->sizes(), "; expected ", shape);
  CHECK_TYPE(tensor->scalar_type() == type, name, " has dtype ", dtype_name(tensor->scalar_type()), "; expected ",
             dtype_name(type));
  return tensor->contiguous();
}
const void* data_of(const Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

// feat and attns, checked, in `args` of either direction.
struct Operands {
  Feature feat;
  Tensor attn[kMostHeadLogits];

  template <class Args>
  Operands(const Tensor& values, const Tensor& first, const OptionalTensor& second, Args& args)
      : feat(feature_of(values, "feat", Target::kRow, values.device())) {
    CHECK_VALUE(values.dim() == 3, "feat has shape ", values.sizes(), "; expected (nodes, heads, dim)");
    args.feat = feat.operand.data;
    args.type = feat.operand.type;
    args.rows = values.size(0);
    args.heads = values.size(1);
    args.dim = values.size(2);
    const std::vector<int64_t> shape{1, args.heads, args.dim};
    attn[0] = beside(first, "attn", IntArrayRef(shape), accumulator(values), values);
    attn[1] = beside(second, "more_attn", IntArrayRef(shape), accumulator(values), values);
    args.count = attn[1].defined() ? 2 : 1;
    for (int a = 0; a < args.count; ++a) args.attn[a] = attn[a].const_data_ptr();
  }
};

std::tuple<Tensor, Tensor> head_logits(const Tensor& feat, const Tensor& attn, const OptionalTensor& more_attn) {
  const DeviceGuard guard(feat.device());
  HeadLogitsArgs args;
  const Operands x(feat, attn, more_attn, args);
  const auto options = feat.options().dtype(accumulator(feat));
  const std::vector<int64_t> shape{args.rows, args.heads}, none{0};
  Tensor logits[kMostHeadLogits];
  for (int a = 0; a < kMostHeadLogits; ++a) {
    logits[a] = new_result(IntArrayRef(a < args.count ? shape : none), options);
    args.logits[a] = logits[a].mutable_data_ptr();
  }
  if (logits[0].numel() > 0) backend_of(feat.device()).head_logits(args);
  return {logits[0], logits[1]};
}

std::tuple<Tensor, Tensor> head_logits_backward(const Tensor& feat, const Tensor& attn, const OptionalTensor& more_attn,
                                                const OptionalTensor& grad, const OptionalTensor& more_grad,
                                                const OptionalTensor& upstream, bool need_feat, bool need_attn) {
  const DeviceGuard guard(feat.device());
  const Backend& backend = backend_of(feat.device());
  HeadLogitsBackwardArgs args;
  const Operands x(feat, attn, more_attn, args);
  CHECK_VALUE(args.count == 2 || !more_grad, "more_grad is given without more_attn; expected both");
  const std::vector<int64_t> shape{args.rows, args.heads};
  const Tensor grads[] = {beside(grad, "grad", IntArrayRef(shape), accumulator(feat), feat),
                          beside(more_grad, "more_grad", IntArrayRef(shape), accumulator(feat), feat)};
  const Tensor added = beside(upstream, "upstream", feat.sizes(), feat.scalar_type(), feat);
  for (int a = 0; a < args.count; ++a) args.grad[a] = data_of(grads[a]);
  args.upstream = data_of(added);
  const auto options = feat.options().dtype(accumulator(feat));
  const std::vector<int64_t> none{0}, attns{args.count, 1, args.heads, args.dim};
  Tensor grad_feat = new_result(need_feat ? feat.sizes() : IntArrayRef(none), feat.options());
  if (feat.numel() == 0) return {grad_feat, zeros(IntArrayRef(need_attn ? attns : none), options)};
  args.num_parts = backend.head_logits_parts(args);
  const std::vector<int64_t> several{args.num_parts, args.count, 1, args.heads, args.dim};
  const Tensor parts = new_result(IntArrayRef(!need_attn ? none : args.num_parts > 1 ? several : attns), options);
  args.grad_feat = need_feat ? grad_feat.mutable_data_ptr() : nullptr;
  args.parts = need_attn ? parts.mutable_data_ptr() : nullptr;
  if (need_feat || need_attn) backend.head_logits_backward(args);
  if (!need_attn || args.num_parts == 1) return {grad_feat, parts};
  const int64_t over_parts[] = {0};
  return {grad_feat, sum(parts, IntArrayRef(over_parts), false, accumulator(feat))};
}

}  // namespace

void register_head_logits(Library& m) {
  m.impl<&head_logits>("head_logits");
  m.impl<&head_logits_backward>("head_logits_backward");
}

}  // namespace halfgnn
