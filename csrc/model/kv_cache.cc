#include "model/kv_cache.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "runtime/system_pages.h"

namespace ipex_lookahead {
namespace {

// `count` pages of zeros behind each other. Large ones are the system's own, not malloc's: they live for minutes among a step's
// arrays, which live for milliseconds, and a heap of both kinds is never given back (a server of a 135M model grew by 10 MiB a
// second). Each is given back by itself, also of many that were made together, as a prompt's are, for huge pages' sake.
std::vector<std::shared_ptr<uint8_t>> new_pages(int64_t bytes, int64_t count) {
  constexpr size_t kLarge = size_t(1) << 17;
  std::vector<std::shared_ptr<uint8_t>> pages;
  pages.reserve(size_t(count));
  if (size_t(bytes) < kLarge) {
    const size_t size = (size_t(bytes) + 63) / 64 * 64;
    while (pages.size() < size_t(count)) {
      void* memory = std::aligned_alloc(64, size);
      if (memory == nullptr) throw std::bad_alloc();
      std::memset(memory, 0, size);
      pages.emplace_back(static_cast<uint8_t*>(memory), std::free);
    }
    return pages;
  }
  // An odd number of system pages: at a distance of many times two, pages drive each other out of the cache's sets.
  const size_t size = ((size_t(bytes) + kSystemPage - 1) / kSystemPage | 1) * kSystemPage;
  uint8_t* const memory = map_zeros(size * size_t(count));
  try {
    while (pages.size() < size_t(count))
      pages.emplace_back(memory + pages.size() * size, [size](uint8_t* page) { munmap(page, size); });
  } catch (...) {  // the page whose owner there was no memory for has been given back
    const size_t gone = pages.size() + 1;
    if (gone < size_t(count)) munmap(memory + gone * size, (size_t(count) - gone) * size);
    throw;
  }
  return pages;
}
std::shared_ptr<uint8_t> new_page(int64_t bytes) { return std::move(new_pages(bytes, 1)[0]); }

// Where one slot's elements lie in a page: `count` of `size` bytes, `stride` bytes apart.
struct SlotPart {
  int64_t begin, stride, size, count;
  void copy(const SlotPart& to, const uint8_t* source, uint8_t* target) const {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(target + to.begin + i * to.stride, source + begin + i * stride, size_t(size));
  }
};

// Keys are [4][head_dim][16], or of int8 [4][head_dim / 4][16][4]; values [64][head_dim16], or of int8 [16][head_dim16][4].
SlotPart key_part(const CacheShape& shape, int64_t offset, int64_t slot) {
  const bool by_fours = shape.format == KvFormat::int8;
  const int64_t size = by_fours ? 4 : 2, count = by_fours ? shape.head_dim / 4 : shape.head_dim;
  return {offset + (slot / kLanes * count * kLanes + slot % kLanes) * size, kLanes * size, size, count};
}
SlotPart value_part(const CacheShape& shape, int64_t offset, int64_t slot) {
  const int64_t row = shape.head_dim16();
  if (shape.format == KvFormat::fp16) return {offset + slot * row * 2, 0, row * 2, 1};
  return {offset + slot / 4 * row * 4 + slot % 4, 4, 1, row};
}

int64_t pages_of(int64_t positions) { return (positions + kPage - 1) / kPage; }

}  // namespace

void KVCache::prepare(int64_t rows) {
  for (size_t g = 0; g < groups_.size(); ++g) grow(g, length_ / kPage, pages_of(length_ + rows));
}

// Makes the pages [first, needed) of a group writable.
void KVCache::grow(size_t group, int64_t first, int64_t needed) {
  Pages& pages = groups_[group];
  pages.held.reserve(size_t(needed));
  pages.raw.reserve(size_t(needed));
  const int64_t bytes = shape_.page_bytes(group);
  const int64_t held = int64_t(pages.held.size());
  for (size_t i = size_t(first); i < size_t(std::min(needed, held)); ++i) {
    if (pages.held[i].use_count() == 1) continue;
    auto fresh = new_page(bytes);  // shared with a fork: go on with a copy
    std::memcpy(fresh.get(), pages.held[i].get(), size_t(bytes));
    pages.held[i] = std::move(fresh);
    pages.raw[i] = pages.held[i].get();
  }
  if (needed <= held) return;
  for (auto& fresh : new_pages(bytes, needed - held)) {
    pages.raw.push_back(fresh.get());
    pages.held.push_back(std::move(fresh));
  }
}

int64_t KVCache::first_needed(size_t group, int64_t length, int64_t spare) const {
  const int64_t window = shape_.groups[group].window;
  return window == 0 ? 0 : std::max<int64_t>(0, length + 1 - window - spare) / kPage;
}

// Gives back what lies behind every window.
void KVCache::give_back() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Pages& pages = groups_[g];
    for (const int64_t first = first_needed(g, length_, kKeptBehind); pages.first < first; ++pages.first) {
      pages.held[size_t(pages.first)].reset();
      pages.raw[size_t(pages.first)] = nullptr;
    }
  }
}

void KVCache::keep(const int64_t* rows, int64_t count) {
  const Claim claim(claimable_, "keep");
  int64_t parent = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= int64_t(parents_.size()))
      throw std::invalid_argument("keep: row " + std::to_string(rows[i]) + " is not one of the last step's " +
                                  std::to_string(parents_.size()) + " rows");
    if (parents_[size_t(rows[i])] != parent)
      throw std::invalid_argument("keep: rows must be a path of the last step, root first; row " +
                                  std::to_string(rows[i]) + " does not follow row " + std::to_string(parent));
    parent = rows[i];
  }
  // A path's rows are strictly ascending (parents come before children), so rows[i] >= i and nothing is overwritten early.
  for (int64_t i = 0; i < count; ++i)
    if (rows[i] != i) move_slot(length_ + rows[i], length_ + i);
  length_ += count;
  parents_.clear();
  give_back();
}

void KVCache::crop(int64_t length) {
  const Claim claim(claimable_, "crop");
  if (length < 0 || length > length_)
    throw std::invalid_argument("crop: length " + std::to_string(length) + " is not between 0 and the present " +
                                std::to_string(length_));
  for (size_t g = 0; g < groups_.size() && length > 0; ++g)
    if (first_needed(g, length, 0) < groups_[g].first)
      throw std::out_of_range("crop: of the keys before position " + std::to_string(length) + " a window of " +
                              std::to_string(shape_.groups[g].window) + " positions has kept only those from " +
                              std::to_string(groups_[g].first * kPage) + " on");
  length_ = length;
  parents_.clear();
  const size_t needed = size_t(pages_of(length));
  for (Pages& pages : groups_) {
    pages.held.resize(needed);
    pages.raw.resize(needed);
    if (needed == 0) pages.first = 0;
  }
}

// Where a step may still be kept, its last page is not shared: keep() moves slots there.
KVCache KVCache::fork() {
  const Claim claim(claimable_, "fork");
  KVCache other(shape_);
  other.length_ = length_;
  const size_t needed = size_t(pages_of(length_));
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Pages& pages = groups_[g];
    Pages& copy = other.groups_[g];
    copy.first = pages.first;
    copy.held.assign(pages.held.begin(), pages.held.begin() + std::ptrdiff_t(needed));
    if (!parents_.empty() && length_ % kPage != 0) {
      copy.held.back() = new_page(shape_.page_bytes(g));
      std::memcpy(copy.held.back().get(), pages.held[needed - 1].get(), size_t(shape_.page_bytes(g)));
    }
    for (const auto& page : copy.held) copy.raw.push_back(page.get());
  }
  return other;
}

void KVCache::fill_blank(int64_t length) {
  const Claim claim(claimable_, "fill_blank");
  if (length_ != 0) throw std::invalid_argument("fill_blank: the cache holds " + std::to_string(length_) + " positions");
  if (length < 0 || length > shape_.max_context)
    throw std::invalid_argument("fill_blank: length " + std::to_string(length) + " is not between 0 and the context of " +
                                std::to_string(shape_.max_context) + " tokens");
  for (size_t g = 0; g < groups_.size(); ++g) {
    Pages& pages = groups_[g];
    pages.first = first_needed(g, length, kKeptBehind);
    pages.held.assign(size_t(pages.first), nullptr);
    pages.raw.assign(size_t(pages.first), nullptr);
    grow(g, pages.first, pages_of(length));
    // Written to: what was never written to is one page of zeros for the whole of it, and in the cache.
    for (int64_t i = pages.first; i < pages_of(length); ++i)
      std::memset(pages.raw[size_t(i)], 0, size_t(shape_.page_bytes(g)));
  }
  length_ = length;
  parents_.clear();
}

void KVCache::move_slot(int64_t from, int64_t to) {
  const int64_t s = from % kPage, t = to % kPage;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<uint8_t*>& raw = groups_[g].raw;
    const uint8_t* source = raw[size_t(from / kPage)];
    uint8_t* target = raw[size_t(to / kPage)];
    for (int layer = 0; layer < shape_.groups[g].layers; ++layer)
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const int64_t k = shape_.k_offset(layer, head), v = shape_.v_offset(g, layer, head);
        key_part(shape_, k, s).copy(key_part(shape_, k, t), source, target);
        value_part(shape_, v, s).copy(value_part(shape_, v, t), source, target);
        if (shape_.format == KvFormat::int8) {
          const int64_t at = shape_.scale_offset(g, layer, head);
          float* to_scales = reinterpret_cast<float*>(target + at);
          const float* from_scales = reinterpret_cast<const float*>(source + at);
          to_scales[t] = from_scales[s];
          to_scales[kPage + t] = from_scales[kPage + s];
        }
      }
  }
}

}  // namespace ipex_lookahead
