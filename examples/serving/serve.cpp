// Runs a model that export.py has compiled, without Python: serve MODEL INPUTS OUTPUT.
//
// It links libtorch and halfgnn's library, whose operators the model calls by name.

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

namespace {

std::vector<char> bytes_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, path, " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::cerr << "usage: serve MODEL INPUTS OUTPUT\n";
    return 2;
  }
  const c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  std::vector<at::Tensor> inputs;
  const c10::IValue loaded = torch::pickle_load(bytes_of(argv[2]));
  for (const c10::IValue& input : loaded.toListRef()) inputs.push_back(input.toTensor());

  std::vector<at::Tensor> outputs = model.run(inputs);
  constexpr int kRuns = 20;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kRuns; ++i) outputs = model.run(inputs);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;

  const std::vector<char> pickled = torch::pickle_save(outputs[0]);
  std::ofstream(argv[3], std::ios::binary).write(pickled.data(), static_cast<std::streamsize>(pickled.size()));
  std::cout << "output " << outputs[0].sizes() << ", " << time.count() / kRuns << " ms per call\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << "serve: " << error.what() << "\n";
  return 1;
}
