// What GATv2 and dot attention share (see pair_attention.cuh): between the files of their launchers and those that
// instantiate their kernels for one type.
//
// In both an edge takes a pair of rows from its ends: the keys that its logit is made of. The weight of an edge
// multiplies a row of values, and the derivative by that weight is a dot of a row of values with a row of the gradient,
// which is called a value too where it is read in its place.
#pragma once

#include "../core/heads.cuh"
#include "../core/row_units.cuh"
#include "attention.cuh"

namespace halfgnn::cuda {

// Which gradients a pass over the adjacency sums up.
enum class PairPass {
  kForward,       // over CSC: results
  kDestinations,  // over CSC, backward: those of a destination's keys
  kSources        // over CSR, backward: those of a source's keys and values
};

// What the backward needs of a destination and head beside its rows: l_e - lse is the logarithm of the weight, delta
// the dot of result and gradient.
struct alignas(8) DestinationRecord {
  float lse;
  float delta;
};

struct PairArgs {
  RowUnits units;
  Ids columns;
  Ids edge_ids;
  HeadLayout layout;
  uint32_t row_elements;
  uint32_t blocks_a_slice;
  DropoutMask dropout;

  const void* own_key;    // of the row
  const void* own_value;  // likewise; backward only
  const void* key;        // of the columns
  const void* value;      // likewise
  const void* attn;       // of GATv2: (heads, dim)
  float linear;           // logits are linear * a sum, and for GATv2 + absolute * a sum
                          // of absolute values
  float absolute;
  float slope;  // of GATv2

  Precise out;  // (destinations, heads, dim), lse: (destinations, heads)
  float* lse;
  DestinationRecord* records;  // backward: (destinations, heads)

  // Where gradients are summed up: those of pieces of long rows go to the workspace, a row a slot.
  void* grad_key;
  void* grad_value;
  float* partial_key;
  float* partial_value;
  AttentionPartials partials;  // forward

  float* products;  // of GATv2: own keys times the gradients of sums of keys, a
                    // row a block, with tiles a warp
  float* dots;      // with tiles: one (forward) or two an edge and head
};

// Chosen from sizes and alignment alone, for all passes of a call.
struct PairShape {
  int64_t heads, dim;
  DType type;
  int vector;  // elements of an access: 16 bytes, or one
  int repeat;  // accesses a lane and row
  bool tiled;  // heads are too wide for registers

  int64_t row_elements() const { return heads * dim; }
  int64_t covered() const { return int64_t{kWarpSize} * repeat * vector; }  // elements of a head, by a warp
  int64_t lane_bytes() const { return vector * repeat * size_of(type); }
};

// Edges of a group in flight, by the bytes of a row that a lane takes.
constexpr bool is_wide_pair(int64_t lane_bytes) { return lane_bytes > 2 * kMaxAccessBytes; }
constexpr int pair_unroll(int64_t lane_bytes, int rows_an_edge) {
  return (is_wide_pair(lane_bytes) ? 2 : 4) / rows_an_edge;
}

// Warps of a block: what they keep in shared memory must fit.
constexpr int pair_warps(int64_t lane_bytes) { return is_wide_pair(lane_bytes) ? 2 : 4; }

inline uintptr_t bits_of(const void* data) { return reinterpret_cast<uintptr_t>(data); }
inline uintptr_t bits_of(const Precise& result) { return bits_of(result.value) | bits_of(result.residual); }

// `bits`: all addresses of rows, or-ed. False for sizes that kernels do not take.
bool shape_of(int64_t heads, int64_t dim, DType type, uintptr_t bits, PairShape& shape);

// The kernel's arguments that follow from sizes. rows_an_edge: that are gathered, of `columns` nodes.
PairArgs pair_args(const Topology& topology, const PairShape& shape, int64_t columns, int rows_an_edge);

// lse and <gradient, result> of every destination and head, for the backward's passes.
struct DeltaArgs {
  int64_t rows;
  const void* grad;
  Precise out;
  const float* lse;
  DestinationRecord* records;
};
cudaError_t find_deltas(const DeltaArgs& args, const PairShape& shape, const Launch& launch);

// What long rows need after a pass: their results and gradients from those of their pieces.
cudaError_t combine_results(const PairArgs& args, const PairShape& shape, const Launch& launch);
cudaError_t combine_gradients(const PairArgs& args, const PairShape& shape, const Launch& launch);

// What a call keeps in the workspace, one after the other. Without a start, what it takes.
class PairWorkspace {
 public:
  explicit PairWorkspace(void* start) : start_(static_cast<char*>(start)), bytes_(0) {}
  template <typename T>
  T* take(int64_t count) {
    if (count <= 0) return nullptr;
    T* taken = start_ == nullptr ? nullptr : reinterpret_cast<T*>(start_ + bytes_);
    bytes_ += static_cast<size_t>(ceil_div(count * static_cast<int64_t>(sizeof(T)), kMaxAccessBytes) * kMaxAccessBytes);
    return taken;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* start_;
  size_t bytes_;
};

// Floats of PairArgs::dots; 0 without tiles.
inline int64_t num_dots(const Topology& topology, const PairShape& shape, int an_edge) {
  return shape.tiled ? topology.num_edges * shape.heads * an_edge : 0;
}

// One pass over elements of type T. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t gatv2_attention_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);
template <typename T>
cudaError_t dot_attention_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);

}  // namespace halfgnn::cuda
