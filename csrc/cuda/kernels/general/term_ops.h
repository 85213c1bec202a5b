// Which term an operator is, forward and backward. Host code only.
#pragma once

#include "term.h"

namespace halfgnn::cuda {

// op(lhs, rhs); a dot is a product whose last dimension is summed.
inline bool plan_forward(Op op, const Operand& lhs, const Operand& rhs, const Broadcast& broadcast, bool fits_out,
                         Term& term) {
  const TermSource both[] = {{&lhs, &BroadcastDim::lhs}, {&rhs, &BroadcastDim::rhs}};
  switch (op) {
    case Op::kAdd: term.op = TermOp::kAdd; break;
    case Op::kSub: term.op = TermOp::kSub; break;
    case Op::kMul:
    case Op::kDot: term.op = TermOp::kMul; break;
    case Op::kDiv: term.op = TermOp::kDiv; break;
    case Op::kReluAdd: term.op = TermOp::kReluAdd; break;
    default: term.op = TermOp::kFirst; break;
  }
  const int num_sources = reads_lhs(op) && reads_rhs(op) ? 2 : 1;
  const TermSource* first = reads_lhs(op) ? both : both + 1;
  return plan_term(broadcast, &BroadcastDim::out, first, num_sources, fits_out, term);
}

// The gradient of op for one operand.
inline bool plan_gradient(const BackwardArgs& args, Side side, Term& term) {
  const bool lhs_side = side == Side::kLhs;
  const TermSource grad{&args.grad, &BroadcastDim::out};
  const TermSource lhs{&args.lhs, &BroadcastDim::lhs}, rhs{&args.rhs, &BroadcastDim::rhs};
  const GradientOut& out = lhs_side ? args.grad_lhs : args.grad_rhs;
  term.scale = inverse_degrees_of(args.mean_indptr, args.topology);
  term.scale_target = args.grad.target;
  term.winner = {args.arg, args.topology.is_int64};
  const auto plan = [&](TermOp op, const TermSource* sources, int num_sources) {
    term.op = op;
    return plan_term(args.broadcast, lhs_side ? &BroadcastDim::lhs : &BroadcastDim::rhs, sources, num_sources,
                     fits_term_vector(out.data, size_of(out.type)), term);
  };
  if ((args.op == Op::kDiv && !lhs_side) || args.op == Op::kReluAdd) {
    const TermSource sources[] = {grad, lhs, rhs};
    return plan(args.op == Op::kDiv ? TermOp::kDivisor : TermOp::kReluSlope, sources, 3);
  }
  const TermSource sources[] = {grad, lhs_side ? rhs : lhs};
  if (args.op == Op::kMul || args.op == Op::kDot) return plan(TermOp::kMul, sources, 2);
  if (args.op == Op::kDiv) return plan(TermOp::kDiv, sources, 2);
  term.negate = args.op == Op::kSub && !lhs_side;
  return plan(TermOp::kFirst, sources, 1);
}

}  // namespace halfgnn::cuda
