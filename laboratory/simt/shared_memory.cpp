#include "shared_memory.h"

#include <link.h>
#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <cstring>
#include <vector>

// Defined by build.py, under the names of all `extern __shared__` variables too.
extern "C" thread_local __attribute__((visibility("hidden"))) char simt_dynamic_shared[simt::kMaxSharedBytes];

namespace simt {
namespace {

constexpr size_t kPiece = 1024;
static_assert(kMaxSharedBytes % kPiece == 0, "build.py aligns dynamic shared memory to pieces");

struct Search {
  const char* inside;
  char* begin = nullptr;
  size_t bytes = 0;
};

int visit(dl_phdr_info* library, size_t, void* data) {
  Search& search = *static_cast<Search*>(data);
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr) & header = library->dlpi_phdr[i];
    char* const begin = static_cast<char*>(library->dlpi_tls_data);
    if (header.p_type != PT_TLS || begin == nullptr) continue;
    if (search.inside < begin || search.inside >= begin + header.p_memsz) continue;
    search.begin = begin;
    search.bytes = header.p_memsz;
    return 1;
  }
  return 0;
}

}  // namespace

SharedMemory::SharedMemory(size_t dynamic_bytes) : dynamic_(simt_dynamic_shared), dynamic_bytes_(dynamic_bytes) {
  // The layout is the same for all threads.
  static const Search found = [this] {
    Search search{dynamic_};
    dl_iterate_phdr(visit, &search);
    return search;
  }();
  static const ptrdiff_t offset = dynamic_ - found.begin;
  segment_ = dynamic_ - offset;
  segment_bytes_ = found.bytes;
  used_.resize((segment_bytes_ + kPiece - 1) / kPiece);
  std::memset(segment_, kGarbage, segment_bytes_);
  __asan_poison_memory_region(dynamic_ + dynamic_bytes, kMaxSharedBytes - dynamic_bytes);
}

SharedMemory::~SharedMemory() { __asan_unpoison_memory_region(dynamic_, kMaxSharedBytes); }

// Looks after 1, 2, 4, 8, ... blocks: looking costs more than a small block.
void SharedMemory::begin_block() {
  if (blocks_ > 0 && (blocks_ & (blocks_ - 1)) == 0) find_used();
  ++blocks_;
  for (size_t piece = 0; piece < used_.size(); ++piece) {
    if (used_[piece]) std::memset(segment_ + piece * kPiece, kGarbage, piece_bytes(piece));
  }
  std::memset(dynamic_, kGarbage, dynamic_bytes_);
}

void SharedMemory::find_used() {
  static const std::vector<char> garbage(kPiece, static_cast<char>(kGarbage));
  for (size_t piece = 0; piece < used_.size(); ++piece) {
    const char* const begin = segment_ + piece * kPiece;
    const bool is_dynamic = begin >= dynamic_ && begin < dynamic_ + kMaxSharedBytes;
    if (!is_dynamic && std::memcmp(begin, garbage.data(), piece_bytes(piece)) != 0) used_[piece] = true;
  }
}

size_t SharedMemory::piece_bytes(size_t piece) const { return std::min(kPiece, segment_bytes_ - piece * kPiece); }

}  // namespace simt
