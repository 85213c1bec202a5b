// The kernels behind edge_softmax.h. Include only where they are instantiated (edge_softmax_<type>.cu).
//
// Terms. A vector is one access of kVector elements. An item is what a lane takes of a row at a time: a vector of one
// edge or, in the flat layout, a vector of the values of several edges that lie side by side (edge data in the order of
// the rows, a few columns); then the row's first and last item may hold values of its neighbours too. 2^log2_lanes
// lanes side by side take the vectors of one edge. A team shares a row: a few lanes, a warp, or the block.
//
// Method. A row whose items fit in its team's registers is read once. Teams are sized for the average row; what does
// not fit them goes to the warp, what does not fit the warp to the block. Rows that do not even fit the block are read
// twice, the second time from the caches, with the running maximum of Milakov and Gimelshein ("Online normalizer
// calculation for softmax", 2018). Pieces of long rows (rows.cuh) leave their sums in the workspace, and a second
// kernel writes their results.
#pragma once

#include <type_traits>

#include "../core/softmax.cuh"
#include "../core/vector.cuh"
#include "edge_softmax_launch.h"

namespace halfgnn::cuda {

template <typename T, int kVectorElements, int kFlatColumns, bool kIsBackward>
struct SoftmaxConfig {
  using Element = T;
  static constexpr bool kBackward = kIsBackward;
  static constexpr int kArrays = kBackward ? 2 : 1;  // logits, or results and gradients
  static constexpr int kVector = kVectorElements;
  static constexpr bool kFlat = kFlatColumns > 0;
  static constexpr int kColumns = kFlat ? kFlatColumns : kVector;  // that a lane has sums for
  static constexpr int kItems = softmax_items(kVector * static_cast<int>(sizeof(T)), kBackward);
  static constexpr int kThreads = kSoftmaxWarps * kWarpSize;
  // At most 72 registers a lane: 28 warps on a multiprocessor, each with 2 KiB in flight. Eight items and their
  // addresses take 80 on sm_100.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  static constexpr int kMinBlocks = kItems == 8 ? 6 : 7;
#else
  static constexpr int kMinBlocks = 7;
#endif
  static_assert(kVector % kColumns == 0, "a flat vector holds whole edges");
};

struct Maximum {
  static __device__ float apply(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  static __device__ float apply(float a, float b) { return a + b; }
};

// Who shares a row: 2^log2_size lanes. Seen from one of its lanes.
struct SoftmaxTeam {
  int log2_size;
  int slot;    // first item of this lane
  int stride;  // items of all lanes

  static __device__ SoftmaxTeam make(int log2_size, int log2_lanes, int thread) {
    const int size = 1 << log2_size;
    return {log2_size, (thread & (size - 1)) >> log2_lanes, size >> log2_lanes};
  }
  static __device__ SoftmaxTeam block(int log2_lanes, int thread) { return make(kLog2Block, log2_lanes, thread); }
  __device__ bool is_block() const { return log2_size == kLog2Block; }

  static constexpr int kLog2Block = log2_ceil(kSoftmaxWarps * kWarpSize);
};

// The items of a row or of a piece: fewer than 2^31, since long rows are cut. In the flat layout the first `skip`
// elements of the first one, and those from `keep` on of the last, are not the row's.
struct SoftmaxItems {
  uint32_t first = 0;
  int count = 0;
  int skip = 0;
  int keep = 0;
};
template <class Config>
__device__ SoftmaxItems items_of(int64_t begin, int64_t end) {
  if (begin == end) return {};
  if constexpr (Config::kFlat) {
    const int64_t low = begin * Config::kColumns, high = end * Config::kColumns;
    const int64_t first = low / Config::kVector, last = (high - 1) / Config::kVector;
    return {static_cast<uint32_t>(first), static_cast<int>(last - first + 1),
            static_cast<int>(low - first * Config::kVector), static_cast<int>(high - last * Config::kVector)};
  } else {
    return {static_cast<uint32_t>(begin), static_cast<int>(end - begin), 0, 0};
  }
}

// A lane, and the values that it holds.
template <class Config>
class SoftmaxLane {
 public:
  using T = typename Config::Element;
  static constexpr int kColumns = Config::kColumns;

  __device__ SoftmaxLane(const SoftmaxProblem& problem, int thread, int slice)
      : problem_(problem), thread_(thread), column_(0), stores_(true) {
    if constexpr (!Config::kFlat) {
      // A lane without a vector does what the last one does, and does not store.
      const int vector = (slice << problem.log2_lanes) + (thread & ((1 << problem.log2_lanes) - 1));
      stores_ = vector < problem.num_vectors;
      column_ = (stores_ ? vector : problem.num_vectors - 1) * kVector;
    }
  }

  static __device__ int capacity(const SoftmaxTeam& team) { return kItems * team.stride; }

  // Forward: the maximum of each column and the sum of exponentials of the differences from it. Backward: sums of
  // result * gradient, and of results. All lanes of a warp take part, each with a row that fits its team, or all of the
  // block with one row.
  __device__ void accumulate(const SoftmaxItems& items, const SoftmaxTeam& team, float (&first)[kColumns],
                             float (&second)[kColumns]) {
    start(first, second);
    int begin = 0;
    do {
      load(items, team, begin);
      if constexpr (Config::kBackward) {
        add_products(first, second);
      } else {
        add_exponentials(first, second);
      }
      begin += capacity(team);
    } while (team.is_block() && begin < items.count);
    if constexpr (Config::kBackward) {
      reduce<Sum>(first, team, 0);
    } else {
      float own[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) own[c] = first[c];
      reduce<Maximum>(first, team, 0);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) second[c] *= exp_of_difference<T>(own[c] - first[c]);
    }
    reduce<Sum>(second, team, 1);
  }

  // Writes the results of items, given what accumulate() gave for the row. `is_loaded`: they are those that it loaded
  // last.
  __device__ void finish(const SoftmaxItems& items, const SoftmaxTeam& team, bool is_loaded, float (&first)[kColumns],
                         float (&second)[kColumns]) {
    finish_coefficients(first, second);
    int begin = 0;
    do {
      if (!is_loaded) load(items, team, begin);
      write(first, second);
      begin += capacity(team);
    } while (team.is_block() && begin < items.count);
  }

  // One piece's sums to the workspace.
  __device__ void put_partial(int64_t slot, const float (&first)[kColumns], const float (&second)[kColumns]) const {
    if ((thread_ >> problem_.log2_lanes) != 0 || !stores_) return;
    float* partial = problem_.partial + slot * 2 * problem_.columns + column_;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      partial[c] = first[c];
      partial[problem_.columns + c] = second[c];
    }
  }

  // The sums of a long row from those of its pieces.
  __device__ void get_partials(int64_t first_slot, int64_t num_slots, const SoftmaxTeam& team, float (&first)[kColumns],
                               float (&second)[kColumns]) const {
    const int64_t step = 2 * problem_.columns;
    const float* partial = problem_.partial + first_slot * step + column_;
    start(first, second);
    for (int64_t slot = team.slot; slot < num_slots; slot += team.stride) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const float value = partial[slot * step + c];
        first[c] = Config::kBackward ? first[c] + value : fmaxf(first[c], value);
      }
    }
    reduce<std::conditional_t<Config::kBackward, Sum, Maximum>>(first, team, 0);
    for (int64_t slot = team.slot; slot < num_slots; slot += team.stride) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float value = partial[slot * step + problem_.columns + c];
        if constexpr (!Config::kBackward) value *= expf(partial[slot * step + c] - first[c]);
        second[c] += value;
      }
    }
    reduce<Sum>(second, team, 1);
  }

 private:
  static constexpr int kVector = Config::kVector;
  static constexpr int kItems = Config::kItems;
  static constexpr int kLanes = Config::kFlat ? 1 : kWarpSize;  // of an edge, at most
  using Vector = Fragment<T, kVector>;
  struct Elements {
    T value[kVector];
  };

  static __device__ void start(float (&first)[kColumns], float (&second)[kColumns]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      first[c] = Config::kBackward ? 0.f : kLowestLogit;
      second[c] = 0.f;
    }
  }

  // first: what to subtract from the logit; the mean gradient. second: of the forward, what to multiply with. Dividing
  // by the sum of the rounded results makes a row's gradients sum to zero.
  static __device__ void finish_coefficients(float (&first)[kColumns], float (&second)[kColumns]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if constexpr (Config::kBackward) {
        if (second[c] > 0.f) first[c] = __fdividef(first[c], second[c]);
      } else {
        second[c] = __fdividef(1.f, second[c]);
      }
    }
  }

  // ---- memory. Of the lane's kItems items, those from num_held_ on are empty in all lanes of the warp.

  __device__ const char* source(int array) const {
    return static_cast<const char*>(array == 0 ? problem_.values : problem_.grad) + column_ * sizeof(T);
  }
  static __device__ Vector neutral() {
    float value[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) value[j] = Config::kBackward ? 0.f : -INFINITY;
    return Vector::round(value);
  }

  // Holds the items number begin + slot + k * stride. Lanes that have none read the row's first again, and make it
  // neutral: -inf in the forward, 0 in the backward. In the flat layout the row's last item comes second, so that of
  // all that a lane holds only x_[0] may have neighbours' values (the team has two lanes at least).
  __device__ void load(const SoftmaxItems& items, const SoftmaxTeam& team, int begin) {
    const int count = items.count - begin;
    const uint32_t base = items.first + begin + team.slot - (Config::kFlat ? 1 : 0);
    num_held_ = 1;
    num_own_ = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k > 0 && __any_sync(kFullMask, k * team.stride < count)) num_held_ = k + 1;
      const bool is_own = team.slot + k * team.stride < count;
      if (is_own) num_own_ = k + 1;
      where_[k] = is_own ? base + k * team.stride : items.first;
    }
    if constexpr (Config::kFlat) {
      low_ = 0;
      high_ = num_own_ > 0 ? kVector : 0;
      if (begin == 0 && team.slot == 0 && count > 0) {
        where_[0] = items.first;
        low_ = items.skip;
        if (count == 1) high_ = items.keep;
      } else if (begin == 0 && team.slot == 1 && count > 1) {
        where_[0] = items.first + items.count - 1;
        high_ = items.keep;
      }
    } else {
      look_up_edges();
    }
#pragma unroll
    for (int array = 0; array < Config::kArrays; ++array) {
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        if (k >= num_held_) break;
        uint32_t item = where_[k];
        if constexpr (Config::kFlat) item = item < problem_.full_vectors ? item : problem_.full_vectors - 1;
        x_[array][k] = Vector::load_streaming(source(array) + static_cast<uint64_t>(item) * problem_.item_bytes);
      }
    }
#pragma unroll
    for (int array = 0; array < Config::kArrays; ++array) {
#pragma unroll
      for (int k = 0; k < kItems; ++k) x_[array][k] = k < num_own_ ? x_[array][k] : neutral();
      if constexpr (Config::kFlat) clear_neighbours(array);
    }
  }

  // Edge ids for positions. One branch for all, so that the loads stay in flight together.
  __device__ void look_up_edges() {
    const Ids& ids = problem_.edge_ids;
    if (ids.data == nullptr) return;
    if (ids.is_int64) {
#pragma unroll
      for (int k = 0; k < kItems; ++k) where_[k] = Ids{ids.data, true}.id(where_[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kItems; ++k) where_[k] = Ids{ids.data, false}.id(where_[k]);
    }
  }

  __device__ void clear_neighbours(int array) {
    if (low_ == 0 && high_ == kVector) return;
    Elements elements = bits_as<Elements>(x_[array][0].word), none = bits_as<Elements>(neutral().word);
    // The array's last vector may be incomplete: what was read in its place is another.
    const bool incomplete = where_[0] >= problem_.full_vectors;
    const T* own = reinterpret_cast<const T*>(source(array)) + static_cast<uint64_t>(where_[0]) * kVector;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const bool mine = j >= low_ && j < high_;
      if (incomplete && mine) elements.value[j] = own[j];
      if (!mine) elements.value[j] = none.value[j];
    }
    x_[array][0].word = bits_as<typename Vector::Word>(elements);
  }

  __device__ void write(const float (&first)[kColumns], const float (&second)[kColumns]) const {
    char* out = static_cast<char*>(problem_.out) + column_ * sizeof(T);
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k >= num_held_) break;
      float value[kVector];
      x_[0][k].widen(value);
      if constexpr (Config::kBackward) {
        float grad[kVector];
        x_[1][k].widen(grad);
#pragma unroll
        for (int j = 0; j < kVector; ++j) value[j] *= grad[j] - first[j % kColumns];
      } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j)
          value[j] = exp_of_difference<T>(value[j] - first[j % kColumns]) * second[j % kColumns];
      }
      const Vector result = Vector::round(value);
      char* address = out + static_cast<uint64_t>(where_[k]) * problem_.item_bytes;
      if (Config::kFlat && k == 0 && (low_ > 0 || high_ < kVector)) {
        const Elements elements = bits_as<Elements>(result.word);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          if (j >= low_ && j < high_) reinterpret_cast<T*>(address)[j] = elements.value[j];
        }
      } else if (k < num_own_ && stores_) {
        result.store_streaming(address);
      }
    }
  }

  // ---- sums

  __device__ void add_exponentials(float (&largest)[kColumns], float (&sum)[kColumns]) const {
    float old[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) old[c] = largest[c];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k >= num_held_) break;
      float value[kVector];
      x_[0][k].widen(value);
#pragma unroll
      for (int j = 0; j < kVector; ++j) largest[j % kColumns] = fmaxf(largest[j % kColumns], value[j]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] *= exp_of_difference<T>(old[c] - largest[c]);
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k >= num_held_) break;
      float value[kVector];
      x_[0][k].widen(value);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[j % kColumns] += exp_of_difference<T>(value[j] - largest[j % kColumns]);
    }
  }

  __device__ void add_products(float (&product)[kColumns], float (&total)[kColumns]) const {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k >= num_held_) break;
      float weight[kVector], grad[kVector];
      x_[0][k].widen(weight);
      x_[1][k].widen(grad);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        product[j % kColumns] += weight[j] * grad[j];
        total[j % kColumns] += weight[j];
      }
    }
  }

  // In all lanes of the team that hold the same columns: their values together. `buffer` alternates between two, so
  // that one barrier of the block keeps apart those who read it and those who write it next.
  template <class Operation>
  __device__ void reduce(float (&value)[kColumns], const SoftmaxTeam& team, int buffer) const {
    const int lanes = 1 << problem_.log2_lanes;
    const int end = 1 << team.log2_size;
    for (int distance = lanes; distance < end && distance < kWarpSize; distance *= 2) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        value[c] = Operation::apply(value[c], __shfl_xor_sync(kFullMask, value[c], distance));
      }
    }
    if (!team.is_block()) return;
    float* const exchange = exchange_buffer(buffer);
    const int lane = thread_ % kWarpSize;
    if (lane < lanes) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) exchange[(thread_ / kWarpSize * kColumns + c) * kLanes + lane] = value[c];
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float* const column = exchange + c * kLanes + (lane & (lanes - 1));
      value[c] = column[0];
#pragma unroll
      for (int warp = 1; warp < kSoftmaxWarps; ++warp) {
        value[c] = Operation::apply(value[c], column[warp * kColumns * kLanes]);
      }
    }
  }
  // (warps, columns, lanes of an edge)
  static __device__ float* exchange_buffer(int buffer) {
    __shared__ float exchange[2][kSoftmaxWarps * kColumns * kLanes];
    return exchange[buffer];
  }

  const SoftmaxProblem& problem_;
  int thread_;
  int column_;
  bool stores_;

  Vector x_[Config::kArrays][kItems];
  uint32_t where_[kItems];  // times item_bytes
  int num_held_;            // by some lane of the warp
  int num_own_;             // by this lane
  int low_, high_;          // the elements of x_[0] that are the row's
};

// Whole rows, and the sums of pieces. A block has a slot, or 32 / team rows for each warp.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) softmax_rows(const SoftmaxProblem problem) {
  const Rows& rows = problem.rows;
  const int thread = threadIdx.x, log2_lanes = problem.log2_lanes;
  const int64_t unit = blockIdx.x / problem.num_slices;
  SoftmaxLane<Config> lane(problem, thread, blockIdx.x % problem.num_slices);
  const bool is_slot = unit < rows.num_slots;
  // Rows that do not fit their team, a bit for the team's first lane: those that fit the warp, and the others.
  __shared__ uint32_t rows_for_block[kSoftmaxWarps];
  const int warp = thread / kWarpSize;
  uint32_t waiting = 0;

  SoftmaxTeam team = SoftmaxTeam::make(problem.log2_team, log2_lanes, thread);
  SoftmaxItems items;
  const int64_t block_row = (unit - rows.num_slots) * (kSoftmaxWarps << (kLog2Warp - problem.log2_team));
  if (is_slot) {
    Piece piece;
    if (!find_piece(rows, unit, thread % kWarpSize, piece)) return;
    items = items_of<Config>(piece.begin, piece.end);
    team = SoftmaxTeam::block(log2_lanes, thread);
  } else {
    const int64_t row = block_row + (thread >> problem.log2_team);
    int64_t begin = 0, end = 0;
    if (row < rows.num_rows) {
      begin = rows.indptr.offset(row);
      end = rows.indptr.offset(row + 1);
      if (rows.is_long(end - begin)) end = begin;
    }
    items = items_of<Config>(begin, end);
    const bool leads = (thread & ((1 << problem.log2_team) - 1)) == 0;
    const bool too_long = items.count > lane.capacity(team);
    const bool too_long_for_warp = items.count > lane.capacity(SoftmaxTeam::make(kLog2Warp, log2_lanes, thread));
    waiting = __ballot_sync(kFullMask, leads && too_long && !too_long_for_warp);
    const uint32_t for_block = __ballot_sync(kFullMask, leads && too_long_for_warp);
    if (thread % kWarpSize == 0) rows_for_block[warp] = for_block;
    if (too_long) items = {};
  }

  int next = warp;  // the warp whose rows are waiting
  for (;;) {
    float first[Config::kColumns], second[Config::kColumns];
    lane.accumulate(items, team, first, second);
    if (is_slot) {
      lane.put_partial(unit, first, second);
      return;
    }
    lane.finish(items, team, !team.is_block() || items.count <= lane.capacity(team), first, second);

    if (waiting == 0) {
      if (!team.is_block()) {
        __syncthreads();
        team = SoftmaxTeam::block(log2_lanes, thread);
        next = -1;
      }
      while (waiting == 0 && ++next < kSoftmaxWarps) waiting = rows_for_block[next];
      if (waiting == 0) return;
    } else if (!team.is_block()) {
      team = SoftmaxTeam::make(kLog2Warp, log2_lanes, thread);
    }
    const int row_in_block = (next * kWarpSize + __ffs(waiting) - 1) >> problem.log2_team;
    waiting &= waiting - 1;
    items = items_of<Config>(rows.indptr.offset(block_row + row_in_block),
                             rows.indptr.offset(block_row + row_in_block + 1));
  }
}

// The results of pieces. Every block adds up the sums of its row's pieces for itself: there are few.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) softmax_pieces(const SoftmaxProblem problem) {
  const Rows& rows = problem.rows;
  const int thread = threadIdx.x;
  SoftmaxLane<Config> lane(problem, thread, blockIdx.x % problem.num_slices);
  const SoftmaxTeam block = SoftmaxTeam::block(problem.log2_lanes, thread);
  Piece piece;
  if (!find_piece(rows, blockIdx.x / problem.num_slices, thread % kWarpSize, piece)) return;
  const int64_t begin = rows.indptr.offset(piece.row), end = rows.indptr.offset(piece.row + 1);
  const int64_t first_slot = ceil_div(begin, int64_t{1} << rows.log2_piece);
  const int64_t num_slots = ((end - 1) >> rows.log2_piece) - first_slot + 1;
  float first[Config::kColumns], second[Config::kColumns];
  lane.get_partials(first_slot, num_slots, block, first, second);
  lane.finish(items_of<Config>(piece.begin, piece.end), block, false, first, second);
}

template <class Config>
cudaError_t launch_softmax(const SoftmaxProblem& problem, int64_t row_blocks, cudaStream_t stream) {
  const int64_t slots = problem.rows.num_slots;
  const cudaError_t status =
      launch(softmax_rows<Config>, (slots + row_blocks) * problem.num_slices, Config::kThreads, stream, problem);
  if (status != cudaSuccess) return status;
  return launch(softmax_pieces<Config>, slots * problem.num_slices, Config::kThreads, stream, problem);
}

template <typename T, bool kBackward>
cudaError_t launch_softmax(const SoftmaxProblem& problem, const SoftmaxShape& shape, cudaStream_t stream) {
  constexpr int kFull = kMaxAccessBytes / static_cast<int>(sizeof(T));
  const auto run = [&](auto config) { return launch_softmax<decltype(config)>(problem, shape.row_blocks, stream); };
  if (shape.flat) {
    if (problem.columns == 1) return run(SoftmaxConfig<T, kFull, 1, kBackward>{});
    if (problem.columns == 2) return run(SoftmaxConfig<T, kFull, 2, kBackward>{});
    if constexpr (kFull > 4) {
      if (problem.columns == 4) return run(SoftmaxConfig<T, kFull, 4, kBackward>{});
    }
    return cudaErrorInvalidValue;
  }
  if (shape.vector == kFull) return run(SoftmaxConfig<T, kFull, 0, kBackward>{});
  if constexpr (kFull > 4) {
    if (shape.vector == 4) return run(SoftmaxConfig<T, 4, 0, kBackward>{});
  }
  return run(SoftmaxConfig<T, 1, 0, kBackward>{});
}

}  // namespace halfgnn::cuda
