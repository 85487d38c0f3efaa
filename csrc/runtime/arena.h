// Memory for weights and pages: 64-byte aligned, zeroed, with huge pages advised. Freed with the arena only.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "runtime/system_pages.h"

namespace ipex_lookahead {

// A vector with page-aligned memory: no value straddles cache lines by chance, and the speed of a program does not depend on
// where the heap happens to be.
template <typename T>
struct PageAllocator {
  using value_type = T;
  PageAllocator() = default;
  template <typename U>
  PageAllocator(const PageAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(4096))); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(4096)); }
  template <typename U>
  bool operator==(const PageAllocator<U>&) const { return true; }
  template <typename U>
  bool operator!=(const PageAllocator<U>&) const { return false; }
};
template <typename T>
using Buffer = std::vector<T, PageAllocator<T>>;

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (auto& c : chunks_) munmap(c.base, c.size);
  }

  // Returns zeroed memory that lives as long as the arena. Throws std::bad_alloc.
  void* take(size_t bytes) {
    bytes = (bytes + 63) & ~size_t(63);
    if (chunks_.empty() || chunks_.back().size - chunks_.back().used < bytes) grow(bytes);
    Chunk& c = chunks_.back();
    void* at = static_cast<uint8_t*>(c.base) + c.used;
    c.used += bytes;
    return at;
  }

  size_t used() const {
    size_t total = 0;
    for (auto& c : chunks_) total += c.used;
    return total;
  }

 private:
  struct Chunk {
    void* base;
    size_t size, used;
  };
  static constexpr size_t kChunk = size_t(64) << 20;

  void grow(size_t bytes) {
    const size_t wanted = bytes > kChunk ? bytes : kChunk;
    const size_t size = (wanted + kHugePage - 1) / kHugePage * kHugePage;
    chunks_.push_back({map_zeros(size, MAP_NORESERVE), size, 0});
  }

  std::vector<Chunk> chunks_;
};

}  // namespace ipex_lookahead
