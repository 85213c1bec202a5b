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

// The edges of the row's piece in a slot.
__device__ double edges_of(const Rows& rows, const LongRow& row, int64_t slot) {
  const int64_t begin = rows.indptr.offset(row.row), end = begin + row.degree;
  const int64_t first = slot << rows.log2_piece, next = (slot + 1) << rows.log2_piece;
  return static_cast<double>((next < end ? next : end) - (slot == row.first_slot ? begin : first));
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

__device__ void combine_moments(const CombineReductionsArgs& args, const LongRow& row, const CombineTeam& team,
                                int64_t column, bool exists) {
  const double shift = exists ? static_cast<double>(args.partial.shift[row.first_slot * args.len + column]) : 0;
  Moments own{0, 0, 0};
  if (exists) own = moments_of_column(args, row, team, column, shift);
  const double sum = team.sum(own.sum), distance = team.sum(own.distance), squares = team.sum(own.squares);
  if (team.warp != 0 || !exists) return;
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

__device__ void combine_extrema(const CombineReductionsArgs& args, const LongRow& row, const CombineTeam& team,
                                int64_t column, bool exists) {
  const auto best_of = [&](const int64_t* keys) {
    return team.join(exists ? best_of_column(args, keys, row, team, column) : 0,
                     [](int64_t a, int64_t b) { return a > b ? a : b; });
  };
  const Winner max[1] = {largest_of_key(best_of(args.partial.max))};
  const Winner min[1] = {smallest_of_key(best_of(args.partial.min))};
  if (team.warp == 0 && exists) store_winners(args.out, int64_t{row.row} * args.len + column, true, max, min);
}

__global__ void __launch_bounds__(kCombineThreads, 2) combine_reductions_kernel(const KernelArgs kernel) {
  const CombineReductionsArgs& args = kernel.args;
  for_each_long_row(args.rows, kernel.grid,
                    [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
                      for (int64_t begin = first * kWarpSize; begin < args.len; begin += step * kWarpSize) {
                        const int64_t column = begin + team.lane;
                        if (args.has_sums) combine_moments(args, row, team, column, column < args.len);
                        if (args.has_extrema) combine_extrema(args, row, team, column, column < args.len);
                      }
                    });
}

}  // namespace

cudaError_t combine_reductions(const CombineReductionsArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.len <= 0) return cudaSuccess;
  const KernelArgs kernel{args, CombineGrid::make(args.rows, ceil_div(args.len, kWarpSize))};
  return cuda::launch(combine_reductions_kernel, kernel.grid.blocks(), kCombineThreads, launch.stream, kernel);
}

}  // namespace halfgnn::cuda
