// What a lane holds of the edges of a batch, beside their rows.
#pragma once

#include "frame.cuh"

namespace halfgnn::cuda {

// Its parts of dots; of the edges that it owns, dots, then what values and keys are multiplied by; at last those of all
// edges.
template <int kEdges>
struct PairFactors {
  float value[kEdges];
  float key[kEdges];
  float owned_key[kEdges];           // that of those that it owns, for their records
  float key_logit[kEdges];           // of the columns of those that it owns: PairArgs::key_logits
  float bias[kEdges];                // what those that it owns add to their logits
  DestinationRecord record[kEdges];  // of the destinations of those that it owns
};

}  // namespace halfgnn::cuda
