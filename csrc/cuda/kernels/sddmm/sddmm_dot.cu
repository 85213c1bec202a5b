#include "sddmm_dot.h"

namespace halfgnn::cuda {

cudaError_t sddmm_dot(const SddmmArgs& args, const Launch& launch) {
  const bool rows_differ = (args.lhs.target == Target::kRow) != (args.rhs.target == Target::kRow);
  if (args.op != Op::kDot || args.lhs.type != args.rhs.type || !rows_differ) return cudaErrorInvalidValue;
  switch (args.lhs.type) {
    case DType::kHalf: return sddmm_dot_half(args, launch);
    case DType::kBFloat16: return sddmm_dot_bfloat16(args, launch);
    case DType::kFloat: return sddmm_dot_float(args, launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace halfgnn::cuda
