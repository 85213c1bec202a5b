// The general path: messages of any operator over any broadcast, formed in a row buffer. A row that repeats is decoded
// to Acc once. The compiler turns every inner loop into vectors.
#pragma once

#include "../../core/arguments.h"
#include "buffer.h"
#include "convert.h"
#include "rows.h"

namespace halfgnn::HALFGNN_ISA {

// f(Type<Acc>{}): the general kernels depend on the accumulator alone.
template <class F>
inline void with_accumulator(DType type, F f) {
  if (type == DType::kDouble) return f(Type<double>{});
  return f(Type<float>{});
}

// Calls loop(steps as constants) so that the loops over a broadcast's inner dimension have strides known to the
// compiler.
template <int L, int R>
struct Steps {
  static constexpr int kLhs = L;
  static constexpr int kRhs = R;
};
template <class Loop>
HALFGNN_INLINE void with_steps(int lhs_step, int rhs_step, Loop loop) {
  if (lhs_step && rhs_step) return loop(Steps<1, 1>{});
  if (lhs_step) return loop(Steps<1, 0>{});
  if (rhs_step) return loop(Steps<0, 1>{});
  return loop(Steps<0, 0>{});
}

// NaN stays NaN.
template <class Acc>
HALFGNN_INLINE Acc relu(Acc x) {
  return x <= 0 ? Acc(0) : x;
}

// out[o * inner + i] = f(l, r) over the whole message.
template <class Acc, class F>
HALFGNN_INLINE void combine(const Broadcast& b, const Acc* lhs, const Acc* rhs, Acc* out, F f) {
  with_steps(b.lhs_step, b.rhs_step, [&](auto steps) {
    using S = decltype(steps);
    for (int64_t o = 0; o < b.outer; ++o) {
      const Acc* l = lhs + b.lhs_offset[o];
      const Acc* r = rhs + b.rhs_offset[o];
      Acc* m = out + o * b.inner;
      for (int64_t i = 0; i < b.inner; ++i) m[i] = f(l[i * S::kLhs], r[i * S::kRhs]);
    }
  });
}

template <class Acc>
inline void form_message(Op op, const Broadcast& b, const Acc* lhs, const Acc* rhs, Acc* out) {
  switch (op) {
    case Op::kAdd: return combine(b, lhs, rhs, out, [](Acc l, Acc r) { return l + r; });
    case Op::kSub: return combine(b, lhs, rhs, out, [](Acc l, Acc r) { return l - r; });
    case Op::kMul:
    case Op::kDot: return combine(b, lhs, rhs, out, [](Acc l, Acc r) { return l * r; });
    case Op::kDiv: return combine(b, lhs, rhs, out, [](Acc l, Acc r) { return l / r; });
    case Op::kReluAdd: return combine(b, lhs, rhs, out, [](Acc l, Acc r) { return relu(l + r); });
    default: return;  // a copy is the operand's own row: nothing is formed
  }
}

// An operand's current row. It is decoded once if it stays the same, as a row's own node does.
template <class Acc>
class DecodedRow {
 public:
  explicit DecodedRow(const Operand& operand) : operand_(operand), buffer_(operand.data ? operand.len : 0) {}
  HALFGNN_INLINE int64_t locate(int64_t row, int64_t col, int64_t edge) const {
    return operand_.target == Target::kRow ? row : operand_.target == Target::kCol ? col : edge;
  }
  HALFGNN_INLINE Acc* at(int64_t row, int64_t col, int64_t edge) {
    const int64_t wanted = locate(row, col, edge);
    if (operand_.data && wanted != current_) {
      decode(operand_, wanted, buffer_.get());
      current_ = wanted;
    }
    return buffer_;
  }
  HALFGNN_INLINE void prefetch(int64_t col, int64_t edge) const {
    if (!operand_.data || operand_.target == Target::kRow) return;
    const int64_t bytes = operand_.len * size_of(operand_.type);
    const char* p = static_cast<const char*>(operand_.data) + locate(0, col, edge) * bytes;
    for (int64_t i = 0; i < bytes && i < 512; i += 64) __builtin_prefetch(p + i);
  }

 private:
  Operand operand_;
  Buffer<Acc> buffer_;
  int64_t current_ = -1;
};

template <class Acc>
class MessageBuffers {
 public:
  MessageBuffers(Op op, const Operand& lhs, const Operand& rhs, const Broadcast& broadcast, int64_t len)
      : op_(op), broadcast_(broadcast), lhs_(lhs), rhs_(rhs), message_(len) {}
  const Acc* message(int64_t row, int64_t col, int64_t edge) {
    if (op_ == Op::kCopyLhs) return lhs_.at(row, col, edge);
    if (op_ == Op::kCopyRhs) return rhs_.at(row, col, edge);
    const Acc* l = lhs_.at(row, col, edge);
    const Acc* r = rhs_.at(row, col, edge);
    form_message(op_, broadcast_, l, r, message_.get());
    return message_;
  }
  HALFGNN_INLINE void prefetch(int64_t col, int64_t edge) const {
    lhs_.prefetch(col, edge);
    rhs_.prefetch(col, edge);
  }

 private:
  Op op_;
  Broadcast broadcast_;
  DecodedRow<Acc> lhs_, rhs_;
  Buffer<Acc> message_;
};

// max or min. NaN propagates, and the first of equal values wins: a later value replaces the total only if it is
// better, or if it is NaN and the total is not.
template <class Acc, class I, class Better>
HALFGNN_INLINE void reduce_argument(int64_t n, const Acc* message, Acc* total, I* arg, I edge, Better better) {
  for (int64_t i = 0; i < n; ++i) {
    const bool wins = (better(message[i], total[i]) | (message[i] != message[i])) & (total[i] == total[i]);
    total[i] = wins ? message[i] : total[i];
    arg[i] = wins ? edge : arg[i];
  }
}
template <class Acc, class I>
inline void reduce_into(Reduce reduce, int64_t n, const Acc* message, Acc* total, I* arg, I edge) {
  switch (reduce) {
    case Reduce::kMax: return reduce_argument(n, message, total, arg, edge, [](Acc a, Acc b) { return a > b; });
    case Reduce::kMin: return reduce_argument(n, message, total, arg, edge, [](Acc a, Acc b) { return a < b; });
    default:
      for (int64_t i = 0; i < n; ++i) total[i] += message[i];
  }
}

}  // namespace halfgnn::HALFGNN_ISA
