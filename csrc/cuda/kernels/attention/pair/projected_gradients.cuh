// Gradients of the columns that edges add to GATv2 and of their weight, from the records that the pass to destinations
// leaves. With t_ed = dl_e LeakyReLU'(z_ed), which the record's signs give, of element d of any head:
//   df_e = sum over d of t_ed attn_d weight_d,   dweight_d = attn_d S_d,   S_d = sum over e of t_ed f_e
// S also has what columns add to the gradient of attn: d attn_d is the sum over columns of weight_d S_d, beside what
// nodes add. All of this is in fp32, of parts of the elements and columns. Include only where it is instantiated.
#pragma once

#include <algorithm>

#include "../../core/running_sum.cuh"
#include "lanes/score_leaky.cuh"

namespace halfgnn::cuda {

constexpr int kProjectionThreads = 128, kProjectionWarps = kProjectionThreads / kWarpSize;

// What an edge's record has for vectors of kVector elements.
template <typename T>
class RecordedEdge {
 public:
  static constexpr int kVector = kMaxAccessBytes / static_cast<int>(sizeof(T));

  __device__ RecordedEdge(const ProjectionGradientArgs& args, int64_t edge)
      : data_(args.records.data + edge * args.records.bytes), signs_at_(args.records.signs_at) {}
  // dl_e
  __device__ float gradient(int head) const { return __ldg(reinterpret_cast<const float*>(data_) + 2 * head + 1); }
  __device__ uint32_t signs(int vector) const {
    return __ldg(reinterpret_cast<const unsigned char*>(data_ + signs_at_) + vector);
  }
  // Whether element i of a vector is positive.
  static __device__ bool is_positive(uint32_t signs, int i) { return (signs >> sign_bit<kVector>(i) & 1) != 0; }

 private:
  const char* data_;
  uint32_t signs_at_;
};

// ---- Of columns. A thread has kFeatEdges edges, and a block a table of attn weight for a part of the elements.

constexpr int kFeatEdges = 2, kTableBytes = 16 << 10, kTableElements = kTableBytes / (kMaxProjected * 4);

template <typename T>
class ProjectedFeatGradient {
  using Edge = RecordedEdge<T>;
  static constexpr int kVector = Edge::kVector, kTableVectors = kTableElements / kVector;
  static constexpr int kQuads = kMaxProjected / kPairColumns;

 public:
  struct alignas(16) Table {
    float value[kTableElements][kMaxProjected];
  };

  __device__ ProjectedFeatGradient(const ProjectionGradientArgs& args, Table& table)
      : args_(args), table_(table), num_vectors_(args.heads * args.vectors) {}

  __device__ void run() const {
    constexpr int kEdges = kFeatEdges * kProjectionThreads;
    for (int column = 0; column < args_.columns; column += kMaxProjected) {
      bool is_filled = false;
      for (int64_t first = int64_t{blockIdx.x} * kEdges; first < args_.num_edges;
           first += int64_t{gridDim.x} * kEdges) {
        float sums[kFeatEdges][kMaxProjected] = {};
        for (int vector = 0; vector < num_vectors_; vector += kTableVectors) {
          if (!is_filled || num_vectors_ > kTableVectors) fill(vector, column);
          is_filled = true;
          add(first, vector, sums);
        }
        store(first, column, sums);
      }
    }
  }

 private:
  // Of a thread.
  __device__ static int64_t edge_of(int64_t first, int k) { return first + k * kProjectionThreads + threadIdx.x; }

  // From a vector and a column on; 0 past the last ones. The whole block takes part.
  __device__ void fill(int vector, int column) const {
    __syncthreads();  // what was there has been read
    for (int i = threadIdx.x; i < kTableElements * kMaxProjected; i += kProjectionThreads) {
      const int of_table = i / kMaxProjected, own_column = column + i % kMaxProjected;
      const int64_t element = int64_t{vector} * kVector + of_table;
      float value = 0.f;
      if (element < int64_t{num_vectors_} * kVector && own_column < args_.columns) {
        value =
            Fragment<T, 1>::load(static_cast<const T*>(args_.attn) + element).value() *
            Fragment<T, 1>::load(static_cast<const T*>(args_.weight) + element * args_.columns + own_column).value();
      }
      table_.value[of_table][i % kMaxProjected] = value;
    }
    __syncthreads();
  }
  // The part of the elements from a vector on.
  __device__ void add(int64_t first, int vector, float (&sums)[kFeatEdges][kMaxProjected]) const {
    const int count = min(kTableVectors, num_vectors_ - vector);
    int head = vector / args_.vectors, in_head = vector % args_.vectors;
#pragma unroll 1
    for (int v = 0; v < count; ++v) {
      uint32_t signs[kFeatEdges];
      float above[kFeatEdges], below[kFeatEdges];
#pragma unroll
      for (int k = 0; k < kFeatEdges; ++k) {
        const Edge edge(args_, min(edge_of(first, k), args_.num_edges - 1));
        signs[k] = edge.signs(vector + v);
        above[k] = edge.gradient(head);
        below[k] = above[k] * args_.slope;
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float factors[kFeatEdges];
#pragma unroll
        for (int k = 0; k < kFeatEdges; ++k) factors[k] = Edge::is_positive(signs[k], i) ? above[k] : below[k];
        const float* const row = table_.value[v * kVector + i];
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          const float4 weight = *reinterpret_cast<const float4*>(row + q * kPairColumns);
#pragma unroll
          for (int k = 0; k < kFeatEdges; ++k) {
            float* const sum = sums[k] + q * kPairColumns;
            sum[0] = fmaf(factors[k], weight.x, sum[0]);
            sum[1] = fmaf(factors[k], weight.y, sum[1]);
            sum[2] = fmaf(factors[k], weight.z, sum[2]);
            sum[3] = fmaf(factors[k], weight.w, sum[3]);
          }
        }
      }
      if (++in_head == args_.vectors) {
        in_head = 0;
        ++head;
      }
    }
  }
  __device__ void store(int64_t first, int column, const float (&sums)[kFeatEdges][kMaxProjected]) const {
#pragma unroll
    for (int k = 0; k < kFeatEdges; ++k) {
      const int64_t edge = edge_of(first, k);
      T* const target = static_cast<T*>(args_.grad_feat) + edge * args_.columns + column;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (edge >= args_.num_edges || column + q * kPairColumns >= args_.columns) continue;
        const float* const sum = sums[k] + q * kPairColumns;
        store_rounded(target + q * kPairColumns, {sum[0], sum[1], sum[2], sum[3]});
      }
    }
  }

  const ProjectionGradientArgs& args_;
  Table& table_;
  const int num_vectors_;
};

template <typename T>
__global__ void __launch_bounds__(kProjectionThreads, 4)
    projected_feat_gradient_kernel(const ProjectionGradientArgs args) {
  __shared__ typename ProjectedFeatGradient<T>::Table table;
  ProjectedFeatGradient<T>(args, table).run();
}

// ---- Of the weight. A lane has four elements and kMaxProjected columns, over some of the block's edges.

constexpr int kWeightElements = 4, kWeightUnroll = 2;

template <typename T>
class ProjectionWeightGradient {
  using Edge = RecordedEdge<T>;
  using Sums = RunningSum<kMaxProjected, kWeightElements, kProjectionThreads>;
  static constexpr int kQuads = kMaxProjected / kPairColumns;
  using Columns = Fragment<T, kPairColumns>;

 public:
  // Of warps other than the first.
  struct alignas(16) Shared {
    float value[kMaxProjected * kWeightElements][kWarpSize];
  };

  __device__ ProjectionWeightGradient(const ProjectionGradientArgs& args, Shared& shared)
      : args_(args),
        shared_(shared),
        num_elements_(args.heads * args.vectors * Edge::kVector),
        log2_lanes_(log2_lanes_of(num_elements_)) {
    const int parts = num_parts(num_elements_, args.columns), part = static_cast<int>(blockIdx.x) % parts;
    const int column_parts = num_column_parts(args.columns);
    first_column_ = part % column_parts * kMaxProjected;
    const int lane = static_cast<int>(threadIdx.x) & ((1 << log2_lanes_) - 1);
    element_ = ((part / column_parts << log2_lanes_) + lane) * kWeightElements;
    partial_ = static_cast<int>(blockIdx.x) / parts;
  }

  static HALFGNN_HOST_DEVICE int log2_lanes_of(int elements) {
    int log2_lanes = 0;
    while (log2_lanes < kLog2Warp && (kWeightElements << log2_lanes) < elements) ++log2_lanes;
    return log2_lanes;
  }
  static HALFGNN_HOST_DEVICE int num_column_parts(int columns) { return (columns + kMaxProjected - 1) / kMaxProjected; }
  static HALFGNN_HOST_DEVICE int num_parts(int elements, int columns) {
    const int per_part = kWeightElements << log2_lanes_of(elements);
    return (elements + per_part - 1) / per_part * num_column_parts(columns);
  }

  __device__ void run() {
    Sums sums;
    sums.clear();
    const int groups = kProjectionThreads >> log2_lanes_, group = static_cast<int>(threadIdx.x) >> log2_lanes_;
    const int64_t per_block = (args_.num_edges + args_.num_partials - 1) / args_.num_partials;
    const int64_t begin = partial_ * per_block, end = min(begin + per_block, args_.num_edges);
    int in_run = 0;
    for (int64_t first = begin; first < end; first += groups * kWeightUnroll) {
      add(first + group, groups, end, sums);
      if ((in_run += kWeightUnroll) < kRun) continue;
      sums.end_run();
      in_run = 0;
    }
    sums.finish();
    sums.sum_over_lanes(1 << log2_lanes_, kWarpSize);
    join_warps(sums);
    if (threadIdx.x < 1u << log2_lanes_ && element_ < num_elements_) store(sums);
  }

 private:
  // Edges `edge`, edge + step, ...
  __device__ void add(int64_t edge, int step, int64_t end, Sums& sums) const {
    const int read = element_ < num_elements_ ? element_ : 0, vector = read / Edge::kVector;
    uint32_t signs[kWeightUnroll];
    float gradients[kWeightUnroll];
    Columns columns[kWeightUnroll][kQuads];
#pragma unroll
    for (int u = 0; u < kWeightUnroll; ++u) {
      const int64_t own = edge + u * step, at = own < end ? own : end - 1;
      const Edge record(args_, at);
      signs[u] = record.signs(vector) >> (Edge::kVector > kWeightElements ? read % Edge::kVector / 2 : 0);
      gradients[u] = record.gradient(vector / args_.vectors);
      gradients[u] = own < end ? gradients[u] : 0.f;
      const T* const feat = static_cast<const T*>(args_.feat) + at * args_.columns + first_column_;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        columns[u][q] = Columns{};
        if (own < end && first_column_ + q * kPairColumns < args_.columns) {
          columns[u][q] = Columns::load(feat + q * kPairColumns);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kWeightUnroll; ++u) {
      float factors[kWeightElements];
#pragma unroll
      for (int i = 0; i < kWeightElements; ++i) {
        factors[i] = Edge::is_positive(signs[u], i) ? gradients[u] : gradients[u] * args_.slope;
      }
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        float values[kPairColumns];
        columns[u][q].widen(values);
#pragma unroll
        for (int j = 0; j < kPairColumns; ++j) {
#pragma unroll
          for (int i = 0; i < kWeightElements; ++i) {
            float& sum = sums.run[q * kPairColumns + j][i];
            sum = fmaf(factors[i], values[j], sum);
          }
        }
      }
    }
  }

  // The first warp ends up with the sums of all, in their order.
  __device__ void join_warps(Sums& sums) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll 1
    for (int other = 1; other < kProjectionWarps; ++other) {
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kMaxProjected; ++j) {
#pragma unroll
        for (int i = 0; i < kWeightElements; ++i) {
          if (warp == other) shared_.value[j * kWeightElements + i][lane] = sums.run[j][i];
        }
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kMaxProjected; ++j) {
#pragma unroll
        for (int i = 0; i < kWeightElements; ++i) {
          if (warp == 0) sums.run[j][i] += shared_.value[j * kWeightElements + i][lane];
        }
      }
    }
  }
  __device__ void store(const Sums& sums) const {
    float* const row = args_.partial_sums + int64_t{partial_} * num_elements_ * args_.columns;
#pragma unroll
    for (int i = 0; i < kWeightElements; ++i) {
      float* const target = row + int64_t{element_ + i} * args_.columns + first_column_;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (first_column_ + q * kPairColumns >= args_.columns) continue;
        float values[kPairColumns];
#pragma unroll
        for (int j = 0; j < kPairColumns; ++j) values[j] = sums.run[q * kPairColumns + j][i];
        store_rounded(target + q * kPairColumns, values);
      }
    }
  }

  const ProjectionGradientArgs& args_;
  Shared& shared_;
  const int num_elements_, log2_lanes_;
  int first_column_, element_, partial_;
};

template <typename T>
__global__ void __launch_bounds__(kProjectionThreads, 4 - kBlockLess)
    projection_weight_gradient_kernel(const ProjectionGradientArgs args) {
  __shared__ typename ProjectionWeightGradient<T>::Shared shared;
  ProjectionWeightGradient<T>(args, shared).run();
}

// From S: the gradient of the weight, and what columns add to that of attn. A thread has an element.
template <typename T>
__global__ void __launch_bounds__(kProjectionThreads) projection_sums_kernel(const ProjectionGradientArgs args) {
  const int element = static_cast<int>(blockIdx.x) * kProjectionThreads + static_cast<int>(threadIdx.x);
  if (element >= args.heads * args.vectors * RecordedEdge<T>::kVector) return;
  const float attn = Fragment<T, 1>::load(static_cast<const T*>(args.attn) + element).value();
  float product = 0.f;
  for (int column = 0; column < args.columns; ++column) {
    const int64_t at = int64_t{element} * args.columns + column;
    const float sum = __ldg(args.sums + at), gradient = attn * sum;
    product = fmaf(Fragment<T, 1>::load(static_cast<const T*>(args.weight) + at).value(), sum, product);
    if (args.grad_weight != nullptr) store_rounded(static_cast<T*>(args.grad_weight) + at, {gradient});
  }
  args.products[element] = product;
}

template <typename T>
cudaError_t projected_gradients_of(const ProjectionGradientArgs& args, const Launch& launch) {
  const int elements = args.heads * args.vectors * RecordedEdge<T>::kVector;
  if (args.grad_feat != nullptr) {
    constexpr int64_t kMaxBlocks = 1 << 11;
    const int64_t blocks = ceil_div(args.num_edges, int64_t{kFeatEdges} * kProjectionThreads);
    const cudaError_t status = cuda::launch(projected_feat_gradient_kernel<T>, std::min(blocks, kMaxBlocks),
                                            kProjectionThreads, launch.stream, args);
    if (status != cudaSuccess) return status;
  }
  const int64_t parts = ProjectionWeightGradient<T>::num_parts(elements, args.columns);
  cudaError_t status = cuda::launch(projection_weight_gradient_kernel<T>, parts * args.num_partials, kProjectionThreads,
                                    launch.stream, args);
  if (status != cudaSuccess) return status;
  status = sum_products(
      {args.partial_sums, args.num_partials, int64_t{elements} * args.columns, args.sums, DType::kFloat}, launch);
  if (status != cudaSuccess) return status;
  return cuda::launch(projection_sums_kernel<T>, ceil_div(elements, kProjectionThreads), kProjectionThreads,
                      launch.stream, args);
}

}  // namespace halfgnn::cuda
