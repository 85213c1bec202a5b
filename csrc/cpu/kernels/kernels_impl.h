// Builds the kernel table of one instruction set. Included once for each, by files that build_sources.py writes: they
// define HALFGNN_ISA and HALFGNN_ISA_NAME.
#pragma once

#include "backward_kernel.h"
#include "edge_softmax_kernel.h"
#include "sddmm_kernel.h"
#include "spmm_kernel.h"

namespace halfgnn {
namespace HALFGNN_ISA {

template <class F>
inline void with_index(bool is_int64, F f) {
  if (is_int64) return f(Type<int64_t>{});
  return f(Type<int32_t>{});
}
// T itself or, of half operands, float
template <class T, class F>
inline void with_same_or_float(DType type, F f) {
  if (sizeof(T) == 2 && type != DType::kFloat) return f(Type<T>{});
  return f(Type<float>{});
}
template <class F>
inline void with_accumulator(DType type, F f) {
  if (type == DType::kDouble) return f(Type<double>{});
  return f(Type<float>{});
}
template <class T, class F>
inline void with_block(int64_t dim, F f) {
  if (dim >= 16) return f(Type<Block<T, 16>>{});
  return f(Type<Block<T, 8>>{});
}

static bool has_vector_kernel(DType type, int64_t dim) { return type != DType::kDouble && dim >= 8; }
static bool has_sum_kernel(DType type, int64_t heads, int64_t dim) {
  return type != DType::kDouble && (dim >= 8 || (heads * dim > 0 && heads * dim < 8));
}

template <class T, class W, class I>
inline void spmm_narrow(const SpmmSumArgs& args, int64_t begin, int64_t end) {
  switch (args.heads * args.dim) {
    case 1: return spmm_narrow_rows<1, T, W, I>(args, begin, end);
    case 2: return spmm_narrow_rows<2, T, W, I>(args, begin, end);
    case 3: return spmm_narrow_rows<3, T, W, I>(args, begin, end);
    case 4: return spmm_narrow_rows<4, T, W, I>(args, begin, end);
    case 5: return spmm_narrow_rows<5, T, W, I>(args, begin, end);
    case 6: return spmm_narrow_rows<6, T, W, I>(args, begin, end);
    default: return spmm_narrow_rows<7, T, W, I>(args, begin, end);
  }
}

static void spmm_sum(const SpmmSumArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_same_or_float<T>(args.weight_type, [&](auto w) {
      using W = TypeOf<decltype(w)>;
      with_index(args.topology.is_int64, [&](auto i) {
        using I = TypeOf<decltype(i)>;
        if (args.dim < 8) return spmm_narrow<T, W, I>(args, begin, end);
        with_block<T>(args.dim, [&](auto b) { spmm_sum_rows<TypeOf<decltype(b)>, T, W, I>(args, begin, end); });
      });
    });
  });
}

static void sddmm_elementwise(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_vector_type(reads_lhs(args.op) ? args.lhs.type : args.rhs.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_index(args.topology.is_int64,
               [&](auto i) { sddmm_elementwise_rows<T, TypeOf<decltype(i)>>(args, begin, end); });
  });
}

static void sddmm_dot(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.lhs.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_block<T>(args.broadcast.inner, [&](auto b) {
      with_index(args.topology.is_int64,
                 [&](auto i) { sddmm_dot_rows<TypeOf<decltype(b)>, T, TypeOf<decltype(i)>>(args, begin, end); });
    });
  });
}

static void mul_backward(const MulBackwardArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_same_or_float<T>(args.grad_type, [&](auto g) {
      using G = TypeOf<decltype(g)>;
      with_block<G>(args.dim, [&](auto b) {
        with_same_or_float<T>(args.weight_type, [&](auto w) {
          with_index(args.topology.is_int64, [&](auto i) {
            mul_backward_rows<TypeOf<decltype(b)>, T, G, TypeOf<decltype(w)>, TypeOf<decltype(i)>>(args, begin, end);
          });
        });
      });
    });
  });
}

// The general kernels depend on the accumulator and the index type alone.
template <class F>
inline void with_general_types(DType type, const Topology& topology, F f) {
  with_accumulator(type, [&](auto a) { with_index(topology.is_int64, [&](auto i) { f(a, i); }); });
}
static void spmm(const SpmmArgs& args, int64_t begin, int64_t end) {
  with_general_types(args.out_type, args.topology,
                     [&](auto a, auto i) { spmm_rows<TypeOf<decltype(a)>, TypeOf<decltype(i)>>(args, begin, end); });
}
static void sddmm(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_general_types(args.out_type, args.topology,
                     [&](auto a, auto i) { sddmm_rows<TypeOf<decltype(a)>, TypeOf<decltype(i)>>(args, begin, end); });
}
static void backward(const BackwardArgs& args, int64_t begin, int64_t end) {
  with_general_types(args.grad.type, args.topology, [&](auto a, auto i) {
    backward_rows<TypeOf<decltype(a)>, TypeOf<decltype(i)>>(args, begin, end);
  });
}

// The accumulator, the type of elements and that of ids.
template <class F>
inline void with_softmax_types(const EdgeSoftmaxArgs& args, F f) {
  with_index(args.topology.is_int64, [&](auto i) {
    if (args.type == DType::kDouble) return f(Type<double>{}, Type<double>{}, i);
    with_vector_type(args.type, [&](auto t) { f(Type<float>{}, t, i); });
  });
}
static void edge_softmax(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_softmax_types(args, [&](auto a, auto t, auto i) {
    edge_softmax_rows<TypeOf<decltype(a)>, TypeOf<decltype(t)>, TypeOf<decltype(i)>>(args, begin, end);
  });
}
static void edge_softmax_backward(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_softmax_types(args, [&](auto a, auto t, auto i) {
    edge_softmax_backward_rows<TypeOf<decltype(a)>, TypeOf<decltype(t)>, TypeOf<decltype(i)>>(args, begin, end);
  });
}

extern const KernelTable kKernels;
const KernelTable kKernels = {HALFGNN_ISA_NAME, has_vector_kernel,    has_sum_kernel, spmm_sum,     spmm,
                              sddmm_dot,        sddmm_elementwise,    sddmm,          mul_backward, backward,
                              edge_softmax,     edge_softmax_backward};

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
