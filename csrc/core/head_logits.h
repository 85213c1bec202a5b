// The arguments of head_logits and of its gradient. Torch-free; what holds for all arguments is in arguments.h.
#pragma once

#include "types.h"

namespace halfgnn {

constexpr int kMostHeadLogits = 2;

// logits[a][row, head] = sum over d of feat[row, head, d] * attn[a][head, d], for a < count.
// attn and logits are fp32, or fp64 beside an fp64 feat.
struct HeadLogitsArgs {
  const void* feat = nullptr;
  DType type = DType::kFloat;  // of feat
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int count = 1;  // at most kMostHeadLogits
  const void* attn[kMostHeadLogits] = {};
  void* logits[kMostHeadLogits] = {};
};

// The gradients of logits and of feat itself, which the caller returns beside them:
//   grad_feat[row, head, d] = upstream[row, head, d] + sum over a of grad[a][row, head] * attn[a][head, d]
//   the sum over all parts of part[a, head, d] = sum over rows of grad[a][row, head] * feat[row, head, d]
// Results that are null are not wanted; a gradient that is null counts as 0. Rows are divided among the parts by the
// back end, and each part is written.
struct HeadLogitsBackwardArgs {
  const void* feat = nullptr;
  DType type = DType::kFloat;  // of feat, upstream and grad_feat
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int count = 1;
  const void* attn[kMostHeadLogits] = {};
  const void* grad[kMostHeadLogits] = {};
  const void* upstream = nullptr;
  void* grad_feat = nullptr;
  void* parts = nullptr;  // (num_parts, count, heads, dim), of the type of attn
  int64_t num_parts = 0;
};

}  // namespace halfgnn
