// The launchers of dot_attention.h: dot attention in the words of pair_attention.h.

#include "dot_attention.h"

#include "pair_attention.h"

namespace halfgnn::cuda {
namespace {

PairCall call_of(const DotAttentionArgs& args) {
  PairCall call{};
  call.kind = PairKind::kDot;
  call.topology = args.topology;
  call.by_src = args.by_src;
  call.num_src = args.num_src;
  call.heads = args.heads;
  call.dim = args.dim;
  call.type = args.type;
  call.query = args.query;
  call.key = args.key;
  call.value = args.value;
  call.logit.linear = static_cast<float>(args.scale);
  call.dropout = args.dropout;
  call.edge = args.edge;
  call.out = args.out;
  call.lse = static_cast<float*>(args.lse);
  call.grad = args.grad;
  call.grad_query = args.grad_query;
  call.grad_key = args.grad_key;
  call.grad_value = args.grad_value;
  return call;
}

}  // namespace

size_t dot_attention_workspace(const DotAttentionArgs& args) { return pair_attention_workspace(call_of(args)); }
cudaError_t dot_attention(const DotAttentionArgs& args, const Launch& launch) {
  return pair_attention(call_of(args), launch);
}

size_t dot_attention_backward_workspace(const DotAttentionArgs& args) {
  return pair_attention_backward_workspace(call_of(args));
}
cudaError_t dot_attention_backward(const DotAttentionArgs& args, const Launch& launch) {
  return pair_attention_backward(call_of(args), launch);
}

}  // namespace halfgnn::cuda
