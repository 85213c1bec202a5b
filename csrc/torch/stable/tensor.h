// Tensors by the stable ABI: handles of ATen's tensors, and calls of its operators.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "abi.h"

namespace halfgnn {

using std::string_view;

inline const char* name_of(ScalarType type) { return c10::toString(type); }

class Device {
 public:
  Device(DeviceType type, int32_t index) : type_(type), index_(index) {}
  explicit Device(const char* name) {
    uint32_t type;
    HALFGNN_ABI(torch_parse_device_string, name, &type, &index_);
    type_ = abi::device_type(static_cast<int32_t>(type));
  }
  DeviceType type() const { return type_; }
  int32_t index() const { return index_; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  bool is_cuda() const { return type_ == DeviceType::CUDA; }
  bool operator==(const Device& other) const { return type_ == other.type_ && index_ == other.index_; }
  bool operator!=(const Device& other) const { return !(*this == other); }

 private:
  DeviceType type_;
  int32_t index_;
};
inline std::ostream& operator<<(std::ostream& out, const Device& device) {
  switch (device.type()) {
    case DeviceType::CPU: out << "cpu"; break;
    case DeviceType::CUDA: out << "cuda"; break;
    case DeviceType::Meta: out << "meta"; break;
    case DeviceType::XPU: out << "xpu"; break;
    case DeviceType::MPS: out << "mps"; break;
    default: out << "device type " << static_cast<int>(device.type());
  }
  return device.index() < 0 || device.is_cpu() ? out : out << ':' << device.index();
}

// Sizes, strides: numbers that something else owns.
class IntArrayRef {
 public:
  IntArrayRef() = default;
  IntArrayRef(const int64_t* data, size_t size) : data_(data), size_(size) {}
  IntArrayRef(const std::vector<int64_t>& numbers) : IntArrayRef(numbers.data(), numbers.size()) {}
  IntArrayRef(const std::initializer_list<int64_t>& numbers) : IntArrayRef(numbers.begin(), numbers.size()) {}
  template <size_t kSize>
  IntArrayRef(const int64_t (&numbers)[kSize]) : IntArrayRef(numbers, kSize) {}

  const int64_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* begin() const { return data_; }
  const int64_t* end() const { return data_ + size_; }
  int64_t operator[](size_t i) const { return data_[i]; }
  IntArrayRef slice(size_t first) const { return {data_ + first, size_ - first}; }
  std::vector<int64_t> vec() const { return {begin(), end()}; }

 private:
  const int64_t* data_ = nullptr;
  size_t size_ = 0;
};
inline bool operator==(IntArrayRef a, IntArrayRef b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
inline bool operator!=(IntArrayRef a, IntArrayRef b) { return !(a == b); }
inline std::ostream& operator<<(std::ostream& out, IntArrayRef numbers) {
  out << '[';
  for (size_t i = 0; i < numbers.size(); ++i) out << (i == 0 ? "" : ", ") << numbers[i];
  return out << ']';
}

class TensorOptions {
 public:
  TensorOptions(ScalarType type, const Device& device) : type_(type), device_(device) {}
  TensorOptions dtype(ScalarType type) const { return {type, device_}; }
  ScalarType scalar_type() const { return type_; }
  const Device& device() const { return device_; }

 private:
  ScalarType type_;
  Device device_;
};
// On the current device of a type.
inline TensorOptions options_of(ScalarType type, DeviceType device) { return {type, Device(device, -1)}; }

// Owns a handle, or is undefined. A copy is another handle of the same tensor.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(const Tensor& other) {
    if (other.defined()) HALFGNN_ABI(aoti_torch_new_tensor_handle, other.handle_, &handle_);
  }
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (defined()) aoti_torch_delete_tensor_object(handle_);
  }
  AtenTensorHandle handle() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  // ---- what a tensor is

  bool defined() const { return handle_ != nullptr; }
  int64_t dim() const { return get<int64_t>(aoti_torch_get_dim); }
  int64_t numel() const { return get<int64_t>(aoti_torch_get_numel); }
  IntArrayRef sizes() const { return {get<int64_t*>(aoti_torch_get_sizes), static_cast<size_t>(dim())}; }
  IntArrayRef strides() const { return {get<int64_t*>(aoti_torch_get_strides), static_cast<size_t>(dim())}; }
  int64_t size(int64_t d) const { return sizes()[place(d)]; }
  int64_t stride(int64_t d) const { return strides()[place(d)]; }
  bool is_contiguous() const { return get<bool>(aoti_torch_is_contiguous); }
  ScalarType scalar_type() const { return abi::scalar_type(type_number()); }
  int64_t element_size() const { return static_cast<int64_t>(aoti_torch_dtype_element_size(type_number())); }
  int64_t nbytes() const { return numel() * element_size(); }
  Device device() const {
    return {abi::device_type(get<int32_t>(aoti_torch_get_device_type)), get<int32_t>(aoti_torch_get_device_index)};
  }
  bool is_cpu() const { return device().is_cpu(); }
  bool is_cuda() const { return device().is_cuda(); }
  TensorOptions options() const { return {scalar_type(), device()}; }

  const void* const_data_ptr() const { return get<const void*>(torch_get_const_data_ptr); }
  void* mutable_data_ptr() const { return get<void*>(torch_get_mutable_data_ptr); }
  template <class T>
  const T* const_data_ptr() const {
    return static_cast<const T*>(const_data_ptr());
  }
  template <class T>
  T* mutable_data_ptr() const {
    return static_cast<T*>(mutable_data_ptr());
  }

  // ---- operators, as ATen names them

  const Tensor& zero_() const;
  const Tensor& copy_(const Tensor& values) const;
  Tensor clone() const;
  Tensor contiguous() const;
  Tensor to(ScalarType type) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor reshape(IntArrayRef sizes) const;
  Tensor view(IntArrayRef sizes) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor diff() const;
  Tensor clamp_min(double least) const;
  Tensor clamp_min(int least) const;
  Tensor nan_to_num(double nan, double posinf, double neginf) const;
  Tensor mean(int64_t dim) const;
  Tensor gt(int least) const;
  Tensor le(double most) const;
  Tensor le(const Tensor& most) const;
  Tensor sqrt() const;
  Tensor abs() const;

 private:
  template <class T, class U>
  T get(AOTITorchError (*function)(AtenTensorHandle, U*)) const {
    U value;
    abi::check(function(handle_, &value), "a question to a tensor");
    return value;
  }
  int32_t type_number() const { return get<int32_t>(aoti_torch_get_dtype); }
  size_t place(int64_t d) const { return static_cast<size_t>(d < 0 ? d + dim() : d); }

  AtenTensorHandle handle_ = nullptr;
};

using TensorList = std::vector<Tensor>;
class OptionalTensorList {
 public:
  size_t size() const { return tensors_.size(); }
  std::optional<Tensor> get(size_t i) const { return tensors_[i]; }
  void push_back(std::optional<Tensor> tensor) { tensors_.push_back(std::move(tensor)); }

 private:
  std::vector<std::optional<Tensor>> tensors_;
};

// ---- calls of the dispatcher

namespace abi {

inline StableIValue value_of(const Tensor& tensor) { return value_of(Tensor(tensor).release()); }
inline StableIValue value_of(IntArrayRef numbers) {
  List list = new_list(numbers.size());
  for (const int64_t number : numbers) list.push_back(value_of(number));
  return list.release();
}
inline StableIValue value_of(const std::vector<Tensor>& tensors) {
  List list = new_list(tensors.size());
  for (const Tensor& tensor : tensors) list.push_back(value_of(tensor));
  return list.release();
}
inline StableIValue value_of(std::nullopt_t) { return no_value(); }
template <class T>
StableIValue value_of(const std::optional<T>& value) {
  return value ? some(value_of(*value)) : no_value();
}
// A number as an operand. The stable ABI has no Scalars; a tensor without dimensions has no say in dtypes either.
inline Tensor scalar(double value) {
  AtenTensorHandle handle;
  HALFGNN_ABI(aoti_torch_scalar_to_tensor_float64, value, &handle);
  return Tensor(handle);
}
inline Tensor scalar(int value) {
  AtenTensorHandle handle;
  HALFGNN_ABI(aoti_torch_scalar_to_tensor_int64, value, &handle);
  return Tensor(handle);
}

// An operator of ATen by its name, with all arguments of its schema. The first of its results.
template <class... Arguments>
Tensor call_operator(const char* name, const char* overload, const Arguments&... arguments) {
  StableIValue stack[] = {value_of(arguments)...};
  check(torch_call_dispatcher(name, overload, stack, TORCH_FEATURE_VERSION), name);
  return Tensor(take<AtenTensorHandle>(stack[0]));
}

}  // namespace abi

inline const Tensor& Tensor::zero_() const {
  HALFGNN_ABI(aoti_torch_zero_, handle_);
  return *this;
}
inline const Tensor& Tensor::copy_(const Tensor& values) const {
  HALFGNN_ABI(aoti_torch_copy_, handle_, values.handle_, /*non_blocking=*/0);
  return *this;
}
inline Tensor Tensor::clone() const {
  AtenTensorHandle handle;
  HALFGNN_ABI(aoti_torch_clone, handle_, &handle);
  return Tensor(handle);
}
inline Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  return abi::call_operator("aten::contiguous", "", *this, aoti_torch_memory_format_contiguous_format());
}
inline Tensor Tensor::to(ScalarType type) const {
  if (type == scalar_type()) return *this;
  return abi::call_operator("aten::to", "dtype", *this, type, /*non_blocking=*/false, /*copy=*/false, std::nullopt);
}
inline Tensor Tensor::narrow(int64_t dim, int64_t start, int64_t length) const {
  AtenTensorHandle handle;
  HALFGNN_ABI(aoti_torch_aten_narrow, handle_, dim, start, length, &handle);
  return Tensor(handle);
}
inline Tensor Tensor::select(int64_t dim, int64_t index) const {
  return abi::call_operator("aten::select", "int", *this, dim, index);
}
inline Tensor Tensor::reshape(IntArrayRef sizes) const { return abi::call_operator("aten::reshape", "", *this, sizes); }
inline Tensor Tensor::view(IntArrayRef sizes) const { return abi::call_operator("aten::view", "", *this, sizes); }
inline Tensor Tensor::unsqueeze(int64_t dim) const { return abi::call_operator("aten::unsqueeze", "", *this, dim); }
inline Tensor Tensor::diff() const {
  return abi::call_operator("aten::diff", "", *this, int64_t{1}, int64_t{-1}, std::nullopt, std::nullopt);
}
inline Tensor Tensor::clamp_min(double least) const {
  return abi::call_operator("aten::clamp_min", "Tensor", *this, abi::scalar(least));
}
inline Tensor Tensor::clamp_min(int least) const {
  return abi::call_operator("aten::clamp_min", "Tensor", *this, abi::scalar(least));
}
inline Tensor Tensor::nan_to_num(double nan, double posinf, double neginf) const {
  return abi::call_operator("aten::nan_to_num", "", *this, std::optional(nan), std::optional(posinf),
                            std::optional(neginf));
}
inline Tensor Tensor::mean(int64_t dim) const {
  return abi::call_operator("aten::mean", "dim", *this, std::optional(IntArrayRef({dim})), /*keepdim=*/false,
                            std::nullopt);
}
inline Tensor Tensor::gt(int least) const {
  return abi::call_operator("aten::gt", "Tensor", *this, abi::scalar(least));
}
inline Tensor Tensor::le(double most) const { return le(abi::scalar(most)); }
inline Tensor Tensor::le(const Tensor& most) const { return abi::call_operator("aten::le", "Tensor", *this, most); }
inline Tensor Tensor::sqrt() const { return abi::call_operator("aten::sqrt", "", *this); }
inline Tensor Tensor::abs() const { return abi::call_operator("aten::abs", "", *this); }

// ---- functions, as ATen names them

// In contiguous memory.
inline Tensor empty(IntArrayRef sizes, const TensorOptions& options) {
  constexpr size_t kFew = 8;
  int64_t few[kFew];
  std::vector<int64_t> many(sizes.size() > kFew ? sizes.size() : 0);
  int64_t* const strides = many.empty() ? few : many.data();
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides[d] = stride;
  AtenTensorHandle handle;
  HALFGNN_ABI(aoti_torch_empty_strided, static_cast<int64_t>(sizes.size()), sizes.data(), strides,
              abi::number_of(options.scalar_type()), abi::number_of(options.device().type()), options.device().index(),
              &handle);
  return Tensor(handle);
}
inline Tensor zeros(IntArrayRef sizes, const TensorOptions& options) {
  Tensor result = empty(sizes, options);
  result.zero_();
  return result;
}
inline Tensor empty_like(const Tensor& x) { return empty(x.sizes(), x.options()); }
inline Tensor zeros_like(const Tensor& x) { return zeros(x.sizes(), x.options()); }

inline Tensor mul(const Tensor& x, const Tensor& y) { return abi::call_operator("aten::mul", "Tensor", x, y); }
inline Tensor operator*(const Tensor& x, const Tensor& y) { return mul(x, y); }
inline Tensor operator*(const Tensor& x, double y) { return mul(x, abi::scalar(y)); }
inline Tensor operator*(double x, const Tensor& y) { return mul(y, abi::scalar(x)); }
inline Tensor operator/(const Tensor& x, const Tensor& y) { return abi::call_operator("aten::div", "Tensor", x, y); }
// x - factor * y, of floating-point numbers.
inline Tensor subtract(const Tensor& x, const Tensor& y, double factor) {
  AtenTensorHandle handle;
  HALFGNN_ABI(aoti_torch_aten_subtract_Tensor, x.handle(), y.handle(), factor, &handle);
  return Tensor(handle);
}
inline Tensor operator+(const Tensor& x, const Tensor& y) { return subtract(x, y, -1.); }
inline Tensor operator-(const Tensor& x, const Tensor& y) { return subtract(x, y, 1.); }

inline Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  return abi::call_operator("aten::where", "self", condition, x, y);
}
inline Tensor where(const Tensor& condition, const Tensor& x, double y) { return where(condition, x, abi::scalar(y)); }
inline Tensor where(const Tensor& condition, double x, const Tensor& y) { return where(condition, abi::scalar(x), y); }
inline Tensor stack(const std::vector<Tensor>& tensors, int64_t dim) {
  return abi::call_operator("aten::stack", "", tensors, dim);
}
inline Tensor sum(const Tensor& x, IntArrayRef dims, bool keepdim, ScalarType type) {
  return abi::call_operator("aten::sum", "dim_IntList", x, std::optional(dims), keepdim, std::optional(type));
}
inline Tensor constant_pad_nd(const Tensor& x, IntArrayRef padding) {
  AtenTensorHandle handle;
  HALFGNN_ABI(aoti_torch_aten_pad, x.handle(), padding.data(), static_cast<int64_t>(padding.size()), "constant",
              /*value=*/nullptr, &handle);
  return Tensor(handle);
}
// Sorted values of the first dimension, and their places before.
inline std::tuple<Tensor, Tensor> stable_sort(const Tensor& values) {
  StableIValue stack[] = {abi::value_of(values), abi::some(abi::value_of(true)), abi::value_of(int64_t{0}),
                          abi::value_of(false)};
  abi::check(torch_call_dispatcher("aten::sort", "stable", stack, TORCH_FEATURE_VERSION), "aten::sort");
  return {Tensor(abi::take<AtenTensorHandle>(stack[0])), Tensor(abi::take<AtenTensorHandle>(stack[1]))};
}

}  // namespace halfgnn
