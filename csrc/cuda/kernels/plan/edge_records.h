// Whether a backward of GATv2 or dot attention keeps records of edges between its passes, and what a record is made of.
//
// The pass to destinations has all that the pass to sources needs of an edge beside the gradient's row: for each head
// what that row is multiplied by and the gradient of the logit, both fp32, and the signs of what LeakyReLU is applied
// to. With a record of these the pass to sources of GATv2 gathers one row per edge instead of two, and makes no dot.
#pragma once

#include "../core/warp.h"
#include "model.h"

namespace halfgnn::cuda {

struct EdgeRecordLayout {
  int64_t bytes;     // of a record, in whole sectors; 0: there are none
  int64_t signs_at;  // bytes before the signs: one byte for each vector of a row
};

constexpr int64_t kRecordFactorBytes = 8;
inline EdgeRecordLayout edge_record_layout(int64_t heads, int64_t vectors) {
  const int64_t bytes = heads * (kRecordFactorBytes + vectors);
  return {vectors == 0 ? bytes : ceil_div(bytes, kSectorBytes) * kSectorBytes, heads * kRecordFactorBytes};
}

// Where edges add to logits or values, records are kept whatever they take: the pass to sources then needs nothing of
// these terms. Dot attention has no signs.
inline EdgeRecordLayout plan_term_records(int64_t heads, int64_t vectors, bool has_signs) {
  return edge_record_layout(heads, has_signs ? vectors : 0);
}

// Of GATv2 without terms. Rows of `heads` heads of `vectors` vectors of 16 bytes. Records must fit, and be no larger
// than the rows that need not be gathered. Heads of fewer than kMinRecordVectors have none.
inline EdgeRecordLayout plan_edge_records(const Device& device, int64_t num_edges, int64_t heads, int64_t vectors) {
  constexpr int64_t kVectorBytes = 16;
  const EdgeRecordLayout layout = edge_record_layout(heads, vectors);
  const bool fits = num_edges * layout.bytes <= device.memory_bytes / kRecordMemoryParts;
  const bool pays = vectors >= kMinRecordVectors &&
                    layout.bytes <= ceil_div(heads * vectors * kVectorBytes, kSectorBytes) * kSectorBytes;
  return fits && pays ? layout : EdgeRecordLayout{0, 0};
}

}  // namespace halfgnn::cuda
