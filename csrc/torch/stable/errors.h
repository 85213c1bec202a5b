// Standard exceptions, of which PyTorch's calls from Python make ValueErrors and IndexErrors. For other types of errors
// there is no such exception: their messages begin with their type, and halfgnn/_stable_abi.py raises it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace halfgnn::errors {

template <class... Parts>
[[gnu::cold, gnu::noinline]] std::string message(const Parts&... parts) {
  std::ostringstream text;
  ((text << parts), ...);
  return text.str();
}

}  // namespace halfgnn::errors

#define HALFGNN_CHECK(condition, Error, ...) \
  if (__builtin_expect(!(condition), false)) throw Error(::halfgnn::errors::message(__VA_ARGS__))

#define CHECK_VALUE(condition, ...) HALFGNN_CHECK(condition, std::invalid_argument, __VA_ARGS__)
#define CHECK_INDEX(condition, ...) HALFGNN_CHECK(condition, std::out_of_range, __VA_ARGS__)
#define CHECK_TYPE(condition, ...) HALFGNN_CHECK(condition, std::runtime_error, "TypeError: ", __VA_ARGS__)
#define CHECK_IMPLEMENTED(condition, ...) \
  HALFGNN_CHECK(condition, std::runtime_error, "NotImplementedError: ", __VA_ARGS__)
