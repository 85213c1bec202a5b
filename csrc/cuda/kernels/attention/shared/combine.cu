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

// What the pieces of a row leave of one head, brought to one maximum.
struct HeadTotal {
  float maximum;
  double sum, positive;
};

class HeadSums {
 public:
  __device__ HeadSums(const AttentionCombineArgs& args, const LongRow& row, int64_t head)
      : args_(args), row_(row), head_(head) {}

  __device__ PieceSums of(int64_t slot) const { return args_.partials.load_sums(slot, args_.heads, head_); }
  __device__ HeadTotal total(int lane) const {
    HeadTotal total{maximum(lane), 0, 0};
    for (int i = lane; i < row_.num_slots; i += kWarpSize) {
      const PieceSums piece = of(row_.slot(i));
      const double factor = static_cast<double>(expf(piece.maximum - total.maximum));
      total.sum += factor * static_cast<double>(piece.sum);
      total.positive += factor * static_cast<double>(piece.positive);
    }
    total.sum = sum_of_warp(total.sum);
    total.positive = sum_of_warp(total.positive);
    return total;
  }

 private:
  __device__ float maximum(int lane) const {
    float most = kLowestLogit;
    for (int i = lane; i < row_.num_slots; i += kWarpSize) most = fmaxf(most, of(row_.slot(i)).maximum);
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      most = fmaxf(most, __shfl_xor_sync(kFullMask, most, distance));
    }
    return most;
  }

  const AttentionCombineArgs& args_;
  const LongRow& row_;
  int64_t head_;
};

// The sums of one column over the slots of a row, relative to the head's maximum; for the team's first warp.
struct ColumnSums {
  double all, positive;
};

__device__ ColumnSums sums_of_column(const AttentionCombineArgs& args, const LongRow& row, const CombineTeam& team,
                                     const HeadSums& sums, float most, int64_t column) {
  const int64_t len = args.heads * args.dim;
  const bool has_positive = args.partials.num_vectors > 1;
  ColumnSums total{0, 0};
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
        total.all += factor * static_cast<double>(value[u]);
        total.positive += factor * static_cast<double>(positive_value[u]);
      });
  total.all = team.sum(total.all);
  if (has_positive) total.positive = team.sum(total.positive);
  return total;
}

__device__ void store_column(const AttentionCombineArgs& args, int64_t element, const HeadTotal& total,
                             const ColumnSums& sums) {
  store_element(args.out, args.type, element, static_cast<float>(sums.all / total.sum));
  if (args.partials.num_vectors == 1) return;
  const double centred = (sums.positive - total.positive / total.sum * sums.all) / total.sum;
  store_element({args.positive, nullptr}, args.type, element, static_cast<float>(centred));
}

// Columns of a head, 32 at a time: tiles first, first + step, ... of all heads.
__device__ void combine_tiles(const AttentionCombineArgs& args, const LongRow& row, const CombineTeam& team,
                              int32_t tiles, int64_t first, int64_t step) {
  int64_t head = -1;
  HeadTotal total{};
  for (int64_t item = first; item < args.heads * tiles; item += step) {
    const HeadSums sums(args, row, item / tiles);
    if (item / tiles != head) total = sums.total(team.lane);
    head = item / tiles;
    const int64_t in_head = item % tiles * kWarpSize + team.lane;
    const bool exists = in_head < args.dim;
    const int64_t column = head * args.dim + (exists ? in_head : args.dim - 1);
    const ColumnSums of_column = sums_of_column(args, row, team, sums, total.maximum, column);
    if (team.warp != 0) continue;
    if (exists) store_column(args, row.row * args.heads * args.dim + column, total, of_column);
    if (in_head == 0 && args.lse != nullptr) {
      args.lse[row.row * args.heads + head] = static_cast<float>(static_cast<double>(total.maximum) + log(total.sum));
    }
  }
}

// All columns of a head: what the slots left of it must be there until the last of them is done.
__device__ void fold_head(const AttentionCombineArgs& args, const LongRow& part, const CombineTeam& team,
                          int64_t head) {
  const HeadSums sums(args, part, head);
  const HeadTotal total = sums.total(team.lane);
  const int64_t len = args.heads * args.dim;
  for (int64_t begin = 0; begin < args.dim; begin += kWarpSize) {
    const bool exists = begin + team.lane < args.dim;
    const int64_t column = head * args.dim + (exists ? begin + team.lane : args.dim - 1);
    const ColumnSums of_column = sums_of_column(args, part, team, sums, total.maximum, column);
    if (team.warp != 0 || !exists) continue;
    args.partials.vector(part.slot(0), len, 0)[column] = static_cast<float>(of_column.all);
    if (args.partials.num_vectors == 1) continue;
    args.partials.vector(part.slot(0), len, 1)[column] = static_cast<float>(of_column.positive);
  }
  if (team.warp != 0 || team.lane != 0) return;
  args.partials.store_sums(part.slot(0), args.heads, head,
                           {total.maximum, static_cast<float>(total.sum), static_cast<float>(total.positive), 0.f});
}

template <bool kFolds>
__global__ void __launch_bounds__(kCombineThreads, 1) combine_attention_kernel(const KernelArgs kernel) {
  const AttentionCombineArgs& args = kernel.args;
  for_each_long_row<kFolds>(args.rows, kernel.grid,
                            [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
                              if constexpr (kFolds) {
                                for (int64_t head = first; head < args.heads; head += step)
                                  fold_head(args, row, team, head);
                              } else {
                                combine_tiles(args, row, team, kernel.tiles, first, step);
                              }
                            });
}

}  // namespace

cudaError_t combine_attention(const AttentionCombineArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.heads * args.dim == 0) return cudaSuccess;
  const int64_t tiles = ceil_div(args.dim, kWarpSize);
  return launch_combine(combine_attention_kernel<true>, combine_attention_kernel<false>,
                        KernelArgs{args, {}, static_cast<int32_t>(tiles)}, args.rows, args.heads * tiles,
                        launch.stream);
}

}  // namespace halfgnn::cuda
