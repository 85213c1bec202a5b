// How logits come from a row's own key and the key of an edge: policies of the kernels of GATv2 and dot attention.
//
// Each of them names a class. A lane holds a part of the row's own key in one of them.
//
//   Score<T, kVector, kRepeat, kSplits>          kRepeat vectors of the own row (lanes/score_dot.cuh, score_leaky.cuh)
//     load(args, own_row, vectors)               reads the own row
//     own(r), .widen(args, j)                    the r-th vector, and two of its elements in fp32, as `add` takes them
//     first()                                    what a lane's sum starts from
//     add(own, key, sum)                         adds the part of a logit that two elements of a key make
//     logit(args, sum)                           what sums are of the logit
//     add_gradient(is_first, factor, rows, u, r, sum)  adds what edge u adds to the gradient of the own key, where
//                                                factor is the gradient of its logit
//     finish(args, factor_sum, r, sum, product)  turns the sum over edges into the gradient of the own key; product:
//                                                what the row adds to the gradient of attn
//     signs(key)                                 of GATv2: where z is positive, for records of edges
//     edge_gradient(args, factor, rows, u, gradient, products)  of a key that an edge adds; products as above
#pragma once

#include "pair_attention.h"
#include "pass.h"

namespace halfgnn::cuda {

template <typename T, int kVector, int kRepeat>
class DotLaneScore;
template <typename T, int kVector, int kRepeat, bool kSplits>
class LeakyLaneScore;

struct Dot {
  static constexpr PairScore kScore = PairScore::kDot;
  template <typename T, int kVector, int kRepeat, bool /*kSplits*/>
  using OnLanes = DotLaneScore<T, kVector, kRepeat>;
};
struct Leaky {
  static constexpr PairScore kScore = PairScore::kLeaky;
  template <typename T, int kVector, int kRepeat, bool kSplits>
  using OnLanes = LeakyLaneScore<T, kVector, kRepeat, kSplits>;
};

}  // namespace halfgnn::cuda
