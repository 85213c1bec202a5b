// Gradients of any operator and broadcast: a launch for each wanted side.

#include "backward.h"

#include "term_ops.h"

namespace halfgnn::cuda {
namespace {

cudaError_t run_side(const BackwardArgs& args, Side side, const Launch& launch) {
  const GradientOut& out = side == Side::kLhs ? args.grad_lhs : args.grad_rhs;
  if (out.data == nullptr) return cudaSuccess;
  Term term;
  if (!plan_gradient(args, side, term)) return cudaErrorInvalidValue;
  return out.by_edge ? terms_by_edge(args.topology, term, out.data, out.type, launch)
                     : terms_by_row(args.topology, term, false, out.data, out.type, launch);
}

size_t side_workspace(const BackwardArgs& args, const GradientOut& out, const Operand& operand) {
  return out.data == nullptr || out.by_edge ? 0 : terms_by_row_workspace(args.topology, operand.len);
}

}  // namespace

// The sides run one after the other, so they share it.
size_t backward_workspace(const BackwardArgs& args) {
  const size_t lhs = side_workspace(args, args.grad_lhs, args.lhs);
  const size_t rhs = side_workspace(args, args.grad_rhs, args.rhs);
  return lhs > rhs ? lhs : rhs;
}

cudaError_t backward(const BackwardArgs& args, const Launch& launch) {
  const cudaError_t status = run_side(args, Side::kLhs, launch);
  return status == cudaSuccess ? run_side(args, Side::kRhs, launch) : status;
}

}  // namespace halfgnn::cuda
