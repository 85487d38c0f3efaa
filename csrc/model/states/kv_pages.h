// Keys and values of the layers that see equally far and have the same heads, in pages of 64 positions that sequences may
// share.
//
// Slot s is position s once committed. The rows of a step are written to the slots after `length`; keep() moves the
// accepted path's into position order, and what lies beyond is simply overwritten by the next step.
//
// Pages that a window has passed are given back, with kKeptBehind positions to spare: so far a sequence may always be cropped.
// A drafting head that has these keys may see kBeyondWindow positions more.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "model/states/state.h"

namespace ipex_lookahead {

constexpr int64_t kKeptBehind = 1024;

struct KvShape {
  int64_t window = 0;  // 0: all positions
  int layers = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  KvFormat format = KvFormat::fp16;

  bool alike(const KvShape& o) const {  // but for how many layers there are
    return window == o.window && kv_heads == o.kv_heads && head_dim == o.head_dim &&
           value_dim == o.value_dim && format == o.format;
  }
  bool operator==(const KvShape& o) const { return alike(o) && layers == o.layers; }

  int value_dim16() const { return (value_dim + kLanes - 1) / kLanes * kLanes; }
  // Bytes of one head's keys, values and scales in a page.
  int64_t key_bytes() const { return int64_t(kPage) * head_dim * kv_bytes(format); }
  int64_t value_bytes() const { return int64_t(kPage) * value_dim16() * kv_bytes(format); }
  int64_t scale_bytes() const { return format == KvFormat::int8 ? 2 * kPage * int64_t(sizeof(float)) : 0; }
  // A page holds the keys of every layer and head, then the values, then the scales: a head's keys are whole pages of the
  // system then, where they are in size, and what fetches memory ahead stops at those. `layer` counts among these layers.
  int64_t heads() const { return int64_t(layers) * kv_heads; }
  int64_t k_offset(int layer, int head) const { return (int64_t(layer) * kv_heads + head) * key_bytes(); }
  int64_t v_offset(int layer, int head) const {
    return heads() * key_bytes() + (int64_t(layer) * kv_heads + head) * value_bytes();
  }
  int64_t scale_offset(int layer, int head) const {
    return heads() * (key_bytes() + value_bytes()) + (int64_t(layer) * kv_heads + head) * scale_bytes();
  }
  int64_t page_bytes() const { return heads() * (key_bytes() + value_bytes() + scale_bytes()); }
  int64_t bytes_per_position() const { return page_bytes() / kPage; }
};

class KvPages : public State {
 public:
  explicit KvPages(const KvShape& shape) : shape_(shape) {}

  // Where layers write and read: the page of position p is pages()[p / kPage], null where it was given back.
  uint8_t* const* pages() const { return raw_.data(); }

  void prepare(int64_t length, int64_t rows, int64_t settled) override;  // pages exist and are not shared
  void keep(int64_t length, const int64_t* rows, int64_t count) override;
  int64_t reach(int64_t length) const override;
  void crop(int64_t length) override;
  void fill_blank(int64_t length) override;
  std::unique_ptr<State> fork(int64_t length, bool stepped) const override;
  int64_t bytes() const override { return (int64_t(held_.size()) - first_) * shape_.page_bytes(); }

 private:
  // The first page that a sequence of that length may still need.
  int64_t first_needed(int64_t length, int64_t spare) const;
  void grow(int64_t first, int64_t needed);
  void move_slot(int64_t from, int64_t to);

  KvShape shape_;
  std::vector<std::shared_ptr<uint8_t>> held_;  // null where given back
  std::vector<uint8_t*> raw_;                   // held_, as the kernels read them
  int64_t first_ = 0;                           // those before were given back
};

}  // namespace ipex_lookahead
