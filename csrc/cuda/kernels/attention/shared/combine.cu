// The kernel behind combine_attention (attention.cuh).

#include "../../core/long_rows.cuh"
#include "../../core/types.cuh"
#include "attention.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kUnroll = 4;  // slots that a lane has in flight

struct KernelArgs {
  AttentionCombineArgs args;
  CombineGrid grid;
  int32_t tiles;  // of a head: a warp's columns
};

__device__ void store_element(const Precise& target, DType type, int64_t i, float x) {
  const float value[1] = {x};
  with_type(type, [&](auto t) { store_precise<TypeOf<decltype(t)>, 1>(target, i, value); });
}

// What the pieces of a row leave of one head.
struct HeadSums {
  const AttentionCombineArgs& args;
  const LongRow& row;
  int64_t head;

  __device__ PieceSums of(int64_t slot) const { return args.partials.load_sums(slot, args.heads, head); }
  __device__ float maximum(int lane) const {
    float most = kLowestLogit;
    for (int64_t slot = lane; slot < row.num_slots; slot += kWarpSize) {
      most = fmaxf(most, of(row.first_slot + slot).maximum);
    }
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      most = fmaxf(most, __shfl_xor_sync(kFullMask, most, distance));
    }
    return most;
  }
  // The pieces' sums, brought to one maximum.
  __device__ void total(int lane, float most, double& sum, double& positive) const {
    sum = positive = 0;
    for (int64_t slot = lane; slot < row.num_slots; slot += kWarpSize) {
      const PieceSums piece = of(row.first_slot + slot);
      const double factor = static_cast<double>(expf(piece.maximum - most));
      sum += factor * static_cast<double>(piece.sum);
      positive += factor * static_cast<double>(piece.positive);
    }
    sum = sum_of_warp(sum);
    positive = sum_of_warp(positive);
  }
};

__device__ void combine_head(const AttentionCombineArgs& args, const LongRow& row, const CombineTeam& team,
                             int64_t head, int tile) {
  const HeadSums sums{args, row, head};
  const float most = sums.maximum(team.lane);
  double total, positive_total;
  sums.total(team.lane, most, total, positive_total);

  const int64_t in_head = int64_t{tile} * kWarpSize + team.lane, len = args.heads * args.dim;
  const bool exists = in_head < args.dim;
  const int64_t column = head * args.dim + (exists ? in_head : args.dim - 1);
  const bool has_positive = args.partials.num_vectors > 1;
  double sum = 0, positive = 0;
  float maximum[kUnroll], value[kUnroll], positive_value[kUnroll];
  for_each_slot<kUnroll>(
      row, team,
      [&](int u, int64_t slot) {
        maximum[u] = sums.of(slot).maximum;
        value[u] = __ldcs(args.partials.vector(slot, len, 0) + column);
        positive_value[u] = has_positive ? __ldcs(args.partials.vector(slot, len, 1) + column) : 0.f;
      },
      [&](int u) {
        const double factor = static_cast<double>(expf(maximum[u] - most));
        sum += factor * static_cast<double>(value[u]);
        positive += factor * static_cast<double>(positive_value[u]);
      });
  sum = team.sum(sum);
  if (has_positive) positive = team.sum(positive);
  if (team.warp != 0) return;
  const int64_t element = row.row * len + column;
  if (exists) {
    store_element(args.out, args.type, element, static_cast<float>(sum / total));
    if (has_positive) {
      const double centred = (positive - positive_total / total * sum) / total;
      store_element({args.positive, nullptr}, args.type, element, static_cast<float>(centred));
    }
  }
  if (in_head == 0 && args.lse != nullptr) {
    args.lse[row.row * args.heads + head] = static_cast<float>(static_cast<double>(most) + log(total));
  }
}

__global__ void __launch_bounds__(kCombineThreads, 1) combine_attention_kernel(const KernelArgs kernel) {
  const AttentionCombineArgs& args = kernel.args;
  for_each_long_row(args.rows, kernel.grid,
                    [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
                      for (int64_t item = first; item < args.heads * kernel.tiles; item += step) {
                        combine_head(args, row, team, item / kernel.tiles, static_cast<int>(item % kernel.tiles));
                      }
                    });
}

}  // namespace

cudaError_t combine_attention(const AttentionCombineArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.heads * args.dim == 0) return cudaSuccess;
  const int64_t tiles = ceil_div(args.dim, kWarpSize);
  const KernelArgs kernel{args, CombineGrid::make(args.rows, args.heads * tiles), static_cast<int32_t>(tiles)};
  return cuda::launch(combine_attention_kernel, kernel.grid.blocks(), kCombineThreads, launch.stream, kernel);
}

}  // namespace halfgnn::cuda
