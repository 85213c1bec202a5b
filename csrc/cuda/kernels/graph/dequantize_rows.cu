// The kernel behind gather_rows.h that converts rows of codes of 8 bits. A lane takes four codes at a time: a warp
// reads a line of 128 bytes, the most that one request over PCIe brings.

#include "../core/vector.cuh"
#include "gather_rows.cuh"

namespace halfgnn::cuda {
namespace {

struct DequantizeArgs {
  GatheredRows rows;
  Scales scales;
  Code code;
};

// All lanes have codes of one type, so the branch costs little beside the memory, and a kernel for each type would
// be compiled four times.
__device__ float value_of(unsigned int code, Code type) {
  switch (type) {
    case Code::kUInt8: return static_cast<float>(code);
    case Code::kInt8: return static_cast<float>(static_cast<signed char>(code));
    case Code::kFloat8E4M3: {
      // As a float16 it has one exponent bit more and is 2^8 times smaller. Its only nan gets the exponent of nan.
      const unsigned int magnitude = code & 0x7f, is_nan = (magnitude + 1) & 0x80;
      const unsigned int bits = ((code & 0x80) << 8) | ((magnitude | is_nan) << 7);
      return 256.f * Convert<__half>::widen(bits_as<__half>(static_cast<unsigned short>(bits)));
    }
    default: return Convert<__half>::widen(bits_as<__half>(static_cast<unsigned short>(code << 8)));
  }
}

template <typename Word, typename T>
struct Dequantize {
  static constexpr int kCodes = sizeof(Word);
  GatheredVector<Word> vector;
  float scale, zero_point;  // of the table, or the row

  __device__ void load(const DequantizeArgs& args, const GatherPart& part, const GatherPlace& place, int64_t id) {
    const bool is_valid = vector.load(args.rows, part, place, id, Word{});
    const Scales& scales = args.scales;
    if (scales.per == ScalePer::kColumn) {
      scale = is_valid ? 1.f : __int_as_float(0x7fffffff);
      return;
    }
    const int64_t i = scales.per == ScalePer::kRow && is_valid ? id : 0;
    // There is no scale to read if the table has no rows.
    scale = is_valid ? __ldg(scales.scale + i) : __int_as_float(0x7fffffff);
    zero_point = is_valid && scales.zero_point != nullptr ? __ldg(scales.zero_point + i) : 0.f;
  }
  __device__ void store(const DequantizeArgs& args, int64_t first_row) const {
    if (!vector.is_wanted) return;
    const Scales& scales = args.scales;
    float values[kCodes];
#pragma unroll
    for (int k = 0; k < kCodes; ++k) {
      const float value = value_of((static_cast<unsigned int>(vector.word) >> (8 * k)) & 0xff, args.code);
      if (scales.per == ScalePer::kColumn) {
        const int64_t column = static_cast<int64_t>(vector.vector) * kCodes + k;
        const float zero = scales.zero_point != nullptr ? __ldg(scales.zero_point + column) : 0.f;
        values[k] = (value - zero) * __ldg(scales.scale + column) * scale;
      } else {
        values[k] = (value - zero_point) * scale;
      }
    }
    T* out = reinterpret_cast<T*>(args.rows.out) + first_row * args.rows.row_vectors * kCodes;
    store_rounded(out + static_cast<int64_t>(vector.target) * kCodes, values);
  }
};

template <typename Word, typename T>
__global__ void __launch_bounds__(kGatherWarps* kWarpSize, 8) dequantize_rows_kernel(const DequantizeArgs args) {
  gather_vectors<Dequantize<Word, T>>(args);
}

template <typename Word, typename T>
cudaError_t run(const GatherRowsArgs& args, cudaStream_t stream) {
  return launch_gather<Word, DequantizeArgs>(dequantize_rows_kernel<Word, T>, args, stream, args.scales, args.code);
}

}  // namespace

cudaError_t dequantize_rows(const GatherRowsArgs& args, const Launch& launch) {
  if (args.num_ids == 0 || args.row_bytes == 0) return cudaSuccess;
  if (args.row_bytes > kMostRowBytes || args.out_type == DType::kDouble) return cudaErrorInvalidValue;
  const auto alignment = common_alignment(reinterpret_cast<uintptr_t>(args.out), 4 * size_of(args.out_type));
  const bool four = table_alignment(args, 4) == 4 && alignment == 4 * size_of(args.out_type);
  return with_type(args.out_type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    return four ? run<unsigned int, T>(args, launch.stream) : run<unsigned char, T>(args, launch.stream);
  });
}

}  // namespace halfgnn::cuda
