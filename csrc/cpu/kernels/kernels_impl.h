// Builds the kernel table of one instruction set. Included by kernels_default.cpp and kernels_avx2.cpp, which define
// HALFGNN_ISA.
#pragma once

#include "backward_kernel.h"
#include "edge_softmax_kernel.h"
#include "sddmm_kernel.h"
#include "spmm_kernel.h"

namespace halfgnn {
namespace HALFGNN_ISA {

template <class T>
struct Type {
  using type = T;
};
#define HALFGNN_TYPE_OF(tag) typename decltype(tag)::type

template <class F>
inline void with_index(bool is_int64, F f) {
  if (is_int64) return f(Type<int64_t>{});
  return f(Type<int32_t>{});
}
// half, bfloat16 or float
template <class F>
inline void with_vector_type(DType type, F f) {
  if (type == DType::kHalf) return f(Type<Half>{});
  if (type == DType::kBFloat16) return f(Type<BFloat16>{});
  return f(Type<float>{});
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
    using T = HALFGNN_TYPE_OF(t);
    with_same_or_float<T>(args.weight_type, [&](auto w) {
      using W = HALFGNN_TYPE_OF(w);
      with_index(args.topology.is_int64, [&](auto i) {
        using I = HALFGNN_TYPE_OF(i);
        if (args.dim < 8) return spmm_narrow<T, W, I>(args, begin, end);
        with_block<T>(args.dim, [&](auto b) { spmm_sum_rows<HALFGNN_TYPE_OF(b), T, W, I>(args, begin, end); });
      });
    });
  });
}

static void sddmm_elementwise(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_vector_type(reads_lhs(args.op) ? args.lhs.type : args.rhs.type, [&](auto t) {
    using T = HALFGNN_TYPE_OF(t);
    with_index(args.topology.is_int64,
               [&](auto i) { sddmm_elementwise_rows<T, HALFGNN_TYPE_OF(i)>(args, begin, end); });
  });
}

static void sddmm_dot(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.lhs.type, [&](auto t) {
    using T = HALFGNN_TYPE_OF(t);
    with_block<T>(args.broadcast.inner, [&](auto b) {
      with_index(args.topology.is_int64,
                 [&](auto i) { sddmm_dot_rows<HALFGNN_TYPE_OF(b), T, HALFGNN_TYPE_OF(i)>(args, begin, end); });
    });
  });
}

static void mul_backward(const MulBackwardArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.type, [&](auto t) {
    using T = HALFGNN_TYPE_OF(t);
    with_same_or_float<T>(args.grad_type, [&](auto g) {
      using G = HALFGNN_TYPE_OF(g);
      with_block<G>(args.dim, [&](auto b) {
        with_same_or_float<T>(args.weight_type, [&](auto w) {
          with_index(args.topology.is_int64, [&](auto i) {
            mul_backward_rows<HALFGNN_TYPE_OF(b), T, G, HALFGNN_TYPE_OF(w), HALFGNN_TYPE_OF(i)>(args, begin, end);
          });
        });
      });
    });
  });
}

// The general kernels depend on the accumulator and the index type alone.
#define HALFGNN_GENERAL_KERNEL(name, Args, data_type)                                                     \
  static void name(const Args& args, int64_t begin, int64_t end) {                                        \
    with_accumulator(data_type, [&](auto a) {                                                             \
      with_index(args.topology.is_int64,                                                                  \
                 [&](auto i) { name##_rows<HALFGNN_TYPE_OF(a), HALFGNN_TYPE_OF(i)>(args, begin, end); }); \
    });                                                                                                   \
  }
HALFGNN_GENERAL_KERNEL(spmm, SpmmArgs, args.out_type)
HALFGNN_GENERAL_KERNEL(sddmm, SddmmArgs, args.out_type)
HALFGNN_GENERAL_KERNEL(backward, BackwardArgs, args.grad.type)
#undef HALFGNN_GENERAL_KERNEL

template <template <class, class, class> class Rows>
inline void with_softmax_types(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_index(args.topology.is_int64, [&](auto i) {
    using I = HALFGNN_TYPE_OF(i);
    if (args.type == DType::kDouble) return Rows<double, double, I>::run(args, begin, end);
    with_vector_type(args.type, [&](auto t) { Rows<float, HALFGNN_TYPE_OF(t), I>::run(args, begin, end); });
  });
}
template <class Acc, class T, class I>
struct SoftmaxForward {
  static void run(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
    edge_softmax_rows<Acc, T, I>(args, begin, end);
  }
};
template <class Acc, class T, class I>
struct SoftmaxBackward {
  static void run(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
    edge_softmax_backward_rows<Acc, T, I>(args, begin, end);
  }
};
static void edge_softmax(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_softmax_types<SoftmaxForward>(args, begin, end);
}
static void edge_softmax_backward(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_softmax_types<SoftmaxBackward>(args, begin, end);
}

static const KernelTable kTable = {HALFGNN_ISA_NAME, has_vector_kernel,    has_sum_kernel, spmm_sum,     spmm,
                                   sddmm_dot,        sddmm_elementwise,    sddmm,          mul_backward, backward,
                                   edge_softmax,     edge_softmax_backward};

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
