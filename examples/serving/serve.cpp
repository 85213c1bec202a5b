// Runs a model that export.py has compiled, without Python: serve MODEL INPUTS OUTPUT [CALLERS [SECONDS]].
//
// It links libtorch and halfgnn's library, whose operators the model calls by name. With CALLERS, so many threads call
// the model at once; each result must be that of one caller, bit by bit.

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;
using Model = torch::inductor::AOTIModelPackageLoader;

std::vector<char> bytes_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, path, " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// The calls per second of threads that call at once. Each has one thread for its operators.
double calls_per_second(Model& model, const Tensors& inputs, const at::Tensor& expected, int callers, double seconds) {
  std::atomic<int> calls = 0, wrong = 0;
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::duration<double>(seconds);
  std::vector<std::future<void>> threads;
  for (int i = 0; i < callers; ++i) {
    threads.push_back(std::async(std::launch::async, [&] {
      const c10::InferenceMode mode;
      at::set_num_threads(1);
      while (Clock::now() < end) {
        wrong += !at::equal(model.run(inputs)[0], expected);
        ++calls;
      }
    }));
  }
  for (std::future<void>& thread : threads) thread.get();
  TORCH_CHECK(wrong == 0, wrong.load(), " of ", calls.load(), " results of callers at once differ from those of one");
  return calls / std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4 || argc > 6) {
    std::cerr << "usage: serve MODEL INPUTS OUTPUT [CALLERS [SECONDS]]\n";
    return 2;
  }
  const int callers = argc > 4 ? std::stoi(argv[4]) : 0;
  const double seconds = argc > 5 ? std::stod(argv[5]) : 2.0;
  const c10::InferenceMode mode;
  Model model(argv[1], "model", /*run_single_threaded=*/false, /*num_runners=*/std::max(callers, 1));
  Tensors inputs;
  const c10::IValue loaded = torch::pickle_load(bytes_of(argv[2]));
  for (const c10::IValue& input : loaded.toListRef()) inputs.push_back(input.toTensor());

  Tensors outputs = model.run(inputs);
  constexpr int kRuns = 20;
  const auto begin = Clock::now();
  for (int i = 0; i < kRuns; ++i) outputs = model.run(inputs);
  const std::chrono::duration<double, std::milli> time = Clock::now() - begin;

  const std::vector<char> pickled = torch::pickle_save(outputs[0]);
  std::ofstream(argv[3], std::ios::binary).write(pickled.data(), static_cast<std::streamsize>(pickled.size()));
  std::cout << "output " << outputs[0].sizes() << ", " << time.count() / kRuns << " ms per call\n";
  if (callers > 0) {
    std::cout << callers << " callers at once: " << calls_per_second(model, inputs, outputs[0], callers, seconds)
              << " calls per second, all results the same\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "serve: " << error.what() << "\n";
  return 1;
}
