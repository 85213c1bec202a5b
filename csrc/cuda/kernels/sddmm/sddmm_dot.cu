#include "sddmm_dot.h"

#include "../core/types.cuh"

namespace halfgnn::cuda {

cudaError_t sddmm_dot(const SddmmArgs& args, const Launch& launch) { return scaled_sddmm_dot(args, 1.f, launch); }

cudaError_t scaled_sddmm_dot(const SddmmArgs& args, float factor, const Launch& launch) {
  const bool rows_differ = (args.lhs.target == Target::kRow) != (args.rhs.target == Target::kRow);
  if (args.op != Op::kDot || args.lhs.type != args.rhs.type || args.lhs.type == DType::kDouble || !rows_differ) {
    return cudaErrorInvalidValue;
  }
  return with_type(args.lhs.type, [&](auto t) { return sddmm_dot_of<TypeOf<decltype(t)>>(args, factor, launch); });
}

}  // namespace halfgnn::cuda
