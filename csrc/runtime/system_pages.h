// Zeroed memory of the system's own, huge pages advised where it spans some: a walk over much memory waits for the processor's
// tables of pages else (attention over 4,096 int8 positions: a seventh of its time).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace ipex_lookahead {

constexpr size_t kSystemPage = 4096, kHugePage = size_t(2) << 20;

// `size` bytes, a multiple of kSystemPage, of which any part of whole system pages may be unmapped by itself. `flags` are
// mmap's. Throws std::bad_alloc.
inline uint8_t* map_zeros(size_t size, int flags = 0) {
  const size_t room = size < kHugePage ? 0 : kHugePage;  // to move the start up to where a huge page may lie
  void* raw = mmap(nullptr, size + room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  uint8_t* base = static_cast<uint8_t*>(raw);
  if (room == 0) return base;
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(base) % kHugePage) % kHugePage;
  if (before > 0) munmap(base, before);
  base += before;
  if (room > before) munmap(base + size, room - before);
  madvise(base, size, MADV_HUGEPAGE);  // advice only: without huge pages it is merely slower
  return base;
}

}  // namespace ipex_lookahead
