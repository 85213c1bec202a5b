// A stream of random numbers that depends on its key and name alone, so that a sample is the same on any thread.
#pragma once

#include <cstdint>

#include "../core/philox.h"

namespace halfgnn::cpu {

class RandomStream {
 public:
  RandomStream(uint64_t key, uint64_t node, uint32_t tree) : key_(key), node_(node), high_(uint64_t{tree} << 32) {}

  uint32_t word() {
    if (used_ == 4) {
      words_ = philox(key_, node_, high_++);
      used_ = 0;
    }
    return words_.word[used_++];
  }

  // Uniform in [0, bound), exactly: products whose low part would favour some numbers are drawn again (Lemire, "Fast
  // random integer generation in an interval", 2019).
  uint64_t below(uint64_t bound) {
    if (bound > UINT32_MAX) return below_long(bound);
    const auto range = static_cast<uint32_t>(bound);
    uint64_t product = uint64_t{word()} * range;
    if (static_cast<uint32_t>(product) < range) {
      const uint32_t least = -range % range;
      while (static_cast<uint32_t>(product) < least) product = uint64_t{word()} * range;
    }
    return product >> 32;
  }

  // Uniform in [0, 1), of 53 bits.
  double uniform() { return static_cast<double>(long_word() >> 11) * 0x1p-53; }

 private:
  uint64_t long_word() {
    const uint64_t low = word();
    return low | uint64_t{word()} << 32;
  }
  uint64_t below_long(uint64_t bound) {
    const uint64_t least = -bound % bound;
    uint64_t number = long_word();
    while (number < least) number = long_word();
    return number % bound;
  }

  uint64_t key_, node_, high_;
  RandomWords words_{};
  int used_ = 4;
};

}  // namespace halfgnn::cpu
