// CUDA's execution model on one thread of the host: what the headers ask of runtime.cpp.
//
// A kernel runs block after block, in random order. Every lane is a fiber with a stack of its own. A lane runs until it
// reaches a collective (a shuffle, a vote, a barrier) and goes on once all lanes that the collective names have
// arrived; which lane runs next is drawn from a seed. So a result that depends on an order that CUDA does not promise
// differs from seed to seed.
//
// What CUDA leaves undefined is an error here: lanes that wait for one that exited or waits for something else,
// different collectives at one time, a shuffle from a lane that its mask does not name. A failed kernel is abandoned
// where it stands, and its launch throws std::runtime_error.
#pragma once

#include <vector_types.h>

#include <cstdint>

// As in CUDA, but variables: set whenever a lane goes on.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace simt {

// A place in the source, for messages.
struct Site {
  const char* file;
  int line;
};
constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

enum class Collective : uint8_t {
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kAll,
  kAny,
  kReduceMax,
  kSyncWarp,
  kSyncThreads,
  kSyncThreadsCount,
};

struct Request {
  Collective kind;
  uint8_t bytes;     // of a shuffled value
  uint8_t width;     // of a shuffle
  uint32_t mask;     // lanes of the warp that take part; not read for barriers of the block
  uint32_t operand;  // of a shuffle: the lane, distance or mask
  uint64_t value;    // shuffled bits, a vote, or the bits of a number of 32
  Site site;
};

// Returns, when all have arrived, what this lane gets.
uint64_t collective(const Request& request);

// __threadfence() of this lane; and around an atomic of it, whose accesses to global memory are no others' races.
void fence();
void begin_atomic(const void* address, unsigned bytes);
void end_atomic();

// The lane that runs now, 0 ... 31.
int current_lane();

// The architecture of the device, of device.h's settings: 900 for sm_90.
int arch();

// Fails the kernel that runs now, with this message and where it happened.
[[noreturn]] void fail(const char* message, Site site);

}  // namespace simt
