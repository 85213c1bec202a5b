// The kernel behind combine_reductions.h.

#include "combine_reductions.h"

#include "../core/long_rows.cuh"
#include "reductions.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kUnroll = 2;  // slots that a lane has in flight

struct KernelArgs {
  CombineReductionsArgs args;
  CombineGrid grid;
};

// Of a row: of its values, of distances from its first piece's shift, and of their squares.
struct Moments {
  double sum, distance, squares;
};

// The edges of the row's piece in a slot, or of those that were folded into it.
__device__ double edges_of(const Rows& rows, const LongRow& row, int64_t slot) {
  const int64_t begin = rows.indptr.offset(row.row), end = begin + row.degree;
  const int64_t first = slot << rows.log2_piece, next = (slot + row.stride) << rows.log2_piece;
  const bool is_first = !rows.is_long(first - begin);
  return static_cast<double>((next < end ? next : end) - (is_first ? begin : first));
}

__device__ Moments moments_of_column(const CombineReductionsArgs& args, const LongRow& row, const CombineTeam& team,
                                     int64_t column, double shift) {
  Moments total{0, 0, 0};
  float sums[kUnroll], shifts[kUnroll], distances[kUnroll], squares[kUnroll];
  double edges[kUnroll];
  for_each_slot<kUnroll>(
      row, team,
      [&](int u, int64_t slot) {
        const int64_t at = slot * args.len + column;
        sums[u] = __ldcs(args.partial.sum + at);
        shifts[u] = __ldcs(args.partial.shift + at);
        distances[u] = __ldcs(args.partial.distance + at);
        squares[u] = __ldcs(args.partial.squares + at);
        edges[u] = edges_of(args.rows, row, slot);
      },
      [&](int u) {
        const double by = static_cast<double>(shifts[u]) - shift, own = static_cast<double>(distances[u]);
        total.sum += static_cast<double>(sums[u]);
        total.distance += own + edges[u] * by;
        total.squares += static_cast<double>(squares[u]) + by * (2 * own + edges[u] * by);
      });
  return total;
}

// The greatest key of one column over the team's slots.
__device__ int64_t best_of_column(const CombineReductionsArgs& args, const int64_t* keys, const LongRow& row,
                                  const CombineTeam& team, int64_t column) {
  int64_t best = INT64_MIN, loaded[kUnroll];
  for_each_slot<kUnroll>(
      row, team, [&](int u, int64_t slot) { loaded[u] = keys[slot * args.len + column]; },
      [&](int u) { best = loaded[u] > best ? loaded[u] : best; });
  return best;
}

__device__ void store_moments(const CombineReductionsArgs& args, const LongRow& row, int64_t column,
                              const Moments& total) {
  const auto [sum, distance, squares] = total;
  const ReductionsOut& out = args.out;
  const int64_t i = int64_t{row.row} * args.len + column;
  const double edges = row.degree, mean = sum / edges, second = squares - distance * (distance / edges);
  const float var = static_cast<float>((second < 0 ? 0 : second) / edges), std = std_of(var, out.eps);
  const auto store = [&](void* to, DType type, double value) {
    if (to != nullptr) store_scalar(to, type, i, static_cast<float>(value));
  };
  store(out.sum, out.type, sum);
  store(out.mean, out.type, mean);
  store(out.kept_mean, DType::kFloat, mean);
  store(out.var, out.type, var);
  store(out.std, out.type, std);
  store(out.kept_std, DType::kFloat, std);
}

template <bool kFolds>
__device__ void combine_moments(const CombineReductionsArgs& args, const LongRow& row, const CombineTeam& team,
                                int64_t column, bool exists) {
  const PartialReductions& partial = args.partial;
  const int64_t at = row.slot(0) * args.len + column;
  const double shift = exists ? static_cast<double>(partial.shift[at]) : 0;
  Moments total{0, 0, 0};
  if (exists) total = moments_of_column(args, row, team, column, shift);
  total = {team.sum(total.sum), team.sum(total.distance), team.sum(total.squares)};
  if (team.warp != 0 || !exists) return;
  if constexpr (kFolds) {
    partial.sum[at] = static_cast<float>(total.sum);
    partial.distance[at] = static_cast<float>(total.distance);
    partial.squares[at] = static_cast<float>(total.squares);
  } else {
    store_moments(args, row, column, total);
  }
}

template <bool kFolds>
__device__ void combine_extrema(const CombineReductionsArgs& args, const LongRow& row, const CombineTeam& team,
                                int64_t column, bool exists) {
  const auto best_of = [&](const int64_t* keys) {
    return team.join(exists ? best_of_column(args, keys, row, team, column) : 0,
                     [](int64_t a, int64_t b) { return a > b ? a : b; });
  };
  const int64_t largest = best_of(args.partial.max), smallest = best_of(args.partial.min);
  if (team.warp != 0 || !exists) return;
  if constexpr (kFolds) {
    args.partial.max[row.slot(0) * args.len + column] = largest;
    args.partial.min[row.slot(0) * args.len + column] = smallest;
  } else {
    const Winner max[1] = {largest_of_key(largest)}, min[1] = {smallest_of_key(smallest)};
    store_winners(args.out, int64_t{row.row} * args.len + column, true, max, min);
  }
}

template <bool kFolds>
__global__ void __launch_bounds__(kCombineThreads, 2) combine_reductions_kernel(const KernelArgs kernel) {
  const CombineReductionsArgs& args = kernel.args;
  for_each_long_row<kFolds>(args.rows, kernel.grid,
                            [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
                              for (int64_t begin = first * kWarpSize; begin < args.len; begin += step * kWarpSize) {
                                const int64_t column = begin + team.lane;
                                if (args.has_sums) combine_moments<kFolds>(args, row, team, column, column < args.len);
                                if (args.has_extrema)
                                  combine_extrema<kFolds>(args, row, team, column, column < args.len);
                              }
                            });
}

}  // namespace

cudaError_t combine_reductions(const CombineReductionsArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.len <= 0) return cudaSuccess;
  return launch_combine(combine_reductions_kernel<true>, combine_reductions_kernel<false>, KernelArgs{args, {}},
                        args.rows, ceil_div(args.len, kWarpSize), launch.stream);
}

}  // namespace halfgnn::cuda
