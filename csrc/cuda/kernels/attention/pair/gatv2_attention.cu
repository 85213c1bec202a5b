// The launchers of gatv2_attention.h: GATv2 in the words of pair_attention.h.

#include "gatv2_attention.h"

#include "pair_attention.h"

namespace halfgnn::cuda {
namespace {

PairCall call_of(const Gatv2Args& args) {
  PairCall call{};
  call.kind = PairKind::kGatv2;
  call.topology = args.topology;
  call.by_src = args.by_src;
  call.num_src = args.num_src;
  call.heads = args.heads;
  call.dim = args.dim;
  call.type = args.type;
  call.query = args.feat_dst;
  call.key = args.feat_src;
  call.value = args.feat_src;
  call.logit.attn = args.attn;
  call.logit.linear = static_cast<float>(.5 + .5 * args.negative_slope);
  call.logit.absolute = static_cast<float>(.5 - .5 * args.negative_slope);
  call.logit.slope = static_cast<float>(args.negative_slope);
  call.dropout = args.dropout;
  call.edge = args.edge;
  call.out = args.out;
  call.lse = static_cast<float*>(args.lse);
  call.grad = args.grad;
  call.grad_query = args.grad_feat_dst;
  call.grad_key = args.grad_feat_src;
  call.grad_attn = args.grad_attn;
  return call;
}

}  // namespace

size_t gatv2_attention_workspace(const Gatv2Args& args) { return pair_attention_workspace(call_of(args)); }
cudaError_t gatv2_attention(const Gatv2Args& args, const Launch& launch) {
  return pair_attention(call_of(args), launch);
}

size_t gatv2_attention_backward_workspace(const Gatv2Args& args) {
  return pair_attention_backward_workspace(call_of(args));
}
cudaError_t gatv2_attention_backward(const Gatv2Args& args, const Launch& launch) {
  return pair_attention_backward(call_of(args), launch);
}

}  // namespace halfgnn::cuda
