// What the implementation by the stable ABI is made of: C functions of PyTorch, of torch 2.10, and values on their way
// through its dispatcher.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#if TORCH_FEATURE_VERSION != TORCH_VERSION_2_10_0
#error "a library by the stable ABI is built with TORCH_TARGET_VERSION of torch 2.10, so that no newer function gets in"
#endif

namespace halfgnn {

using c10::DeviceType;
using c10::ScalarType;

namespace abi {

// PyTorch has written what went wrong to stderr: no function gives the message.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const char* what) {
  throw std::runtime_error(std::string(what) + " failed, see the message of PyTorch above");
}
inline void check(AOTITorchError error, const char* what) {
  if (__builtin_expect(error != AOTI_TORCH_SUCCESS, false)) fail(what);
}
#define HALFGNN_ABI(function, ...) ::halfgnn::abi::check(function(__VA_ARGS__), #function)

// ---- Numbers of types, which may differ between this library and PyTorch. A type that this library does not compute
// with keeps PyTorch's number.

struct Numbers {
  std::array<int32_t, 128> to_torch;
  std::array<int8_t, 128> from_torch;
  template <class Pairs>
  explicit Numbers(const Pairs& pairs) {
    for (size_t i = 0; i < to_torch.size(); ++i) {
      to_torch[i] = static_cast<int32_t>(i);
      from_torch[i] = static_cast<int8_t>(i);
    }
    for (const auto& [own, torch] : pairs) {
      to_torch.at(static_cast<size_t>(own)) = torch;
      from_torch.at(static_cast<size_t>(torch)) = static_cast<int8_t>(own);
    }
  }
};
inline const Numbers& scalar_types() {
  static const Numbers numbers(std::array{
      std::pair{ScalarType::Half, aoti_torch_dtype_float16()},
      std::pair{ScalarType::BFloat16, aoti_torch_dtype_bfloat16()},
      std::pair{ScalarType::Float, aoti_torch_dtype_float32()},
      std::pair{ScalarType::Double, aoti_torch_dtype_float64()},
      std::pair{ScalarType::Byte, aoti_torch_dtype_uint8()},
      std::pair{ScalarType::Char, aoti_torch_dtype_int8()},
      std::pair{ScalarType::Short, aoti_torch_dtype_int16()},
      std::pair{ScalarType::Int, aoti_torch_dtype_int32()},
      std::pair{ScalarType::Long, aoti_torch_dtype_int64()},
      std::pair{ScalarType::Bool, aoti_torch_dtype_bool()},
      std::pair{ScalarType::ComplexFloat, aoti_torch_dtype_complex64()},
      std::pair{ScalarType::ComplexDouble, aoti_torch_dtype_complex128()},
      std::pair{ScalarType::Float8_e4m3fn, aoti_torch_dtype_float8_e4m3fn()},
      std::pair{ScalarType::Float8_e5m2, aoti_torch_dtype_float8_e5m2()},
  });
  return numbers;
}
inline const Numbers& device_types() {
  static const Numbers numbers(std::array{
      std::pair{DeviceType::CPU, aoti_torch_device_type_cpu()},
      std::pair{DeviceType::CUDA, aoti_torch_device_type_cuda()},
      std::pair{DeviceType::Meta, aoti_torch_device_type_meta()},
      std::pair{DeviceType::XPU, aoti_torch_device_type_xpu()},
      std::pair{DeviceType::MPS, aoti_torch_device_type_mps()},
      std::pair{DeviceType::PrivateUse1, aoti_torch_device_type_privateuse1()},
  });
  return numbers;
}
inline int32_t number_of(ScalarType type) { return scalar_types().to_torch.at(static_cast<size_t>(type)); }
inline int32_t number_of(DeviceType type) { return device_types().to_torch.at(static_cast<size_t>(type)); }
inline ScalarType scalar_type(int32_t number) {
  return static_cast<ScalarType>(scalar_types().from_torch.at(static_cast<size_t>(number)));
}
inline DeviceType device_type(int32_t number) {
  return static_cast<DeviceType>(device_types().from_torch.at(static_cast<size_t>(number)));
}

// ---- Values in 64 bits: a handle, a number, or the address of what does not fit. Whoever takes a value owns it.

template <class T>
StableIValue value_of(T x) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(StableIValue));
  StableIValue value = 0;
  std::memcpy(&value, &x, sizeof(T));
  return value;
}
template <class T>
T take(StableIValue value) {
  T x;
  std::memcpy(&x, &value, sizeof(T));
  return x;
}
inline StableIValue value_of(ScalarType type) { return value_of(number_of(type)); }
inline StableIValue no_value() { return 0; }
// Of an optional argument that is given.
inline StableIValue some(StableIValue value) { return value_of(new StableIValue(value)); }
inline StableIValue take_some(StableIValue value) {
  auto* const some = take<StableIValue*>(value);
  const StableIValue inner = *some;
  delete some;
  return inner;
}

class List {
 public:
  explicit List(StableListHandle handle) : handle_(handle) {}
  ~List() {
    if (handle_ != nullptr) torch_delete_list(handle_);
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  size_t size() const {
    size_t size;
    HALFGNN_ABI(torch_list_size, handle_, &size);
    return size;
  }
  StableIValue operator[](size_t i) const {
    StableIValue value;
    HALFGNN_ABI(torch_list_get_item, handle_, i, &value);
    return value;
  }
  void push_back(StableIValue value) { HALFGNN_ABI(torch_list_push_back, handle_, value); }
  StableIValue release() { return value_of(std::exchange(handle_, nullptr)); }

 private:
  StableListHandle handle_;
};
// Room for so many values.
inline List new_list(size_t size) {
  StableListHandle handle;
  HALFGNN_ABI(torch_new_list_reserve_size, size, &handle);
  return List(handle);
}

class String {
 public:
  explicit String(StableIValue value) : handle_(take<StringHandle>(value)) {}
  ~String() { torch_delete_string(handle_); }
  String(const String&) = delete;
  String& operator=(const String&) = delete;

  std::string_view view() const {
    const char* data;
    size_t size;
    HALFGNN_ABI(torch_string_c_str, handle_, &data);
    HALFGNN_ABI(torch_string_length, handle_, &size);
    return {data, size};
  }

 private:
  StringHandle handle_;
};

}  // namespace abi
}  // namespace halfgnn
