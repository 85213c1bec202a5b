// The random numbers of attention dropout: Philox-4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011), the generator that PyTorch uses on GPUs. Stateless, so that a backward regenerates the
// numbers of its forward in any order. Torch-free, for hosts and devices.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace halfgnn {

struct RandomWords {
  uint32_t word[4];
};

// The factors of a round, and the increments of the key.
constexpr uint32_t kPhilox0 = 0xD2511F53u, kPhilox1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxKey0 = 0x9E3779B9u, kPhiloxKey1 = 0xBB67AE85u;

// The four words of a counter under a key.
HALFGNN_HOST_DEVICE RandomWords philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  RandomWords x{{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                 static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)}};
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kPhilox0} * x.word[0], product1 = uint64_t{kPhilox1} * x.word[2];
    x = {{static_cast<uint32_t>(product1 >> 32) ^ x.word[1] ^ key0, static_cast<uint32_t>(product1),
          static_cast<uint32_t>(product0 >> 32) ^ x.word[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += kPhiloxKey0;
    key1 += kPhiloxKey1;
  }
  return x;
}

// The words of heads 4 quad ... 4 quad + 3 of an edge. seed: Dropout::seed.
HALFGNN_HOST_DEVICE RandomWords dropout_words(uint64_t seed0, uint64_t seed1, uint64_t edge, uint32_t quad) {
  return philox(seed0, edge, (seed1 << 32) | quad);
}

}  // namespace halfgnn
