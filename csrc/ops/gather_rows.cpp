// gather_rows: rows of a table by id, copied whatever their dtype, or as the values of codes of 8 bits.

#include "../torch/device.h"
#include "code_checks.h"
#include "register.h"

namespace halfgnn {
namespace {

constexpr int64_t kMostThreads = 1024;

// Each row must be contiguous. Rows may lie apart, as in a slice of columns.
void check_table(const Tensor& table) {
  CHECK_VALUE(table.dim() >= 1, "table has no dimensions; expected one row per id");
  int64_t expected = 1;
  for (int64_t d = table.dim() - 1; d >= 1; --d) {
    CHECK_VALUE(table.numel() == 0 || table.size(d) == 1 || table.stride(d) == expected, "table has shape ",
                table.sizes(), " and strides ", table.strides(),
                "; expected rows that are contiguous, at any distance from one another");
    expected *= table.size(d);
  }
}

void check_ids(const Tensor& ids, const Tensor& out) {
  CHECK_TYPE(ids.scalar_type() == ScalarType::Int || ids.scalar_type() == ScalarType::Long, "ids has dtype ",
             dtype_name(ids.scalar_type()), "; expected torch.int32 or torch.int64");
  CHECK_VALUE(ids.dim() == 1, "ids has shape ", ids.sizes(), "; expected one dimension");
  CHECK_VALUE(ids.device() == out.device(), "ids is on ", ids.device(), "; expected the device of out, ", out.device());
}

void check_out(const Tensor& out, const Tensor& table, const Tensor& ids, bool has_scale) {
  const auto type = out.scalar_type();
  if (has_scale) {
    CHECK_TYPE(type == ScalarType::Half || type == ScalarType::BFloat16 || type == ScalarType::Float, "out has dtype ",
               dtype_name(type), "; expected torch.float16, torch.bfloat16 or torch.float32, for the values of codes");
  } else {
    CHECK_TYPE(type == table.scalar_type(), "out has dtype ", dtype_name(type), "; expected that of table, ",
               dtype_name(table.scalar_type()));
  }
  const std::vector<int64_t> shape = with_rows(ids.size(0), trailing(table.sizes()));
  CHECK_VALUE(out.sizes() == IntArrayRef(shape), "out has shape ", out.sizes(), "; expected ", IntArrayRef(shape),
              ", one row of table per id");
  CHECK_VALUE(out.is_contiguous(), "out has strides ", out.strides(), "; expected it to be contiguous");
}

// The memory from the tensor's first element to its last.
struct Span {
  uintptr_t begin, end;
  explicit Span(const Tensor& tensor) {
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    end = tensor.numel() == 0 ? begin : begin + static_cast<uintptr_t>((last + 1) * tensor.element_size());
  }
  bool overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};

// Ids are checked before rows are copied, so writing to out must change neither ids nor rows.
void check_no_overlap(const Tensor& out, const Tensor& other, const char* name) {
  CHECK_VALUE(!Span(out).overlaps(Span(other)), "out lies in the memory of ", name, "; expected memory of its own");
}

void check_place(const Tensor& scale, const char* name, const Tensor& table, const Tensor& out) {
  CHECK_VALUE(scale.device() == out.device() || scale.device() == table.device(), name, " is on ", scale.device(),
              "; expected the device of out, ", out.device(), ", or of table, ", table.device());
}

void add_scales(const Tensor& table, const Tensor& scale, const OptionalTensor& zero_point, const Tensor& out,
                GatherRowsArgs& args) {
  args.code = code_of(table, "table");
  args.out_type = dtype_of(out.scalar_type(), "out");
  args.scales = scales_of(table, "table", scale, zero_point);
  check_place(scale, "scale", table, out);
  args.scales_on_host = scale.device() != out.device();
  if (!zero_point) return;
  CHECK_VALUE(zero_point->device() == scale.device(), "zero_point is on ", zero_point->device(),
              "; expected the device of scale, ", scale.device());
}

void gather_rows(const Tensor& table, const Tensor& ids, const Tensor& out, int64_t num_threads,
                 const OptionalTensor& scale, const OptionalTensor& zero_point) {
  CHECK_VALUE(scale || !zero_point, "zero_point is given without scale; expected both");
  check_table(table);
  check_ids(ids, out);
  check_out(out, table, ids, static_cast<bool>(scale));
  check_no_overlap(out, table, "table");
  check_no_overlap(out, ids, "ids");
  CHECK_VALUE(num_threads >= 0 && num_threads <= kMostThreads, "num_threads is ", num_threads,
              "; expected a number in [0, ", kMostThreads, "], 0 for those of PyTorch");
  const bool is_elsewhere = table.device() != out.device();
  CHECK_VALUE(!is_elsewhere || (table.is_cpu() && out.is_cuda()), "table is on ", table.device(),
              "; expected the device of out, ", out.device(),
              out.is_cuda() ? ", or page-locked memory of the CPU" : "");
  const DeviceGuard guard(out.device());
  GatherRowsArgs args;
  args.table = table.const_data_ptr();
  args.table_rows = table.size(0);
  args.table_stride = table.stride(0) * table.element_size();
  args.table_on_host = is_elsewhere;
  args.row_bytes = table.element_size();
  for (int64_t d = 1; d < table.dim(); ++d) args.row_bytes *= table.size(d);
  args.ids = ids.const_data_ptr();
  args.num_ids = ids.size(0);
  args.ids_stride = ids.stride(0);
  args.is_int64 = ids.scalar_type() == ScalarType::Long;
  args.out = out.mutable_data_ptr();
  args.num_threads = num_threads;
  if (scale) {
    check_no_overlap(out, *scale, "scale");
    add_scales(table, *scale, zero_point, out, args);
  }
  if (zero_point) check_no_overlap(out, *zero_point, "zero_point");
  backend_of(out.device()).gather_rows(args);
  if (is_elsewhere) keep_until_read(table, out.device());
  if (args.scales_on_host) {
    keep_until_read(*scale, out.device());
    if (zero_point) keep_until_read(*zero_point, out.device());
  }
}

}  // namespace

void register_gather_rows(Library& m) { m.impl<&gather_rows>("gather_rows"); }

}  // namespace halfgnn
