#include "kv_cache.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace ipex_lookahead {
namespace {

std::shared_ptr<uint16_t> new_page(int64_t elements) {
  const size_t bytes = (size_t(elements) * sizeof(uint16_t) + 63) & ~size_t(63);
  void* memory = std::aligned_alloc(64, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return std::shared_ptr<uint16_t>(static_cast<uint16_t*>(memory), std::free);
}

}  // namespace

void KVCache::prepare(int64_t rows) {
  const int64_t needed = (length_ + rows + kPage - 1) / kPage;
  pages_.reserve(size_t(needed));
  raw_.reserve(size_t(needed));
  for (int64_t page = length_ / kPage; page < needed; ++page) {
    if (page < int64_t(pages_.size()) && pages_[page].use_count() == 1) continue;
    auto fresh = new_page(shape_.page_elements());
    if (page < int64_t(pages_.size())) {  // shared with a fork: go on with a copy
      std::memcpy(fresh.get(), pages_[page].get(), size_t(shape_.page_elements()) * sizeof(uint16_t));
      pages_[page] = std::move(fresh);
      raw_[page] = pages_[page].get();
    } else {
      pages_.push_back(std::move(fresh));
      raw_.push_back(pages_.back().get());
    }
  }
}

void KVCache::keep(const int64_t* rows, int64_t count) {
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
  if (length < 0 || length > length_)
    throw std::invalid_argument("crop: length " + std::to_string(length) + " is not between 0 and the present " +
                                std::to_string(length_));
  length_ = length;
  parents_.clear();
  const size_t needed = size_t((length + kPage - 1) / kPage);
  pages_.resize(needed);
  raw_.resize(needed);
}

KVCache KVCache::fork() const {
  KVCache other(shape_);
  other.length_ = length_;
  const size_t needed = size_t((length_ + kPage - 1) / kPage);
  other.pages_.assign(pages_.begin(), pages_.begin() + needed);
  other.raw_.assign(raw_.begin(), raw_.begin() + needed);
  return other;
}

void KVCache::move_slot(int64_t from, int64_t to) {
  const int64_t d = shape_.head_dim, padded = shape_.head_dim16();
  for (int layer = 0; layer < shape_.layers; ++layer)
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const int64_t k = shape_.k_offset(layer, head), v = shape_.v_offset(layer, head);
      auto key = [&](int64_t slot) {
        return raw_[size_t(slot / kPage)] + k + slot % kPage / kLanes * d * kLanes + slot % kLanes;
      };
      auto value = [&](int64_t slot) { return raw_[size_t(slot / kPage)] + v + slot % kPage * padded; };
      const uint16_t* key_from = key(from);
      uint16_t* key_to = key(to);
      for (int64_t i = 0; i < d; ++i) key_to[i * kLanes] = key_from[i * kLanes];
      std::memcpy(value(to), value(from), size_t(padded) * sizeof(uint16_t));
    }
}

}  // namespace ipex_lookahead
