// copy_u_reduce and copy_u_reduce_backward: checks, allocation, choice between the kernel of several reductions and
// one gspmm after the other.

#include <algorithm>
#include <array>

#include "../torch/device.h"
#include "register.h"
#include "results.h"
#include "spmm.h"

namespace halfgnn {
namespace {

enum Slot { kSum, kMean, kMax, kMin, kVar, kStd, kReductions };
constexpr std::array<const char*, kReductions> kNames = {"sum", "mean", "max", "min", "var", "std"};
using ReduceResults = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

std::array<bool, kReductions> parse_reductions(string_view names) {
  std::array<bool, kReductions> wanted{};
  CHECK_VALUE(!names.empty(), "reduces is empty; expected some of sum, mean, max, min, var, std");
  for (size_t begin = 0, end; begin <= names.size(); begin = end + 1) {
    end = std::min(names.find(',', begin), names.size());
    const auto name = names.substr(begin, end - begin);
    const auto* slot = std::find(kNames.begin(), kNames.end(), name);
    CHECK_VALUE(slot != kNames.end(), "reduces has '", name, "'; expected some of sum, mean, max, min, var, std");
    bool& is_wanted = wanted[static_cast<size_t>(slot - kNames.begin())];
    CHECK_VALUE(!is_wanted, "reduces has '", name, "' twice");
    is_wanted = true;
  }
  return wanted;
}

// What is summed is also kept in it.
ScalarType accumulator_of(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

struct ReduceCall {
  const Tensor &indptr, &indices;
  const OptionalTensor& edge_ids;
  Topology topology;
  Feature feat;
  std::array<bool, kReductions> wanted;
  double eps;
  bool save;
  std::array<Tensor, kReductions> out;
  Tensor arg_max, arg_min, kept_mean, kept_std;

  bool has_squares() const { return wanted[kVar] || wanted[kStd]; }
  void allocate(ScalarType out_type) {
    const auto shape = with_rows(topology.num_rows, trailing(feat.tensor.sizes()));
    const auto result = [&](bool is_wanted, ScalarType type) {
      const auto options = feat.tensor.options().dtype(type);
      return is_wanted ? new_result(shape, options) : empty({0}, options);
    };
    for (size_t i = 0; i < kReductions; ++i) out[i] = result(wanted[i], out_type);
    const auto ids = winner_type(topology), kept = accumulator_of(feat.tensor.scalar_type());
    arg_max = result(save && wanted[kMax], ids);
    arg_min = result(save && wanted[kMin], ids);
    kept_mean = result(save && has_squares(), kept);
    kept_std = result(save && wanted[kStd], kept);
  }
};

void run_reduce_kernel(const Backend& backend, ReduceCall& f) {
  CopyReduceArgs args;
  args.topology = f.topology;
  args.feat = f.feat.operand.data;
  args.feat_rows = f.feat.operand.rows;
  args.type = f.feat.operand.type;
  args.dim = f.feat.operand.len;
  args.eps = static_cast<float>(f.eps);
  void** results[] = {&args.sum, &args.mean, &args.max, &args.min, &args.var, &args.std};
  for (size_t i = 0; i < kReductions; ++i) *results[i] = data_or_null<void>(f.out[i], f.wanted[i]);
  args.out_type = dtype_of(f.out[0].scalar_type(), "out");
  args.arg_max = data_or_null<void>(f.arg_max, f.save && f.wanted[kMax]);
  args.arg_min = data_or_null<void>(f.arg_min, f.save && f.wanted[kMin]);
  args.kept_mean = data_or_null<float>(f.kept_mean, f.save && f.has_squares());
  args.kept_std = data_or_null<float>(f.kept_std, f.save && f.wanted[kStd]);
  backend.copy_reduce(args);
}

// The number of edges of each row, at least 1, as a column.
Tensor degrees(const Tensor& indptr, ScalarType type) { return indptr.diff().clamp_min(1).to(type).unsqueeze(1); }

// Means and variances in `wide`. Squares are of distances from a common origin, the mean of each feature over all
// sources, because the squares of values that lie far from 0 lose the digits of their differences.
std::pair<Tensor, Tensor> moments(const ReduceCall& f, ScalarType wide) {
  const Tensor x = f.feat.tensor.reshape({f.feat.operand.rows, f.feat.operand.len}).to(wide);
  const Tensor origin = x.nan_to_num(0., 0., 0.).mean(0);
  const Tensor distance = x - origin;
  const auto mean_of = [&](const Tensor& values) {
    return std::get<0>(gspmm(f.indptr, f.indices, f.edge_ids, "copy_lhs", "mean", values, std::nullopt, std::nullopt,
                             f.topology.short_rows, /*save=*/false));
  };
  const Tensor mean = mean_of(distance), squares = mean_of(distance * distance);
  const Tensor has_edges = f.indptr.diff().gt(0).unsqueeze(1);
  return {where(has_edges, mean + origin, 0.), (squares - mean * mean).clamp_min(0.)};
}

void copy_to(Tensor& result, const Tensor& values) { result.view(values.sizes()).copy_(values); }

// One gspmm for each reduction. On the CPU moments are computed in fp64.
void reduce_by_gspmm(const Backend& backend, ReduceCall& f) {
  const std::optional<ScalarType> out_type = f.out[0].scalar_type();
  for (size_t i = kSum; i <= kMin; ++i) {
    if (!f.wanted[i]) continue;
    const auto [value, arg] = gspmm(f.indptr, f.indices, f.edge_ids, "copy_lhs", kNames[i], f.feat.tensor, std::nullopt,
                                    out_type, f.topology.short_rows, f.save);
    f.out[i] = value;
    if (f.save && (i == kMax || i == kMin)) (i == kMax ? f.arg_max : f.arg_min).copy_(arg);
  }
  if (!f.has_squares()) return;
  const auto [mean, var] = moments(f, backend.has_double ? ScalarType::Double : ScalarType::Float);
  const Tensor std = where(var.le(f.eps), 0., var.sqrt());
  if (f.wanted[kVar]) copy_to(f.out[kVar], var);
  if (f.wanted[kStd]) copy_to(f.out[kStd], std);
  if (f.save) copy_to(f.kept_mean, mean);
  if (f.save && f.wanted[kStd]) copy_to(f.kept_std, std);
}

ReduceResults copy_u_reduce(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                            const Tensor& feat_data, string_view reduces, double eps,
                            std::optional<ScalarType> out_dtype, bool save, bool short_rows) {
  const DeviceGuard guard(indptr.device());
  const Backend& backend = backend_of(indptr.device());
  ReduceCall f{indptr,
               indices,
               edge_ids,
               topology_of(indptr, indices, edge_ids, indices.numel(), short_rows),
               feature_of(feat_data, "feat", Target::kCol, indptr.device()),
               parse_reductions(reduces),
               eps,
               save,
               {},
               {},
               {},
               {},
               {}};
  CHECK_VALUE(eps >= 0, "eps is ", eps, "; expected a number that is not negative");
  f.allocate(result_type(f.feat.tensor.scalar_type(), out_dtype));
  const Operand& feat = f.feat.operand;
  if (backend.has_reduce_kernel(feat.type, feat.len, f.topology.num_edges)) {
    run_reduce_kernel(backend, f);
  } else {
    reduce_by_gspmm(backend, f);
  }
  const auto& o = f.out;
  return {o[kSum], o[kMean], o[kMax], o[kMin], o[kVar], o[kStd], f.arg_max, f.arg_min, f.kept_mean, f.kept_std};
}

// ---- gradient

struct ReduceGradient {
  const Tensor &indptr, &indices, &in_indptr;
  const OptionalTensor& edge_ids;
  Topology topology, in_edges;
  Feature feat;  // of declared shape and type; null unless it is read
  std::vector<int64_t> shape;
  ScalarType type;
  std::array<Tensor, kReductions> grad;  // contiguous, or undefined
  Tensor arg_max, arg_min, kept_mean, kept_std;
  int64_t num_nodes, len;

  bool has_squares() const { return grad[kVar].defined() || grad[kStd].defined(); }
};

void check_gradient(const ReduceGradient& b, ScalarType grad_type) {
  auto shape = b.shape;
  shape[0] = b.num_nodes;
  const auto check_shape = [&](const Tensor& tensor, const char* name) {
    CHECK_VALUE(tensor.sizes() == IntArrayRef(shape), name, " has shape ", tensor.sizes(), "; expected ",
                IntArrayRef(shape));
    CHECK_VALUE(tensor.device() == b.indptr.device(), name, " is on ", tensor.device(),
                "; expected the graph's device, ", b.indptr.device());
  };
  const auto check_kept = [&](const Tensor& tensor, const char* name, ScalarType type, bool is_read) {
    CHECK_VALUE(!is_read || tensor.defined(), name, " is None; the gradient reads it");
    if (!is_read) return;
    check_shape(tensor, name);
    CHECK_TYPE(tensor.scalar_type() == type, name, " has dtype ", dtype_name(tensor.scalar_type()), "; expected ",
               dtype_name(type));
  };
  for (size_t i = 0; i < kReductions; ++i) {
    if (!b.grad[i].defined()) continue;
    check_shape(b.grad[i], kNames[i]);
    CHECK_TYPE(b.grad[i].scalar_type() == grad_type, kNames[i], " has dtype ", dtype_name(b.grad[i].scalar_type()),
               "; expected that of the other gradients, ", dtype_name(grad_type));
  }
  check_kept(b.arg_max, "arg_max", winner_type(b.topology), b.grad[kMax].defined());
  check_kept(b.arg_min, "arg_min", winner_type(b.topology), b.grad[kMin].defined());
  check_kept(b.kept_mean, "kept_mean", accumulator_of(b.type), b.has_squares());
  check_kept(b.kept_std, "kept_std", accumulator_of(b.type), b.grad[kStd].defined());
}

Tensor run_reduce_kernel(const Backend& backend, const ReduceGradient& b, ScalarType grad_type) {
  Tensor result = new_result(b.shape, b.in_indptr.options().dtype(b.type));
  CopyReduceBackwardArgs args;
  args.topology = b.topology;
  args.in_edges = b.in_edges;
  args.feat = b.feat.operand.data;
  args.type = dtype_of(b.type, "feat");
  const void** grads[] = {&args.sum, &args.mean, &args.max, &args.min, &args.var, &args.std};
  for (size_t i = 0; i < kReductions; ++i) *grads[i] = data_or_null(b.grad[i]);
  args.grad_type = dtype_of(grad_type, "grad");
  args.arg_max = static_cast<const int32_t*>(data_or_null(b.arg_max));
  args.arg_min = static_cast<const int32_t*>(data_or_null(b.arg_min));
  args.kept_mean = static_cast<const float*>(data_or_null(b.kept_mean));
  args.kept_std = static_cast<const float*>(data_or_null(b.kept_std));
  args.num_nodes = b.num_nodes;
  args.dim = b.len;
  args.grad_feat = result.mutable_data_ptr();
  backend.copy_reduce_backward(args);
  return result;
}

// See CopyReduceKernels::records.
Tensor reduce_records(const ReduceGradient& b, ScalarType wide) {
  const auto rows = [&](const Tensor& x) { return x.reshape({b.num_nodes, b.len}).to(wide); };
  const Tensor degree = degrees(b.in_indptr, wide);
  Tensor level = zeros({b.num_nodes, b.len}, b.in_indptr.options().dtype(wide));
  if (b.grad[kSum].defined()) level = level + rows(b.grad[kSum]);
  if (b.grad[kMean].defined()) level = level + rows(b.grad[kMean]) / degree;
  if (!b.has_squares()) return level;
  Tensor slope = zeros_like(level);
  if (b.grad[kVar].defined()) slope = slope + 2. * rows(b.grad[kVar]) / degree;
  if (b.grad[kStd].defined()) {
    // A std that the mean may be rounded by is none: distances from the mean would be divided by it.
    const Tensor std = rows(b.kept_std),
                 rounding = rows(b.kept_mean).abs() * (wide == ScalarType::Double ? 0x1p-53 : 0x1p-24);
    slope = slope + where(std.le(rounding), 0., rows(b.grad[kStd]) / (degree * std));
  }
  return stack({level - slope * rows(b.kept_mean), slope}, 1);
}

Tensor reduce_by_gspmm(const ReduceGradient& b) {
  const ScalarType wide = accumulator_of(b.type);
  Tensor result = zeros({b.shape[0], b.len}, b.in_indptr.options().dtype(wide));
  if (b.has_squares() || b.grad[kSum].defined() || b.grad[kMean].defined()) {
    const Tensor sums = std::get<0>(gspmm(b.indptr, b.indices, b.edge_ids, "copy_lhs", "sum", reduce_records(b, wide),
                                          std::nullopt, std::nullopt, b.topology.short_rows, /*save=*/false));
    result =
        b.has_squares() ? sums.select(1, 0) + sums.select(1, 1) * b.feat.tensor.reshape(result.sizes()).to(wide) : sums;
  }
  for (const Slot slot : {kMax, kMin}) {
    if (!b.grad[slot].defined()) continue;
    const Tensor& winners = slot == kMax ? b.arg_max : b.arg_min;
    result = result +
             std::get<0>(gspmm_backward(b.indptr, b.indices, b.edge_ids, b.in_indptr, true, "copy_lhs", kNames[slot],
                                        b.grad[slot].to(wide).reshape({b.num_nodes, b.len}), std::nullopt, std::nullopt,
                                        winners.reshape({b.num_nodes, b.len}), result.sizes(), result.sizes(), wide,
                                        wide, true, false, b.topology.short_rows, std::nullopt, std::nullopt));
  }
  return result.to(b.type).reshape(b.shape);
}

Tensor copy_u_reduce_backward(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                              const Tensor& in_indptr, const OptionalTensor& feat, IntArrayRef feat_shape,
                              ScalarType feat_dtype, const OptionalTensor& sum, const OptionalTensor& mean,
                              const OptionalTensor& max, const OptionalTensor& min, const OptionalTensor& var,
                              const OptionalTensor& std, const OptionalTensor& arg_max, const OptionalTensor& arg_min,
                              const OptionalTensor& kept_mean, const OptionalTensor& kept_std, bool short_rows,
                              const OptionalTensor& in_indices, const OptionalTensor& in_edge_ids) {
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  const Backend& backend = backend_of(device);
  mean_indptr_of(Reduce::kSum, in_indptr, indptr);
  const auto contiguous = [](const OptionalTensor& x) { return x && x->defined() ? x->contiguous() : Tensor(); };
  ReduceGradient b{
      indptr,
      indices,
      in_indptr,
      edge_ids,
      topology_of(indptr, indices, edge_ids, indices.numel(), short_rows),
      topology_of(in_indptr, in_indices, in_edge_ids, indices.numel()),
      feature_of(feat, "feat", Target::kRow, device),
      feat_shape.vec(),
      feat_dtype,
      {contiguous(sum), contiguous(mean), contiguous(max), contiguous(min), contiguous(var), contiguous(std)},
      contiguous(arg_max),
      contiguous(arg_min),
      contiguous(kept_mean),
      contiguous(kept_std),
      in_indptr.numel() - 1,
      1};
  check_declared(b.feat, "feat", Target::kRow, b.has_squares(), feat_shape, feat_dtype, b.topology);
  for (size_t d = 1; d < b.shape.size(); ++d) b.len *= b.shape[d];
  const Tensor* first = nullptr;
  for (const Tensor& grad : b.grad)
    if (first == nullptr && grad.defined()) first = &grad;
  CHECK_VALUE(first != nullptr, "all gradients are None; expected one at least");
  const ScalarType grad_type = first->scalar_type();
  check_gradient_type(*first, feat_dtype);
  check_gradient(b, grad_type);
  const bool has_kernel = backend.has_reduce_kernel(dtype_of(feat_dtype, "feat"), b.len, b.topology.num_edges) &&
                          grad_type != ScalarType::Double;
  return has_kernel ? run_reduce_kernel(backend, b, grad_type) : reduce_by_gspmm(b);
}

}  // namespace

void register_copy_u_reduce(Library& m) {
  m.impl<&copy_u_reduce>("copy_u_reduce");
  m.impl<&copy_u_reduce_backward>("copy_u_reduce_backward");
}

}  // namespace halfgnn
