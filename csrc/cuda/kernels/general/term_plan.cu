// How a term is divided among the lanes of a warp: host code only.

#include <limits>

#include "term.h"

namespace halfgnn::cuda {
namespace {

// Rows are addressed by products of 32-bit numbers, also where winners of 8 bytes lie beside their elements.
constexpr int64_t kMaxRowLength = int64_t{1} << 28;

bool merges(const TermDim& inner, const TermDim& dim, int num_inputs) {
  for (int i = 0; i < num_inputs; ++i) {
    if (dim.stride[i] != inner.stride[i] * inner.size) return false;
  }
  return true;
}

// Appends to the dims from `first` on, merged with the last of them if all inputs traverse both alike.
void append(Term& term, int first, int& count, const TermDim& dim) {
  if (dim.size == 1) return;
  if (count > 0 && merges(term.dim[first + count - 1], dim, term.num_inputs)) {
    term.dim[first + count - 1].size *= dim.size;
  } else {
    term.dim[first + count++] = dim;
  }
}

// The dims along which results lie, or all others.
bool collect(const Broadcast& broadcast, TermStride result, const TermSource* sources, bool summed, Term& term,
             int first, int& count, uint32_t& elements) {
  int64_t product = 1;
  for (int d = 0; d < broadcast.num_dims; ++d) {
    const BroadcastDim& from = broadcast.dims[d];
    if ((from.*result == 0) != summed) continue;
    product *= from.size;
    if (product > kMaxRowLength) return false;
    TermDim dim{static_cast<uint32_t>(from.size), {}};
    for (int i = 0; i < term.num_inputs; ++i)
      dim.stride[i] = static_cast<uint32_t>(from.*sources[i].stride * size_of(term.input[i].type));
    append(term, first, count, dim);
  }
  elements = static_cast<uint32_t>(product);
  return true;
}

// Whether all inputs can be read in vectors along dimension `along`, the innermost of j or of s.
bool fits_vectors(const Term& term, int along) {
  const int num_dims = term.num_result_dims + term.num_sum_dims;
  if (along >= num_dims || term.dim[along].size % kTermVector != 0) return false;
  for (int i = 0; i < term.num_inputs; ++i) {
    const TermInput& input = term.input[i];
    const uint32_t stride = term.dim[along].stride[i];
    if (stride == 0) continue;  // one element for all
    const int64_t size = size_of(input.type), bytes = kTermVector * size;
    if (stride != size || !fits_term_vector(input.data, size) || input.row_bytes % bytes != 0) return false;
    for (int d = 0; d < num_dims; ++d) {
      if (d != along && term.dim[d].stride[i] % bytes != 0) return false;
    }
  }
  const bool reads_winners = term.winner.data != nullptr && term.dim[along].stride[0] != 0;
  return !reads_winners || fits_term_vector(term.winner.data, 4);
}

// Whether what lies together in memory is summed, not part of the result: some input has unit stride along s only.
bool is_contiguous_in_sum(const Term& term) {
  if (term.num_sum_dims == 0) return false;
  for (int i = 0; i < term.num_inputs; ++i) {
    const uint32_t size = static_cast<uint32_t>(size_of(term.input[i].type));
    const bool in_result = term.num_result_dims > 0 && term.dim[0].stride[i] == size;
    if (!in_result && term.dim[term.num_result_dims].stride[i] == size) return true;
  }
  return false;
}

void divide_lanes(bool fits_out, Term& term) {
  const bool in_sum = is_contiguous_in_sum(term);
  const int along = in_sum ? term.num_result_dims : 0;
  // Terms of three inputs are rare enough to be read one element at a time.
  term.vectors = term.num_inputs < kMaxTermInputs && (in_sum || term.num_result_dims > 0) &&
                 fits_vectors(term, along) && (in_sum || fits_out);
  term.vectors_in_sum = term.vectors && in_sum;
  for (int i = 0; i < term.num_inputs; ++i) {
    term.input[i].splat = term.vectors && term.dim[along].stride[i] == 0;
  }
  const int64_t vector = term.vectors ? kTermVector : 1;
  const int64_t results = ceil_div(term.num_results, in_sum ? 1 : vector);
  if (in_sum) {
    const int log2 = log2_ceil(ceil_div(term.num_sums, vector));
    term.log2_sum_lanes = log2 < kLog2Warp ? log2 : kLog2Warp;
  }
  const int64_t most = kWarpSize >> term.log2_sum_lanes;
  const int64_t slices = ceil_div(results, most);
  term.slices = static_cast<uint32_t>(slices);
  term.log2_result_lanes = log2_ceil(ceil_div(results, slices));
}

}  // namespace

bool plan_term(const Broadcast& broadcast, TermStride result, const TermSource* sources, int num_sources, bool fits_out,
               Term& term) {
  if (broadcast.num_dims > kMaxBroadcastDims) return false;
  term.num_inputs = num_sources;
  for (int i = 0; i < num_sources; ++i) {
    const Operand& operand = *sources[i].operand;
    if (operand.len > kMaxRowLength) return false;
    TermInput& input = term.input[i];
    input.data = operand.data;
    input.type = operand.type;
    input.target = operand.target;
    input.row_bytes = static_cast<uint32_t>(operand.len * size_of(operand.type));
  }
  const auto reads = [&term](Target target) {
    bool found = term.scale.exists() && term.scale_target == target;
    for (int i = 0; i < term.num_inputs; ++i) found = found || term.input[i].target == target;
    return found;
  };
  term.reads_row = reads(Target::kRow);
  term.reads_col = reads(Target::kCol);
  term.reads_edge = reads(Target::kEdge) || term.winner.data != nullptr;
  term.winner_shift = (term.winner.is_int64 ? 3 : 2) - (size_of(sources[0].operand->type) == 4 ? 2 : 1);
  term.winner_row_bytes = static_cast<uint32_t>(sources[0].operand->len * (term.winner.is_int64 ? 8 : 4));

  if (!collect(broadcast, result, sources, false, term, 0, term.num_result_dims, term.num_results)) return false;
  if (!collect(broadcast, result, sources, true, term, term.num_result_dims, term.num_sum_dims, term.num_sums))
    return false;
  if (term.num_results == 0) return true;
  divide_lanes(fits_out, term);
  return true;
}

}  // namespace halfgnn::cuda
