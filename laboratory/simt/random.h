// The order of lanes and blocks is drawn from these.
#pragma once

#include <cstdint>

namespace simt {

// xorshift64, the constants of Marsaglia (2003).
class Random {
 public:
  void seed(uint64_t seed) {
    state_ = (seed + 1) * 0x9e3779b97f4a7c15u | 1;
    for (int i = 0; i < 8; ++i) next();
  }
  uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 32);
  }
  uint64_t below(uint64_t limit) { return ((uint64_t{next()} << 32) | next()) % limit; }

 private:
  uint64_t state_ = 1;
};

// A set bit of `bits`: the first from a random place on.
inline int random_bit(uint32_t bits, uint32_t random) {
  const uint32_t start = random % 32;
  const uint32_t turned = start == 0 ? bits : bits >> start | bits << (32 - start);
  return static_cast<int>((static_cast<uint32_t>(__builtin_ctz(turned)) + start) % 32);
}

}  // namespace simt
