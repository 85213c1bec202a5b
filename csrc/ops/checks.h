// Checks and conversions between torch tensors and the torch-free types, shared by the CPU and the CUDA bindings.
// A check that fails raises ValueError (shapes, names) or TypeError (dtypes) in Python. The message names the argument.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../core/broadcast.h"
#include "../core/types.h"
#include "../torch/errors.h"
#include "../torch/tensor.h"
#include "backend.h"

namespace halfgnn {

// A tensor that may be missing, and is not copied: a copy takes longer than all checks.
class OptionalRef {
 public:
  OptionalRef() = default;
  OptionalRef(std::nullopt_t) {}
  OptionalRef(const Tensor& tensor) : tensor_(tensor.defined() ? &tensor : nullptr), is_lacking_(!tensor.defined()) {}
  OptionalRef(const OptionalTensor& tensor) : tensor_(tensor && tensor->defined() ? &*tensor : nullptr) {}
  explicit operator bool() const { return tensor_ != nullptr; }
  const Tensor& operator*() const { return *tensor_; }
  const Tensor* operator->() const { return tensor_; }
  // Whether a call has None for a tensor that is not optional.
  bool is_lacking() const { return is_lacking_; }

 private:
  const Tensor* tensor_ = nullptr;
  bool is_lacking_ = false;
};

// A dtype as Python writes it, for messages.
inline std::string dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Half: return "torch.float16";
    case ScalarType::BFloat16: return "torch.bfloat16";
    case ScalarType::Float: return "torch.float32";
    case ScalarType::Double: return "torch.float64";
    case ScalarType::Byte: return "torch.uint8";
    case ScalarType::Char: return "torch.int8";
    case ScalarType::Short: return "torch.int16";
    case ScalarType::Int: return "torch.int32";
    case ScalarType::Long: return "torch.int64";
    case ScalarType::Bool: return "torch.bool";
    case ScalarType::ComplexFloat: return "torch.complex64";
    case ScalarType::ComplexDouble: return "torch.complex128";
    case ScalarType::Float8_e4m3fn: return "torch.float8_e4m3fn";
    case ScalarType::Float8_e5m2: return "torch.float8_e5m2";
    default: return name_of(type);
  }
}

inline DType dtype_of(ScalarType type, const char* name) {
  switch (type) {
    case ScalarType::Half: return DType::kHalf;
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Float: return DType::kFloat;
    case ScalarType::Double: return DType::kDouble;
    default: {
      const bool is_complex = type == ScalarType::ComplexFloat || type == ScalarType::ComplexDouble;
      CHECK_TYPE(false, name, " has dtype ", dtype_name(type),
                 "; expected torch.float16, torch.bfloat16, torch.float32 or torch.float64",
                 is_complex ? "" : std::string(": ") + name + ".float()");
    }
  }
}

inline Op parse_op(string_view op, bool sddmm) {
  if (op == "add") return Op::kAdd;
  if (op == "sub") return Op::kSub;
  if (op == "mul") return Op::kMul;
  if (op == "div") return Op::kDiv;
  if (op == "relu_add" && !sddmm) return Op::kReluAdd;
  if (op == "copy_lhs") return Op::kCopyLhs;
  if (op == "copy_rhs") return Op::kCopyRhs;
  if (op == "dot" && sddmm) return Op::kDot;
  CHECK_VALUE(false, "op is '", op, "'; expected one of add, sub, mul, div, ", sddmm ? "dot, " : "relu_add, ",
              "copy_lhs, copy_rhs");
}

inline Reduce parse_reduce(string_view reduce) {
  if (reduce == "sum") return Reduce::kSum;
  if (reduce == "mean") return Reduce::kMean;
  if (reduce == "max") return Reduce::kMax;
  if (reduce == "min") return Reduce::kMin;
  CHECK_VALUE(false, "reduce is '", reduce, "'; expected one of sum, mean, max, min");
}

// Target of an operand named u, v or e, for an adjacency whose rows are sources (by_src) or destinations.
inline Target parse_target(string_view target, bool by_src) {
  if (target == "u") return by_src ? Target::kRow : Target::kCol;
  if (target == "v") return by_src ? Target::kCol : Target::kRow;
  if (target == "e") return Target::kEdge;
  CHECK_VALUE(false, "target is '", target, "'; expected u, v or e");
}

inline Shape trailing(IntArrayRef sizes) { return Shape(sizes.begin() + (sizes.empty() ? 0 : 1), sizes.end()); }
inline std::vector<int64_t> with_rows(int64_t rows, const Shape& trailing) {
  std::vector<int64_t> sizes{rows};
  sizes.insert(sizes.end(), trailing.begin(), trailing.end());
  return sizes;
}

// The adjacency of the three tensors, which must outlive it. indices may be absent if only edge data is read.
inline Topology topology_of(const Tensor& indptr, OptionalRef indices, OptionalRef edge_ids, int64_t num_edges,
                            bool short_rows = false) {
  CHECK_VALUE(indptr.dim() == 1 && indptr.size(0) >= 1, "indptr has shape ", indptr.sizes(), "; expected (rows + 1,)");
  const auto type = indptr.scalar_type();
  const Device device = indptr.device();
  CHECK_TYPE(type == ScalarType::Int || type == ScalarType::Long, "indptr has dtype ", dtype_name(type),
             "; expected torch.int32 or torch.int64");
  auto check = [&](const Tensor& t, const char* name) {
    CHECK_VALUE(t.dim() == 1 && t.size(0) == num_edges, name, " has shape ", t.sizes(), "; expected (", num_edges,
                ",)");
    CHECK_TYPE(t.scalar_type() == type, name, " has dtype ", dtype_name(t.scalar_type()), "; expected that of indptr, ",
               dtype_name(type));
    CHECK_VALUE(t.is_contiguous(), name, " is not contiguous");
    CHECK_VALUE(t.device() == device, name, " is on ", t.device(), "; expected the device of indptr, ", device);
  };
  CHECK_VALUE(indptr.is_contiguous(), "indptr is not contiguous");
  Topology topology;
  topology.indptr = indptr.const_data_ptr();
  topology.num_rows = indptr.size(0) - 1;
  topology.num_edges = num_edges;
  topology.is_int64 = type == ScalarType::Long;
  topology.short_rows = short_rows;
  CHECK_TYPE(!indices.is_lacking(), "indices is None; expected ids (", num_edges, ",)");
  if (indices) {
    check(*indices, "indices");
    topology.indices = indices->const_data_ptr();
  }
  if (edge_ids) {
    check(*edge_ids, "edge_ids");
    topology.edge_ids = edge_ids->const_data_ptr();
  }
  return topology;
}

// Puts a schedule of the rows of `topology`, whose indptr is given, into it. The back end that reads it checks its
// length.
inline void put_schedule(Topology& topology, OptionalRef schedule, const Tensor& indptr) {
  if (!schedule) return;
  const Tensor& entries = *schedule;
  CHECK_TYPE(entries.scalar_type() == ScalarType::Int, "schedule has dtype ", dtype_name(entries.scalar_type()),
             "; expected torch.int32");
  CHECK_VALUE(entries.dim() == 1, "schedule has shape ", entries.sizes(), "; expected one dimension");
  CHECK_VALUE(entries.is_contiguous(), "schedule is not contiguous");
  CHECK_VALUE(entries.device() == indptr.device(), "schedule is on ", entries.device(),
              "; expected the device of indptr, ", indptr.device());
  topology.schedule = entries.const_data_ptr<int32_t>();
  topology.schedule_length = entries.size(0);
}

// The ends of the edges of an edge list.
inline void check_coo(const Tensor& row, const Tensor& col) {
  const auto check = [](const Tensor& tensor, const char* name) {
    CHECK_TYPE(tensor.scalar_type() == ScalarType::Int || tensor.scalar_type() == ScalarType::Long, name, " has dtype ",
               dtype_name(tensor.scalar_type()), "; expected torch.int32 or torch.int64");
    CHECK_VALUE(tensor.dim() == 1, name, " has shape ", tensor.sizes(), "; expected one dimension");
  };
  check(row, "row");
  check(col, "col");
  CHECK_VALUE(row.sizes() == col.sizes(), "row has shape ", row.sizes(), " and col ", col.sizes(),
              "; expected equal shapes");
  CHECK_TYPE(row.scalar_type() == col.scalar_type(), "row has dtype ", dtype_name(row.scalar_type()), " and col ",
             dtype_name(col.scalar_type()), "; expected equal dtypes");
  CHECK_VALUE(row.device() == col.device(), "row is on ", row.device(), " and col on ", col.device(),
              "; expected one device");
}

// The count must allow an indptr of count + 1 entries of 8 bytes.
inline void check_count(int64_t count, const char* name) {
  CHECK_VALUE(count >= 0 && count < (int64_t{1} << 48), name, " is ", count, "; expected a number in [0, 2**48)");
}

// A dense argument made contiguous, with its view as an operand.
struct Feature {
  Tensor tensor;
  Operand operand;
  bool defined() const { return tensor.defined(); }
};
inline Feature feature_of(OptionalRef tensor, const char* name, Target target, const Device& device, bool has_double) {
  Feature feature;
  feature.operand.target = target;
  if (!tensor) return feature;
  CHECK_VALUE(tensor->dim() >= 1, name, " has no dimensions; expected one row per node or edge");
  CHECK_VALUE(tensor->device() == device, name, " is on ", tensor->device(), "; expected the graph's device, ", device);
  feature.operand.type = dtype_of(tensor->scalar_type(), name);
  CHECK_TYPE(feature.operand.type != DType::kDouble || has_double, name,
             " has dtype torch.float64; expected torch.float16, torch.bfloat16 or torch.float32 on CUDA");
  feature.tensor = tensor->contiguous();
  feature.operand.data = feature.tensor.const_data_ptr();
  const IntArrayRef sizes = feature.tensor.sizes();
  feature.operand.rows = sizes[0];
  feature.operand.len = 1;
  for (size_t d = 1; d < sizes.size(); ++d) feature.operand.len *= sizes[d];
  return feature;
}

// The same, with the types that the device's back end has.
inline Feature feature_of(OptionalRef tensor, const char* name, Target target, const Device& device) {
  return feature_of(tensor, name, target, device, backend_of(device).has_double);
}

inline void check_operands_present(Op op, const Feature& lhs, const Feature& rhs, string_view op_name) {
  CHECK_VALUE(!reads_lhs(op) || lhs.defined(), "lhs_data is None; '", op_name, "' needs it");
  CHECK_VALUE(!reads_rhs(op) || rhs.defined(), "rhs_data is None; '", op_name, "' needs it");
}

// An operand on edges must have one row per edge, and one at the rows of the adjacency one row per node.
inline void check_edge_rows(const Feature& feature, const char* name, int64_t num_edges) {
  if (!feature.defined() || feature.operand.target != Target::kEdge) return;
  CHECK_VALUE(feature.tensor.size(0) == num_edges, name, " has shape ", feature.tensor.sizes(), "; expected ",
              num_edges, " rows, one per edge");
}
inline void check_row_rows(const Feature& feature, const char* name, int64_t num_rows) {
  if (!feature.defined() || feature.operand.target != Target::kRow) return;
  CHECK_VALUE(feature.tensor.size(0) == num_rows, name, " has shape ", feature.tensor.sizes(), "; expected ", num_rows,
              " rows, one per node");
}

// The two operands of a message have equal types, or one has a half type and the other is fp32.
inline void check_types_of_two(ScalarType lhs, const char* lhs_name, ScalarType rhs, const char* rhs_name) {
  CHECK_TYPE(may_mix(dtype_of(lhs, lhs_name), dtype_of(rhs, rhs_name)), lhs_name, " has dtype ", dtype_name(lhs),
             " and ", rhs_name, " ", dtype_name(rhs),
             "; expected equal dtypes, or torch.float32 with torch.float16 or torch.bfloat16");
}
inline void check_operand_types(Op op, const Feature& lhs, const Feature& rhs) {
  if (reads_lhs(op) && reads_rhs(op))
    check_types_of_two(lhs.tensor.scalar_type(), "lhs_data", rhs.tensor.scalar_type(), "rhs_data");
}

inline BroadcastPlan plan_of(Op op, const Shape& lhs, const Shape& rhs) {
  BroadcastPlan plan(reads_lhs(op) ? lhs : rhs, reads_rhs(op) ? rhs : lhs, op);
  CHECK_VALUE(plan.valid, "lhs_data and rhs_data have trailing shapes ", IntArrayRef(lhs), " and ", IntArrayRef(rhs),
              op == Op::kDot ? ", which do not broadcast with equal last dimensions" : ", which do not broadcast");
  return plan;
}

// Whether the wanted gradients of op read this operand.
inline bool gradient_reads(Op op, Side operand, bool need_lhs, bool need_rhs) {
  if (op == Op::kDiv) return operand == Side::kRhs ? need_lhs || need_rhs : need_rhs;
  if (op == Op::kReluAdd) return need_lhs || need_rhs;
  if (op != Op::kMul && op != Op::kDot) return false;
  return operand == Side::kRhs ? need_lhs : need_rhs;
}

// An operand of a backward must have its declared shape and dtype, and these must fit the topology.
inline void check_declared(const Feature& feature, const char* name, Target target, bool is_read, IntArrayRef shape,
                           ScalarType dtype, const Topology& topology) {
  CHECK_VALUE(!shape.empty(), name, "_shape is empty; expected the operand's shape");
  dtype_of(dtype, name);
  CHECK_VALUE(!is_read || feature.defined(), name, " is None; the gradient reads it");
  if (feature.defined()) {
    CHECK_VALUE(feature.tensor.sizes() == shape, name, " has shape ", feature.tensor.sizes(), "; expected ", shape);
    CHECK_TYPE(feature.tensor.scalar_type() == dtype, name, " has dtype ", dtype_name(feature.tensor.scalar_type()),
               "; expected ", dtype_name(dtype));
  }
  const int64_t rows = target == Target::kEdge ? topology.num_edges : topology.num_rows;
  CHECK_VALUE(target == Target::kCol || shape[0] == rows, name, "_shape is ", shape, "; expected ", rows, " rows");
}

// An upstream gradient has the operand's type, or fp32 for a half operand.
inline void check_gradient_type(const Tensor& grad, ScalarType own) {
  const auto type = grad.scalar_type();
  CHECK_TYPE(type == own || (type == ScalarType::Float && own != ScalarType::Double), "grad has dtype ",
             dtype_name(type), "; expected ", dtype_name(own),
             size_of(dtype_of(own, "grad")) == 2 ? " or torch.float32" : "");
}

// arg holds the winners that a forward with max or min returned.
inline void check_arg(const Tensor& arg, const Tensor& grad, const Tensor& indptr) {
  CHECK_VALUE(arg.sizes() == grad.sizes(), "arg has shape ", arg.sizes(), "; expected that of grad, ", grad.sizes());
  CHECK_TYPE(arg.scalar_type() == indptr.scalar_type() || arg.scalar_type() == ScalarType::Int, "arg has dtype ",
             dtype_name(arg.scalar_type()), "; expected torch.int32 or that of indptr, ",
             dtype_name(indptr.scalar_type()));
  CHECK_VALUE(arg.device() == indptr.device(), "arg is on ", arg.device(), "; expected ", indptr.device());
}

// The type of a result: `wanted` must be float32 or the operands' own.
inline ScalarType result_type(ScalarType own, const std::optional<ScalarType>& wanted) {
  if (!wanted) return own;
  CHECK_TYPE(*wanted == own || (*wanted == ScalarType::Float && own != ScalarType::Double), "out_dtype is ",
             dtype_name(*wanted), "; expected ", dtype_name(own),
             size_of(dtype_of(own, "out")) == 2 ? " or torch.float32" : "");
  return *wanted;
}

// The indptr from which kernels read the number of edges of each destination, for the gradient of mean.
inline const void* mean_indptr_of(Reduce reduce, const Tensor& in_indptr, const Tensor& indptr) {
  CHECK_VALUE(in_indptr.dim() == 1 && in_indptr.size(0) >= 1 && in_indptr.device() == indptr.device(),
              "in_indptr has shape ", in_indptr.sizes(), " and is on ", in_indptr.device(),
              "; expected (destinations + 1,) on ", indptr.device());
  CHECK_TYPE(in_indptr.scalar_type() == indptr.scalar_type(), "in_indptr has dtype ",
             dtype_name(in_indptr.scalar_type()), "; expected that of indptr, ", dtype_name(indptr.scalar_type()));
  CHECK_VALUE(in_indptr.is_contiguous(), "in_indptr is not contiguous");
  return reduce == Reduce::kMean ? in_indptr.const_data_ptr() : nullptr;
}

}  // namespace halfgnn
