// Keys and values of one sequence, in pages of 64 positions that sequences may share.
//
// Slot s of a cache is position s once committed. The rows of a step are written to the slots after `length`; keep()
// moves the accepted path's into position order, and what lies beyond is simply overwritten by the next step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "model/claim.h"

namespace ipex_lookahead {

struct CacheShape {
  int layers = 0, kv_heads = 0, head_dim = 0;
  KvFormat format = KvFormat::fp16;
  int64_t max_context = 0;
  int head_dim16() const { return (head_dim + kLanes - 1) / kLanes * kLanes; }
  // Bytes of one head's keys, values and scales in a page, and where each begins.
  int64_t key_bytes() const { return int64_t(kPage) * head_dim * kv_bytes(format); }
  int64_t value_bytes() const { return int64_t(kPage) * head_dim16() * kv_bytes(format); }
  int64_t scale_bytes() const { return format == KvFormat::int8 ? 2 * kPage * int64_t(sizeof(float)) : 0; }
  int64_t head_bytes() const { return key_bytes() + value_bytes() + scale_bytes(); }
  int64_t k_offset(int layer, int head) const { return (int64_t(layer) * kv_heads + head) * head_bytes(); }
  int64_t v_offset(int layer, int head) const { return k_offset(layer, head) + key_bytes(); }
  int64_t scale_offset(int layer, int head) const { return v_offset(layer, head) + value_bytes(); }
  int64_t page_bytes() const { return int64_t(layers) * kv_heads * head_bytes(); }
  bool operator==(const CacheShape& o) const {
    return layers == o.layers && kv_heads == o.kv_heads && head_dim == o.head_dim && format == o.format &&
           max_context == o.max_context;
  }
};

// What changes a cache, and a step that runs on it, claims it meanwhile: from another thread each of these is refused with
// std::runtime_error, whichever comes second.
class KVCache {
 public:
  explicit KVCache(const CacheShape& shape) : shape_(shape) {}

  int64_t length() const { return length_; }
  const CacheShape& shape() const { return shape_; }

  // For the steps that run on it; the functions below that claim are keep, crop, fill_blank and fork.
  Claimable& claimable() { return claimable_; }

  // Makes the slots [length, length + rows) writable: pages exist and are not shared. Throws std::bad_alloc, and then
  // the cache is as it was.
  void prepare(int64_t rows);
  uint8_t* const* pages() const { return raw_.data(); }

  // The parents of the step's rows, which keep() checks paths against.
  void set_step(const int32_t* parents, int64_t rows) { parents_.assign(parents, parents + rows); }

  // Throws std::invalid_argument if `rows` is no path of the last step from its root.
  void keep(const int64_t* rows, int64_t count);
  void crop(int64_t length);
  // Commits `length` positions of zeros, at most the context, to an empty cache: for measuring steps at that length.
  void fill_blank(int64_t length);
  KVCache fork();

 private:
  void move_slot(int64_t from, int64_t to);

  CacheShape shape_;
  Claimable claimable_;
  int64_t length_ = 0;
  std::vector<std::shared_ptr<uint8_t>> pages_;
  std::vector<uint8_t*> raw_;  // pages_, as the kernels read them
  std::vector<int32_t> parents_;
};

}  // namespace ipex_lookahead
