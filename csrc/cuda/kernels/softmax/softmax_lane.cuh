// One lane of a team of edge softmax: what it loads, adds up and writes. See the terms in softmax_team.cuh.
#pragma once

#include <type_traits>

#include "../core/softmax.cuh"
#include "../core/vector.cuh"
#include "softmax_team.cuh"

namespace halfgnn::cuda {

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
  // Whether the team's registers hold all of a row: then it is read once.
  static __device__ bool holds(const SoftmaxItems& items, const SoftmaxTeam& team) {
    return items.count <= capacity(team);
  }

  // Forward: the maximum of each column and the sum of exponentials of the differences from it. Backward: sums of
  // result * gradient, and of results. All lanes of a warp take part, each with a row that fits its team, or all of the
  // warp or of the block with one row.
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
    } while (begin < items.count);
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
    } while (begin < items.count);
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
  __device__ void get_partials(const LongRow& row, const SoftmaxTeam& team, float (&first)[kColumns],
                               float (&second)[kColumns]) const {
    const int64_t step = 2 * problem_.columns;
    const float* partial = problem_.partial + row.first_slot * step + column_;
    start(first, second);
    for (int64_t slot = team.first_item; slot < row.num_slots; slot += team.stride) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const float value = partial[slot * step + c];
        first[c] = Config::kBackward ? first[c] + value : fmaxf(first[c], value);
      }
    }
    reduce<std::conditional_t<Config::kBackward, Sum, Maximum>>(first, team, 0);
    for (int64_t slot = team.first_item; slot < row.num_slots; slot += team.stride) {
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

  // Holds the items number begin + team.first_item + k * stride. Lanes that have none read the row's first again, and
  // make it neutral: -inf in the forward, 0 in the backward. In the flat layout the row's last item comes second, so
  // that of all that a lane holds only x_[0] may have neighbours' values (the team has two lanes at least).
  __device__ void load(const SoftmaxItems& items, const SoftmaxTeam& team, int begin) {
    const int count = items.count - begin;
    const uint32_t base = items.first + begin + team.first_item - (Config::kFlat ? 1 : 0);
    num_held_ = 1;
    num_own_ = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k > 0 && __any_sync(kFullMask, k * team.stride < count)) num_held_ = k + 1;
      const bool is_own = team.first_item + k * team.stride < count;
      if (is_own) num_own_ = k + 1;
      where_[k] = is_own ? base + k * team.stride : items.first;
    }
    if constexpr (Config::kFlat) {
      low_ = 0;
      high_ = num_own_ > 0 ? kVector : 0;
      if (begin == 0 && team.first_item == 0 && count > 0) {
        where_[0] = items.first;
        low_ = items.skip;
        if (count == 1) high_ = items.keep;
      } else if (begin == 0 && team.first_item == 1 && count > 1) {
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

}  // namespace halfgnn::cuda
