// Arrays of rows of edge data, of one type and width, of which some may not be there. A lane keeps where its vectors
// are in the first that is, and finds them in the others by their distance from it.
#pragma once

#include <cstdint>

namespace halfgnn::cuda {

template <int kCount>
struct EdgeArrays {
  const void* first;
  int64_t distance[kCount];  // in bytes
  bool exists[kCount];

  int64_t count() const {
    int64_t count = 0;
    for (const bool exists_one : exists) count += exists_one;
    return count;
  }
};

template <class... Data>
EdgeArrays<sizeof...(Data)> edge_arrays_of(const Data*... data) {
  EdgeArrays<sizeof...(Data)> arrays{};
  for (const void* one : {static_cast<const void*>(data)...}) {
    if (arrays.first == nullptr) arrays.first = one;
  }
  int i = 0;
  for (const void* one : {static_cast<const void*>(data)...}) {
    arrays.exists[i] = one != nullptr;
    if (one != nullptr) arrays.distance[i] = reinterpret_cast<intptr_t>(one) - reinterpret_cast<intptr_t>(arrays.first);
    ++i;
  }
  return arrays;
}

}  // namespace halfgnn::cuda
