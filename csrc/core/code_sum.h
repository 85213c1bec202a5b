// Sums of rows of codes of 8 bits: the arguments of both back ends. Torch-free.
#pragma once

#include "arguments.h"

namespace halfgnn {

// out[row] = sum over edges of weight[edge, head] * value(codes[col]), divided by the row's number of edges if
// divide_by_degree is set. The values are those of Scales; a row has heads * dim codes. weight (num_edges, heads) may
// be null. Sums are fp32 or better, or of integers, which are exact; a result is rounded once.
struct CodeSumArgs {
  Topology topology;
  const void* codes = nullptr;
  int64_t codes_rows = 0;
  Code code = Code::kUInt8;
  Scales scales;
  const void* weight = nullptr;
  DType weight_type = DType::kFloat;  // half, bfloat16 or float
  int64_t heads = 1;
  int64_t dim = 0;
  bool divide_by_degree = false;
  void* out = nullptr;
  DType out_type = DType::kFloat;  // half, bfloat16 or float
};

}  // namespace halfgnn
