// Dropout of a tile's entries. The random numbers are those of core/philox.h, for a vector of edges at once: the
// generator is ten rounds of multiplications.
#pragma once

#include "../../../core/attention.h"
#include "../../../core/philox.h"
#include "entries.h"

namespace halfgnn::HALFGNN_ISA {

// dropout_words() of kLanes edges side by side: words[j] are those of head 4 quad + j.
#if defined(HALFGNN_F16C)
template <class V>
struct WideProduct {
  V low, high;
};
HALFGNN_INLINE WideProduct<WordsOf<8>> wide_product(WordsOf<8> x, uint32_t y) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int32_t>(y)), a = bit_cast<__m256i>(x);
  const __m256i even = _mm256_mul_epu32(a, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  return {bit_cast<WordsOf<8>>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa)),
          bit_cast<WordsOf<8>>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa))};
}
#if defined(HALFGNN_AVX512)
HALFGNN_INLINE WideProduct<WordsOf<16>> wide_product(WordsOf<16> x, uint32_t y) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int32_t>(y)), a = bit_cast<__m512i>(x);
  const __m512i even = _mm512_mul_epu32(a, factor), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), factor);
  return {bit_cast<WordsOf<16>>(_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32))),
          bit_cast<WordsOf<16>>(_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd))};
}
#else
HALFGNN_INLINE WideProduct<WordsOf<16>> wide_product(WordsOf<16> x, uint32_t y) {
  const auto halves = bit_cast<Halves<WordsOf<8>>>(x);
  const auto lower = wide_product(halves.lower, y), upper = wide_product(halves.upper, y);
  return {bit_cast<WordsOf<16>>(Halves<WordsOf<8>>{lower.low, upper.low}),
          bit_cast<WordsOf<16>>(Halves<WordsOf<8>>{lower.high, upper.high})};
}
#endif
HALFGNN_INLINE void dropout_vectors(uint64_t seed0, uint64_t seed1, const int64_t* edges, uint32_t quad, Words* words) {
  uint32_t low[kLanes], high[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    low[i] = static_cast<uint32_t>(edges[i]);
    high[i] = static_cast<uint32_t>(static_cast<uint64_t>(edges[i]) >> 32);
  }
  Words x[4] = {load_unaligned<Words>(low), load_unaligned<Words>(high), splat_bits(quad),
                splat_bits(static_cast<uint32_t>(seed1))};
  uint32_t key0 = static_cast<uint32_t>(seed0), key1 = static_cast<uint32_t>(seed0 >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto product0 = wide_product(x[0], kPhilox0), product1 = wide_product(x[2], kPhilox1);
    x[0] = product1.high ^ x[1] ^ splat_bits(key0);
    x[1] = product1.low;
    x[2] = product0.high ^ x[3] ^ splat_bits(key1);
    x[3] = product0.low;
    key0 += kPhiloxKey0;
    key1 += kPhiloxKey1;
  }
  for (int j = 0; j < 4; ++j) words[j] = x[j];
}
#else
HALFGNN_INLINE void dropout_vectors(uint64_t seed0, uint64_t seed1, const int64_t* edges, uint32_t quad, Words* words) {
  for (int i = 0; i < kLanes; ++i) {
    const RandomWords random = dropout_words(seed0, seed1, static_cast<uint64_t>(edges[i]), quad);
    for (int j = 0; j < 4; ++j) words[j][i] = random.word[j];
  }
}
#endif

// factors = 0 or scale for every entry, and 0 up to a whole vector
template <class Acc>
HALFGNN_NOINLINE void dropout_factors(const Dropout& dropout, const EdgeTile& tile, Acc* factors) {
  const int64_t heads = tile.heads, n = tile.num_edges();
  const uint64_t seed0 = static_cast<uint64_t>(dropout.seed[0]), seed1 = static_cast<uint64_t>(dropout.seed[1]);
  const Acc scale = static_cast<Acc>(dropout.scale);
  for (int64_t first = 0; first < n; first += kLanes) {
    const int64_t count = n - first < kLanes ? n - first : kLanes;
    int64_t edges[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) edges[i] = tile.edge_id(first + (i < count ? i : 0));
    for (int64_t quad = 0; quad * 4 < heads; ++quad) {
      Words words[4];
      dropout_vectors(seed0, seed1, edges, static_cast<uint32_t>(quad), words);
      const int64_t some = heads - 4 * quad < 4 ? heads - 4 * quad : 4;
      Floats kept[4];  // 1 or 0
      for (int j = 0; j < 4; ++j) kept[j] = words[j] < splat_bits(dropout.threshold) ? splat(0.f) : splat(1.f);
      Acc* out = factors + first * heads + 4 * quad;
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < some; ++j) out[i * heads + j] = scale * kept[j][i];
    }
  }
  clear_padding(tile, factors);
}

// Weights times their factors, which are made in `kept`; the weights themselves if nothing is dropped.
template <class Acc>
HALFGNN_INLINE const Acc* after_dropout(const Dropout& dropout, const EdgeTile& tile, const Acc* weights, Acc* kept) {
  if (!dropout.seed) return weights;
  dropout_factors(dropout, tile, kept);
  multiply_entries(tile.padded(), weights, kept);
  return kept;
}

}  // namespace halfgnn::HALFGNN_ISA
