#include "model/kv_cache.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace ipex_lookahead {
namespace {

std::shared_ptr<uint8_t> new_page(int64_t bytes) {
  const size_t size = (size_t(bytes) + 63) & ~size_t(63);
  void* memory = std::aligned_alloc(64, size);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, size);
  return std::shared_ptr<uint8_t>(static_cast<uint8_t*>(memory), std::free);
}

}  // namespace

void KVCache::prepare(int64_t rows) {
  const int64_t needed = (length_ + rows + kPage - 1) / kPage;
  pages_.reserve(size_t(needed));
  raw_.reserve(size_t(needed));
  for (int64_t page = length_ / kPage; page < needed; ++page) {
    if (page < int64_t(pages_.size()) && pages_[page].use_count() == 1) continue;
    auto fresh = new_page(shape_.page_bytes());
    if (page < int64_t(pages_.size())) {  // shared with a fork: go on with a copy
      std::memcpy(fresh.get(), pages_[page].get(), size_t(shape_.page_bytes()));
      pages_[page] = std::move(fresh);
      raw_[page] = pages_[page].get();
    } else {
      pages_.push_back(std::move(fresh));
      raw_.push_back(pages_.back().get());
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
}

void KVCache::crop(int64_t length) {
  const Claim claim(claimable_, "crop");
  if (length < 0 || length > length_)
    throw std::invalid_argument("crop: length " + std::to_string(length) + " is not between 0 and the present " +
                                std::to_string(length_));
  length_ = length;
  parents_.clear();
  const size_t needed = size_t((length + kPage - 1) / kPage);
  pages_.resize(needed);
  raw_.resize(needed);
}

// Where a step may still be kept, its last page is not shared: keep() moves slots there.
KVCache KVCache::fork() {
  const Claim claim(claimable_, "fork");
  KVCache other(shape_);
  other.length_ = length_;
  const size_t needed = size_t((length_ + kPage - 1) / kPage);
  other.pages_.assign(pages_.begin(), pages_.begin() + std::ptrdiff_t(needed));
  if (!parents_.empty() && length_ % kPage != 0) {
    other.pages_.back() = new_page(shape_.page_bytes());
    std::memcpy(other.pages_.back().get(), pages_[needed - 1].get(), size_t(shape_.page_bytes()));
  }
  for (const auto& page : other.pages_) other.raw_.push_back(page.get());
  return other;
}

void KVCache::fill_blank(int64_t length) {
  const Claim claim(claimable_, "fill_blank");
  if (length_ != 0) throw std::invalid_argument("fill_blank: the cache holds " + std::to_string(length_) + " positions");
  if (length < 0 || length > shape_.max_context)
    throw std::invalid_argument("fill_blank: length " + std::to_string(length) + " is not between 0 and the context of " +
                                std::to_string(shape_.max_context) + " tokens");
  prepare(length);
  length_ = length;
  parents_.clear();
}

void KVCache::move_slot(int64_t from, int64_t to) {
  const int64_t d = shape_.head_dim, size = kv_bytes(shape_.format), row = shape_.head_dim16() * size;
  uint8_t *source = raw_[size_t(from / kPage)], *target = raw_[size_t(to / kPage)];
  const int64_t s = from % kPage, t = to % kPage;
  for (int layer = 0; layer < shape_.layers; ++layer)
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const int64_t k = shape_.k_offset(layer, head), v = shape_.v_offset(layer, head);
      const uint8_t* key_from = source + k + (s / kLanes * d * kLanes + s % kLanes) * size;
      uint8_t* key_to = target + k + (t / kLanes * d * kLanes + t % kLanes) * size;
      for (int64_t i = 0; i < d; ++i) std::memcpy(key_to + i * kLanes * size, key_from + i * kLanes * size, size_t(size));
      std::memcpy(target + v + t * row, source + v + s * row, size_t(row));
      if (shape_.format == KvFormat::int8) {
        const int64_t at = shape_.scale_offset(layer, head);
        float* to_scales = reinterpret_cast<float*>(target + at);
        const float* from_scales = reinterpret_cast<const float*>(source + at);
        to_scales[t] = from_scales[s];
        to_scales[kPage + t] = from_scales[kPage + s];
      }
    }
}

}  // namespace ipex_lookahead
