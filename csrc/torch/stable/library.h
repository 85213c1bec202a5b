// Registration with the dispatcher, and the way of an operator's arguments and results through it.
#pragma once

#include <tuple>
#include <vector>

#include "../tensor.h"

namespace halfgnn {
namespace abi {

// An argument of type T while the operator runs: `get` gives it to the operator.
template <class T>
struct Argument {  // numbers and bool
  T get;
  explicit Argument(StableIValue value) : get(take<T>(value)) {}
};
template <>
struct Argument<Tensor> {
  Tensor get;
  explicit Argument(StableIValue value) : get(take<AtenTensorHandle>(value)) {}
};
template <>
struct Argument<OptionalTensor> {
  OptionalTensor get;
  explicit Argument(StableIValue value) {
    if (value != no_value()) get.emplace(take<AtenTensorHandle>(take_some(value)));
  }
};
template <>
struct Argument<ScalarType> {
  ScalarType get;
  explicit Argument(StableIValue value) : get(scalar_type(take<int32_t>(value))) {}
};
template <>
struct Argument<std::optional<ScalarType>> {
  std::optional<ScalarType> get;
  explicit Argument(StableIValue value) {
    if (value != no_value()) get = scalar_type(take<int32_t>(take_some(value)));
  }
};
template <>
struct Argument<string_view> {
  String string;
  string_view get;
  explicit Argument(StableIValue value) : string(value), get(string.view()) {}
};
template <>
struct Argument<IntArrayRef> {
  std::vector<int64_t> numbers;
  IntArrayRef get;
  explicit Argument(StableIValue value) {
    const List list(take<StableListHandle>(value));
    numbers.resize(list.size());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = take<int64_t>(list[i]);
    get = numbers;
  }
};
template <>
struct Argument<TensorList> {
  TensorList get;
  explicit Argument(StableIValue value) {
    const List list(take<StableListHandle>(value));
    for (size_t i = 0; i < list.size(); ++i) get.emplace_back(take<AtenTensorHandle>(list[i]));
  }
};
template <>
struct Argument<OptionalTensorList> {
  OptionalTensorList get;
  explicit Argument(StableIValue value) {
    const List list(take<StableListHandle>(value));
    for (size_t i = 0; i < list.size(); ++i) get.push_back(Argument<OptionalTensor>(list[i]).get);
  }
};

inline StableIValue given(Tensor& result) { return value_of(result.release()); }
inline StableIValue given(const TensorList& results) { return value_of(results); }
inline void put(StableIValue* stack, Tensor result) { stack[0] = given(result); }
template <class... Results>
void put(StableIValue* stack, std::tuple<Results...> results) {
  std::apply([&](auto&... result) { ((*stack++ = given(result)), ...); }, results);
}

// kFunction as the dispatcher calls it: arguments are taken from the stack, and results put there.
template <auto kFunction, class Result, class... Parameters, size_t... I>
void call(StableIValue* stack, Result (*)(Parameters...), std::index_sequence<I...>) {
  std::tuple<Argument<std::decay_t<Parameters>>...> arguments(stack[I]...);
  if constexpr (std::is_void_v<Result>) {
    kFunction(std::get<I>(arguments).get...);
  } else {
    put(stack, kFunction(std::get<I>(arguments).get...));
  }
}
template <class Result, class... Parameters>
constexpr size_t arity(Result (*)(Parameters...)) {
  return sizeof...(Parameters);
}
template <auto kFunction>
void boxed(StableIValue* stack, uint64_t num_arguments, uint64_t) {
  constexpr size_t kArity = arity(kFunction);
  if (num_arguments != kArity) fail("a call with the wrong number of arguments");
  call<kFunction>(stack, kFunction, std::make_index_sequence<kArity>());
}

}  // namespace abi

class Library {
 public:
  explicit Library(TorchLibraryHandle library) : library_(library) {}
  void def(const char* schema) { HALFGNN_ABI(aoti_torch_library_def, library_, schema); }
  template <auto kFunction>
  void impl(const char* name) {
    HALFGNN_ABI(torch_library_impl, library_, name, &abi::boxed<kFunction>, TORCH_FEATURE_VERSION);
  }

 private:
  TorchLibraryHandle library_;
};

namespace abi {

// Registers when the library is loaded. What is registered stays until the process ends.
struct Registration {
  Registration(const char* key, void (*block)(Library), const char* file, uint32_t line) {
    TorchLibraryHandle library;
    if (key == nullptr) {
      HALFGNN_ABI(aoti_torch_library_init_def, "halfgnn", file, line, &library);
    } else {
      HALFGNN_ABI(aoti_torch_library_init_impl, "halfgnn", key, file, line, &library);
    }
    block(Library(library));
  }
};

}  // namespace abi
}  // namespace halfgnn

// Blocks in which `m` is a Library: of the schemas of halfgnn, and of the kernels of a dispatch key.
#define HALFGNN_SCHEMAS(m)                                                                                          \
  static void halfgnn_schemas(::halfgnn::Library m);                                                                \
  static const ::halfgnn::abi::Registration halfgnn_register_schemas(nullptr, halfgnn_schemas, __FILE__, __LINE__); \
  static void halfgnn_schemas(::halfgnn::Library m)
#define HALFGNN_KERNELS(key, m) HALFGNN_KERNELS_OF(key, m)
#define HALFGNN_KERNELS_OF(key, m)                                                                                   \
  static void halfgnn_kernels_##key(::halfgnn::Library m);                                                           \
  static const ::halfgnn::abi::Registration halfgnn_register_##key(#key, halfgnn_kernels_##key, __FILE__, __LINE__); \
  static void halfgnn_kernels_##key(::halfgnn::Library m)
