// Keys and values of one sequence, in pages of 64 positions that sequences may share.
//
// Slot s of a cache is position s once committed. The rows of a step are written to the slots after `length`; keep()
// moves the accepted path's into position order, and what lies beyond is simply overwritten by the next step.
//
// Layers with one window share pages of their own, which are given back once the window has passed, with kKeptBehind
// positions to spare: so far a sequence may always be cropped.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "model/claim.h"

namespace ipex_lookahead {

constexpr int64_t kKeptBehind = 1024;

// Layers that see equally far.
struct CacheGroup {
  int64_t window = 0;  // 0: all positions
  int layers = 0;
  bool operator==(const CacheGroup& o) const { return window == o.window && layers == o.layers; }
};

struct CacheShape {
  std::vector<CacheGroup> groups;
  int kv_heads = 0, head_dim = 0;
  KvFormat format = KvFormat::fp16;
  int64_t max_context = 0;
  int head_dim16() const { return (head_dim + kLanes - 1) / kLanes * kLanes; }
  // Bytes of one head's keys, values and scales in a page.
  int64_t key_bytes() const { return int64_t(kPage) * head_dim * kv_bytes(format); }
  int64_t value_bytes() const { return int64_t(kPage) * head_dim16() * kv_bytes(format); }
  int64_t scale_bytes() const { return format == KvFormat::int8 ? 2 * kPage * int64_t(sizeof(float)) : 0; }
  // A page holds the keys of every layer and head, then the values, then the scales: a head's keys are whole pages of the
  // system then, where they are in size, and what fetches memory ahead stops at those. `layer` counts within its group.
  int64_t heads_of(size_t group) const { return int64_t(groups[group].layers) * kv_heads; }
  int64_t k_offset(int layer, int head) const { return (int64_t(layer) * kv_heads + head) * key_bytes(); }
  int64_t v_offset(size_t group, int layer, int head) const {
    return heads_of(group) * key_bytes() + (int64_t(layer) * kv_heads + head) * value_bytes();
  }
  int64_t scale_offset(size_t group, int layer, int head) const {
    return heads_of(group) * (key_bytes() + value_bytes()) + (int64_t(layer) * kv_heads + head) * scale_bytes();
  }
  int64_t page_bytes(size_t group) const { return heads_of(group) * (key_bytes() + value_bytes() + scale_bytes()); }
  bool operator==(const CacheShape& o) const {
    return groups == o.groups && kv_heads == o.kv_heads && head_dim == o.head_dim && format == o.format &&
           max_context == o.max_context;
  }
};

// What changes a cache, and a step that runs on it, claims it meanwhile: from another thread each of these is refused with
// BusyError, whichever comes second.
class KVCache {
 public:
  explicit KVCache(const CacheShape& shape) : shape_(shape), groups_(shape.groups.size()) {}

  int64_t length() const { return length_; }
  const CacheShape& shape() const { return shape_; }

  // For the steps that run on it; the functions below that claim are keep, crop, fill_blank and fork.
  Claimable& claimable() { return claimable_; }

  // Makes the slots [length, length + rows) writable: pages exist and are not shared. Throws std::bad_alloc, and then
  // the cache is as it was.
  void prepare(int64_t rows);
  uint8_t* const* pages(size_t group) const { return groups_[group].raw.data(); }

  // The parents of the step's rows, which keep() checks paths against.
  void set_step(const int32_t* parents, int64_t rows) { parents_.assign(parents, parents + rows); }

  // Throws std::invalid_argument if `rows` is no path of the last step from its root.
  void keep(const int64_t* rows, int64_t count);
  // Throws std::out_of_range where keys that a window would show again have been given back; crop(0) never does.
  void crop(int64_t length);
  // Commits `length` positions of zeros, at most the context, to an empty cache: for measuring steps at that length.
  void fill_blank(int64_t length);
  KVCache fork();

 private:
  struct Pages {
    std::vector<std::shared_ptr<uint8_t>> held;  // null where given back
    std::vector<uint8_t*> raw;                   // held, as the kernels read them
    int64_t first = 0;                           // those before were given back
  };

  // The first page of a group that a sequence of that length may still need.
  int64_t first_needed(size_t group, int64_t length, int64_t spare) const;
  void grow(size_t group, int64_t first, int64_t needed);
  void give_back();
  void move_slot(int64_t from, int64_t to);

  CacheShape shape_;
  Claimable claimable_;
  int64_t length_ = 0;
  std::vector<Pages> groups_;
  std::vector<int32_t> parents_;
};

}  // namespace ipex_lookahead
