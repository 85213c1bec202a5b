// What tensor cores compute. The layouts of fragments are those of the PTX ISA: "Matrix Fragments for mma.m16n8k16 with
// floating point type", and "movmatrix".
//
// Sums are no better than those of any GPU. Tensor cores bring a block of products and the sum so far to the largest
// exponent, cut off what is below the last place, add, and cut off again (Fasi, Higham, Mikaitis and Pranesh,
// "Numerical behavior of NVIDIA tensor cores", 2021). GPUs differ in the products of a block, and in the bits that they
// keep beyond those of fp32. Here a block has 8 products, and no more bits are kept.
#include "simt/matrices.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "device.h"

namespace simt {
namespace {

constexpr int kFractionBits = 23;
constexpr int kBlock = 8;

// False under the negative control.
bool layout_is_right() { return settings.matrices != 0; }

template <typename T>
double widened(unsigned int pair, int i) {
  const auto bits = static_cast<unsigned short>(pair >> (16 * i));
  T element;
  std::memcpy(static_cast<void*>(&element), &bits, sizeof(bits));
  return static_cast<double>(static_cast<float>(element));
}

// A value that is no fp32 number becomes the next one towards zero.
float cut_to_float(double x) {
  const auto nearest = static_cast<float>(x);
  const bool is_past = std::isfinite(nearest) && std::fabs(static_cast<double>(nearest)) > std::fabs(x);
  return is_past ? std::nextafter(nearest, 0.f) : nearest;
}

// 2^n
double power_of_two(int n) {
  const uint64_t bits = static_cast<uint64_t>(n + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}
// Of a normal number: n with 2^n <= |x| < 2^(n + 1).
int exponent_of(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<int>(bits >> 52 & 0x7ff) - 1023;
}

float add_block(const double* row, const double* column, float sum) {
  double products[kBlock];
  double largest = std::fabs(static_cast<double>(sum)), plain = static_cast<double>(sum);
  for (int k = 0; k < kBlock; ++k) {
    products[k] = row[k] * column[k];
    largest = std::max(largest, std::fabs(products[k]));
    plain += products[k];
  }
  if (!std::isfinite(plain)) return static_cast<float>(plain);
  if (largest == 0) return 0.f;
  const int last_place = exponent_of(largest) - kFractionBits;
  const double places = power_of_two(-last_place);
  auto total = static_cast<int64_t>(static_cast<double>(sum) * places);  // towards zero
  for (const double product : products) total += static_cast<int64_t>(product * places);
  return cut_to_float(static_cast<double>(total) * power_of_two(last_place));
}

template <typename T>
void multiply_add_of(void* const (&lanes)[warpSize]) {
  double a[16][16], b[8][16];  // b: column by column
  for (int lane = 0; lane < warpSize; ++lane) {
    const auto& given = *static_cast<const MmaLane*>(lanes[lane]);
    const int group = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int at = layout_is_right() ? i : i / 2 + 2 * (i % 2);
      for (int j = 0; j < 2; ++j) a[group + 8 * (i % 2)][2 * t + 8 * (i / 2) + j] = widened<T>(given.a[at], j);
    }
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) b[group][2 * t + 8 * i + j] = widened<T>(given.b[i], j);
    }
  }
  for (int lane = 0; lane < warpSize; ++lane) {
    float* sum = static_cast<const MmaLane*>(lanes[lane])->sum;
    for (int i = 0; i < 4; ++i) {
      const double* row = a[lane / 4 + 8 * (i / 2)];
      const double* column = b[2 * (lane % 4) + i % 2];
      for (int k = 0; k < 16; k += kBlock) sum[i] = add_block(row + k, column + k, sum[i]);
    }
  }
}

}  // namespace

void multiply_add_half(void* const (&lanes)[warpSize]) { multiply_add_of<__half>(lanes); }
void multiply_add_bfloat16(void* const (&lanes)[warpSize]) { multiply_add_of<__nv_bfloat16>(lanes); }

void transpose_8x8_of(void* const (&lanes)[warpSize]) {
  if (!layout_is_right()) return;
  unsigned short elements[8][8];
  for (int lane = 0; lane < warpSize; ++lane) std::memcpy(&elements[lane / 4][2 * (lane % 4)], lanes[lane], 4);
  for (int lane = 0; lane < warpSize; ++lane) {
    const int row = lane / 4, column = 2 * (lane % 4);
    const unsigned short transposed[2] = {elements[column][row], elements[column + 1][row]};
    std::memcpy(lanes[lane], transposed, 4);
  }
}

}  // namespace simt
