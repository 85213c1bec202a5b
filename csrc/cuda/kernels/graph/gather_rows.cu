// The kernel behind gather_rows.h that copies rows as bytes.

#include <cstring>

#include "gather_rows.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kMaxVectorBytes = 16;

struct CopyArgs {
  GatheredRows rows;
};

template <typename Word>
__device__ Word all_ones() {
  Word word;
  std::memset(&word, 0xff, sizeof(Word));
  return word;
}

template <typename Word>
struct Copy {
  GatheredVector<Word> vector;

  __device__ void load(const CopyArgs& args, const GatherPart& part, const GatherPlace& place, int64_t id) {
    vector.load(args.rows, part, place, id, all_ones<Word>());
  }
  __device__ void store(const CopyArgs& args, int64_t first_row) const {
    Word* out = reinterpret_cast<Word*>(args.rows.out) + first_row * args.rows.row_vectors;
    if (vector.is_wanted) __stcs(out + vector.target, vector.word);
  }
};

template <typename Word>
__global__ void __launch_bounds__(kGatherWarps* kWarpSize, 8) gather_rows_kernel(const CopyArgs args) {
  gather_vectors<Copy<Word>>(args);
}

template <typename Word>
cudaError_t run(const GatherRowsArgs& args, cudaStream_t stream) {
  return launch_gather<Word, CopyArgs>(gather_rows_kernel<Word>, args, stream);
}

}  // namespace

cudaError_t gather_rows(const GatherRowsArgs& args, const Launch& launch) {
  if (args.num_ids == 0 || args.row_bytes == 0) return cudaSuccess;
  if (args.row_bytes > kMostRowBytes) return cudaErrorInvalidValue;
  const int64_t alignment = table_alignment(args, kMaxVectorBytes);
  switch (common_alignment(reinterpret_cast<uintptr_t>(args.out), alignment)) {
    case 16: return run<uint4>(args, launch.stream);
    case 8: return run<uint2>(args, launch.stream);
    case 4: return run<unsigned int>(args, launch.stream);
    case 2: return run<unsigned short>(args, launch.stream);
    default: return run<unsigned char>(args, launch.stream);
  }
}

}  // namespace halfgnn::cuda
