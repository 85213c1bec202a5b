// Which edges of a row are sampled.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "random_stream.h"

namespace halfgnn::cpu {

// The edges of a row that may be sampled: `degree` positions from `begin` on.
struct EdgeRange {
  int64_t begin = 0, degree = 0;
};

// Weights of edges, by position. Edges whose weight is not above zero are never sampled.
struct EdgeWeights {
  const void* data = nullptr;
  bool is_double = false;

  explicit operator bool() const { return data != nullptr; }
  double operator[](int64_t position) const {
    const double weight = is_double ? static_cast<const double*>(data)[position]
                                    : static_cast<double>(static_cast<const float*>(data)[position]);
    return weight > 0 ? weight : 0;
  }
};

// What a thread picks with: buffers that are used again for every row.
class EdgePicks {
 public:
  EdgePicks(EdgeWeights weights, int64_t fanout, bool replace)
      : weights_(weights), fanout_(fanout), replace_(replace && fanout >= 0) {}

  // The number of edges that pick() takes of a row.
  int64_t count(EdgeRange row) const {
    int64_t candidates = row.degree;
    if (weights_) {
      candidates = 0;
      for (int64_t i = row.begin; i < row.begin + row.degree; ++i) candidates += weights_[i] > 0;
    }
    if (fanout_ < 0 || candidates == 0) return candidates;
    return replace_ ? fanout_ : std::min(candidates, fanout_);
  }

  // Writes the positions of `count` edges of the row to out. count: as count() says.
  template <class I>
  void pick(EdgeRange row, int64_t count, RandomStream random, I* out) {
    if (count == 0) return;
    if (weights_) {
      replace_ ? weighted_with_replacement(row, count, random, out) : weighted(row, count, random, out);
    } else if (replace_) {
      for (int64_t i = 0; i < count; ++i) out[i] = position(row, random.below(degree_of(row)));
    } else if (count == row.degree) {
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<I>(row.begin + i);
    } else if (count <= kFewPicks) {
      distinct(row, count, random, out,
               [&](int64_t known, I edge) { return std::find(out, out + known, edge) != out + known; });
    } else {
      distinct_of_many(row, count, random, out);
    }
  }

 private:
  static constexpr int64_t kFewPicks = 32;  // more are looked up in a bitmap

  static uint64_t degree_of(EdgeRange row) { return static_cast<uint64_t>(row.degree); }
  struct Position {
    int64_t value;
    template <class I>
    operator I() const {
      return static_cast<I>(value);
    }
  };
  static Position position(EdgeRange row, uint64_t i) { return {row.begin + static_cast<int64_t>(i)}; }

  // Every set of `count` edges is equally likely (Floyd; Bentley, "Programming pearls: a sample of brilliance", 1987).
  template <class I, class IsTaken>
  static void distinct(EdgeRange row, int64_t count, RandomStream& random, I* out, const IsTaken& is_taken) {
    for (int64_t known = 0; known < count; ++known) {
      const uint64_t last = degree_of(row) - static_cast<uint64_t>(count - known);
      const I edge = position(row, random.below(last + 1));
      out[known] = is_taken(known, edge) ? static_cast<I>(position(row, last)) : edge;
    }
  }

  template <class I>
  void distinct_of_many(EdgeRange row, int64_t count, RandomStream& random, I* out) {
    const auto is_set = [&](I edge) { return bits_[word_of(row, edge)] >> bit_of(row, edge) & 1; };
    bits_.resize(std::max(bits_.size(), static_cast<size_t>(row.degree / 64 + 1)));
    distinct(row, count, random, out, [&](int64_t known, I edge) {
      if (known > 0) bits_[word_of(row, out[known - 1])] |= uint64_t{1} << bit_of(row, out[known - 1]);
      return is_set(edge);
    });
    for (int64_t i = 0; i < count; ++i) bits_[word_of(row, out[i])] = 0;
  }
  template <class I>
  static size_t word_of(EdgeRange row, I edge) {
    return static_cast<size_t>((static_cast<int64_t>(edge) - row.begin) / 64);
  }
  template <class I>
  static int bit_of(EdgeRange row, I edge) {
    return static_cast<int>((static_cast<int64_t>(edge) - row.begin) % 64);
  }

  // The edges that come first if each has an exponential time of its weight's rate: one after the other is drawn in
  // proportion to the weights of those that are left (Efraimidis and Spirakis, "Weighted random sampling with a
  // reservoir", 2006).
  template <class I>
  void weighted(EdgeRange row, int64_t count, RandomStream& random, I* out) {
    times_.clear();
    for (int64_t edge = row.begin; edge < row.begin + row.degree; ++edge) {
      const double weight = weights_[edge];
      if (weight == 0) continue;
      const double time = -std::log1p(-random.uniform()) / weight;
      const bool is_full = static_cast<int64_t>(times_.size()) == count;
      if (is_full && time >= times_.front().first) continue;
      if (is_full) {
        std::pop_heap(times_.begin(), times_.end());
        times_.back() = {time, edge};
      } else {
        times_.emplace_back(time, edge);
      }
      std::push_heap(times_.begin(), times_.end());
    }
    for (const auto& [time, edge] : times_) *out++ = static_cast<I>(edge);
  }

  template <class I>
  void weighted_with_replacement(EdgeRange row, int64_t count, RandomStream& random, I* out) {
    sums_.resize(degree_of(row));
    double sum = 0;
    size_t last = 0;  // the last edge of a positive weight
    for (size_t i = 0; i < sums_.size(); ++i) {
      const double weight = weights_[row.begin + static_cast<int64_t>(i)];
      if (weight > 0) last = i;
      sums_[i] = sum += weight;
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto found = std::upper_bound(sums_.begin(), sums_.end(), random.uniform() * sum);
      out[i] = position(row, std::min(static_cast<size_t>(found - sums_.begin()), last));
    }
  }

  EdgeWeights weights_;
  int64_t fanout_;
  bool replace_;
  std::vector<uint64_t> bits_;
  std::vector<std::pair<double, int64_t>> times_;  // a heap, its latest edge first
  std::vector<double> sums_;
};

}  // namespace halfgnn::cpu
