// Registration with the dispatcher.
#pragma once

#include <torch/library.h>

namespace halfgnn {

class Library {
 public:
  explicit Library(torch::Library& library) : library_(library) {}
  void def(const char* schema) { library_.def(schema); }
  template <auto kFunction>
  void impl(const char* name) {
    library_.impl(name, kFunction);
  }

 private:
  torch::Library& library_;
};

}  // namespace halfgnn

// Blocks in which `m` is a Library: of the schemas of halfgnn, and of the kernels of a dispatch key.
#define HALFGNN_SCHEMAS(m)                                              \
  static void halfgnn_schemas(::halfgnn::Library m);                    \
  TORCH_LIBRARY(halfgnn, m) { halfgnn_schemas(::halfgnn::Library(m)); } \
  static void halfgnn_schemas(::halfgnn::Library m)
#define HALFGNN_KERNELS(key, m) HALFGNN_KERNELS_OF(key, m)
#define HALFGNN_KERNELS_OF(key, m)                                                      \
  static void halfgnn_kernels_##key(::halfgnn::Library m);                              \
  TORCH_LIBRARY_IMPL(halfgnn, key, m) { halfgnn_kernels_##key(::halfgnn::Library(m)); } \
  static void halfgnn_kernels_##key(::halfgnn::Library m)
