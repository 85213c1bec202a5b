// What edges add to GATv2 and dot attention (PairEdgeArgs), as policies of their kernels.
//
// Each of them names a class of the kernels of lanes, and one of those on tensor cores if it has such. What such a
// class may have, and what it does where it has nothing, is written in lanes/edges.cuh and tensor/edges.cuh.
#pragma once

#include "pass.h"

namespace halfgnn::cuda {

template <class Config>
class LaneEdges;
template <class Config>
class LaneBias;
template <class Config>
class LaneEdgeRows;
template <class Config>
class LaneEdgeColumns;
template <class Config>
class LaneProjection;
template <typename T, PairPass kPass>
class TensorBias;
template <typename T, PairPass kPass>
class TensorEdgeColumns;

struct NoEdges {
  template <class Config>
  using OnLanes = LaneEdges<Config>;

  static constexpr bool kHasTerms = false;     // there may be a bias, which may be -inf and remove an edge
  static constexpr bool kHasBias = false;      // there is one
  static constexpr bool kHasProducts = false;  // rows of edges are in the gradient of attn
  static constexpr bool kMayBeWide = false;    // results may be fp32, for projections of columns to be added
  static constexpr bool kTakesTurns = false;   // a warp takes several units, for what its block keeps in shared memory

  static constexpr bool has_tensor_kernels(PairScore) { return false; }
};

struct BiasEdges : NoEdges {
  template <class Config>
  using OnLanes = LaneBias<Config>;
  template <typename T, PairPass kPass>
  using OnTensorCores = TensorBias<T, kPass>;
  static constexpr bool kHasTerms = true, kHasBias = true;
  static constexpr bool has_tensor_kernels(PairScore score) { return score == PairScore::kDot; }

  // Warps of a multiprocessor: kernels may have 128 registers.
  static constexpr int min_warps(bool /*forward*/, bool /*writes_products*/, int /*element_bytes*/) { return 16; }
};

// Rows, and perhaps a bias.
struct RowEdges : BiasEdges {
  template <class Config>
  using OnLanes = LaneEdgeRows<Config>;
  static constexpr bool kHasBias = false, kHasProducts = true;
  static constexpr bool has_tensor_kernels(PairScore) { return false; }
  static constexpr int min_warps(bool, bool writes_products, int) { return writes_products ? 8 : 16; }
};

// Columns (PairColumnArgs), and perhaps a bias: of dot attention.
struct ColumnEdges : BiasEdges {
  template <class Config>
  using OnLanes = LaneEdgeColumns<Config>;
  template <typename T, PairPass kPass>
  using OnTensorCores = TensorEdgeColumns<T, kPass>;
  static constexpr bool kHasBias = false, kMayBeWide = true;
};

// Columns which a weight makes rows of, and perhaps a bias: of GATv2. Kernels may have 168 registers, or 255.
struct ProjectedEdges : BiasEdges {
  template <class Config>
  using OnLanes = LaneProjection<Config>;
  static constexpr bool kHasBias = false, kTakesTurns = true;
  static constexpr bool has_tensor_kernels(PairScore) { return false; }
  static constexpr int min_warps(bool forward, bool, int element_bytes) {
    return forward && element_bytes == 2 ? 12 : 8;
  }
};

}  // namespace halfgnn::cuda
