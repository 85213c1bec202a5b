// What GPUs do in a second: a table of known ones, and a rule for all others.
//
//   measured   gpu-benches, https://github.com/RRZE-HPC/gpu-benches, results of February 2025: "Eff. bw" of
//   gpu-l2-cache
//              for sets of 8 to 28 MB, and "scale" of gpu-stream, a copy with one product
//   rule       per multiprocessor and clock 35 bytes from the L2 cache of a GPU with HBM (A100 35.5, H100 PCIe 34.5)
//   and
//              15 of others (L40 14.7), and nine tenths of the nominal bandwidth of memory (L40 0.90, A100 0.85 to
//              0.89, H100 PCIe 0.83)
//
// Sizes, clocks (boost) and nominal bandwidths are those of NVIDIA's data sheets. An H100 SXM and an H200 are taken to
// run at 1.7 GHz under load.
#pragma once

#include <string_view>

#include "model.h"

namespace halfgnn::cuda {

constexpr double kHbmCacheBytes = 35, kOtherCacheBytes = 15;  // per multiprocessor and clock
constexpr double kCopyShare = 0.9;                            // of the nominal bandwidth
// Of memory of which CUDA names neither clock nor bus, in bytes per second, of a GPU without HBM: that which CPU and
// GPU share. 0.273 TB/s nominal on a GB10, and on a Jetson Thor; 0.205 on a Jetson Orin.
constexpr double kSharedMemory = 0.3e12;
constexpr int kSchedulers = 4;  // of a multiprocessor; each issues an instruction per clock

struct Gpu {
  std::string_view name;  // as CUDA has it
  int64_t multiprocessors;
  double clock;  // in GHz
  int64_t l2_mib, memory_gib;
  double cache, memory;  // in TB/s

  Rates rates() const {
    return {cache * 1e12, memory * 1e12, static_cast<double>(multiprocessors * kSchedulers) * clock * 1e9};
  }
};

constexpr Gpu kGpus[] = {
    // L2: that of the 80 GB model. Memory: measured, 1.56 TB/s nominal.
    {"NVIDIA A100-SXM4-40GB", 108, 1.41, 40, 40, 5.4, 1.38},
    // Measured; 2.04 TB/s nominal.
    {"NVIDIA A100-SXM4-80GB", 108, 1.41, 40, 80, 5.4, 1.74},
    // Measured; 2.04 TB/s nominal.
    {"NVIDIA H100 PCIe", 114, 1.755, 50, 80, 6.9, 1.70},
    // L2: 7.0 TB/s of an H100 PCIe, times 132 / 114 multiprocessors. Memory: rule, 3.35 TB/s nominal.
    {"NVIDIA H100 80GB HBM3", 132, 1.7, 50, 80, 8.1, 3.0},
    // L2: measured (9.8 to 9.5 for sets of 17 to 37 MB), and by halfgnn's gather_limit (9.7). Memory: rule, 4.8 TB/s
    // nominal; reads alone reach 3.9. Size of L2: what CUDA says, 60 MiB.
    {"NVIDIA H200", 132, 1.7, 60, 141, 9.6, 4.3},
    // Both measured on an L40, which has as many multiprocessors and the same memory.
    {"NVIDIA L40S", 142, 2.52, 96, 48, 5.2, 0.78},
    // Rule; 1.008 TB/s nominal.
    {"NVIDIA GeForce RTX 4090", 128, 2.52, 72, 24, 4.8, 0.91},
    // Rule; 1.792 TB/s nominal.
    {"NVIDIA GeForce RTX 5090", 170, 2.407, 96, 32, 6.1, 1.61},
    // Rule; 8.0 TB/s nominal.
    {"NVIDIA B200", 148, 1.965, 126, 180, 10.2, 7.2},
};

// What CUDA says of a device. 0: it does not say.
struct DeviceFacts {
  std::string_view name;
  int major, minor;  // compute capability
  int64_t l2_bytes, memory_bytes, multiprocessors;
  double clock, memory_clock;  // in Hz
  int64_t bus_bits;
};

inline bool has_hbm(int major, int minor) { return minor == 0 ? major <= 10 : major == 10; }

// Of a GPU that is not in the table, from its clocks and sizes. What is not known of them is an H100's, but for memory
// that cannot be HBM: with ten times the rate that it has, planners would take reads of it for free.
inline Rates rates_by_rule(const DeviceFacts& facts) {
  Rates rates = Device{}.rates;
  if (facts.multiprocessors > 0 && facts.clock > 0) {
    const double clocks = static_cast<double>(facts.multiprocessors) * facts.clock;
    rates.cache = clocks * (has_hbm(facts.major, facts.minor) ? kHbmCacheBytes : kOtherCacheBytes);
    rates.issue = clocks * kSchedulers;
  }
  // Two transfers per clock.
  const double nominal = 2 * facts.memory_clock * static_cast<double>(facts.bus_bits) / 8;
  if (nominal > 0) {
    rates.memory = kCopyShare * nominal;
  } else if (!has_hbm(facts.major, facts.minor)) {
    rates.memory = kSharedMemory;
  }
  return rates;
}

// A part of a GPU (MIG) has a name of its own, and so has none of the table's rates.
inline Device device_of(const DeviceFacts& facts) {
  Device device{facts.l2_bytes, facts.memory_bytes, facts.multiprocessors, rates_by_rule(facts)};
  for (const Gpu& gpu : kGpus) {
    if (gpu.name == facts.name && gpu.multiprocessors == facts.multiprocessors) device.rates = gpu.rates();
  }
  return device;
}

}  // namespace halfgnn::cuda
