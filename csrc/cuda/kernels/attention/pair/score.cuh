// How logits come from a row's own key and the key of an edge: policies of the kernels of GATv2 and dot attention.
//
// Each of them names two classes, one for each kind of kernel. A lane holds a part of the row's own key in one of them.
//
//   of lanes: Score<T, kVector, kRepeat>         kRepeat vectors of the own row (lanes/score_dot.cuh, score_leaky.cuh)
//     load(args, own_row, vectors)               reads the own row
//     own(r), .widen(args, j)                    the r-th vector, and two of its elements in fp32, as `add` takes them
//     add(own, key, sum)                         adds the part of a logit that two elements of a key make
//     logit(args, sum)                           what sums are of the logit
//     add_gradient(is_first, factor, rows, u, r, sum)  adds what edge u adds to the gradient of the own key, where
//                                                factor is the gradient of its logit
//     finish(args, factor_sum, r, sum, product)  turns the sum over edges into the gradient of the own key; product:
//                                                what the row adds to the gradient of attn
//     signs(key)                                 of GATv2: where z is positive, for records of edges
//     edge_gradient(args, factor, rows, u, gradient, products)  of a key that an edge adds; products as above
//
//   of tensor cores: Score<T, kPass, kBlocks>    blocks of 64 elements (tensor/score_dot.cuh, score_leaky.cuh)
//     Dots                                       what products of a batch's keys are summed up in
//     load(own_row, chunks, lane)                reads the own row
//     add_dots(batch, rows, block, dots)         adds a block of the keys of a batch
//     logit(args, dots, i)                       of edge group + 8 i
//     terms(batch, rows, block)                  rows of what the gradient of the own key sums up, times factors
//     finish(args, own_chunk, attn_chunk, factor_sum, sum, product)  as above, of one chunk of 16 bytes
#pragma once

#include "pair_attention.h"
#include "pass.h"

namespace halfgnn::cuda {

template <typename T, int kVector, int kRepeat>
class DotLaneScore;
template <typename T, int kVector, int kRepeat>
class LeakyLaneScore;
template <typename T, PairPass kPass, int kBlocks>
class DotTensorScore;
template <typename T, PairPass kPass, int kBlocks>
class LeakyTensorScore;

struct Dot {
  static constexpr PairScore kScore = PairScore::kDot;
  template <typename T, int kVector, int kRepeat>
  using OnLanes = DotLaneScore<T, kVector, kRepeat>;
  template <typename T, PairPass kPass, int kBlocks>
  using OnTensorCores = DotTensorScore<T, kPass, kBlocks>;
};
struct Leaky {
  static constexpr PairScore kScore = PairScore::kLeaky;
  template <typename T, int kVector, int kRepeat>
  using OnLanes = LeakyLaneScore<T, kVector, kRepeat>;
  template <typename T, PairPass kPass, int kBlocks>
  using OnTensorCores = LeakyTensorScore<T, kPass, kBlocks>;
};

}  // namespace halfgnn::cuda
