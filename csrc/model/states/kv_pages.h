// Paged KV cache of the layers with the same window and the same heads: pages of 64 positions, shared copy-on-write by forks.
//
// Slot s holds position s once it is committed. A step writes its rows to the slots after `length`; keep() moves the slots of
// the accepted path into position order. Later slots are overwritten by the next step.
//
// Pages that the window has passed are freed, except the last kKeptBehind positions, so that crop() can always roll back that
// far. A drafting head on these keys may see kBeyondWindow positions more.
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

  bool same_layout(const KvShape& o) const {  // equal except for the number of layers
    return window == o.window && kv_heads == o.kv_heads && head_dim == o.head_dim &&
           value_dim == o.value_dim && format == o.format;
  }
  bool operator==(const KvShape& o) const { return same_layout(o) && layers == o.layers; }

  int value_dim16() const { return (value_dim + kLanes - 1) / kLanes * kLanes; }
  // Bytes of one head's keys, values and scales in a page.
  int64_t key_bytes() const { return int64_t(kPage) * head_dim * kv_bytes(format); }
  int64_t value_bytes() const { return int64_t(kPage) * value_dim16() * kv_bytes(format); }
  int64_t scale_bytes() const { return format == KvFormat::int8 ? 2 * kPage * int64_t(sizeof(float)) : 0; }
  // A page holds the keys of every layer and head, then the values, then the scales. A head's keys are then whole system
  // pages if their size is, and hardware prefetchers stop at those boundaries. `layer` counts the layers of this state.
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

  // For layers: the page of position p is pages()[p / kPage], null if it was freed.
  uint8_t* const* pages() const { return raw_.data(); }

  void prepare(int64_t length, int64_t rows, int64_t settled) override;  // makes the step's pages exist and unshared
  void keep(int64_t length, const int64_t* rows, int64_t count) override;
  int64_t reach(int64_t length) const override;
  void crop(int64_t length) override;
  void fill_blank(int64_t length) override;
  std::unique_ptr<State> fork(int64_t length, bool stepped) const override;
  void export_pages(int64_t first, int64_t last, ImageWriter& image) const override;
  void import_pages(int64_t first, int64_t last, ImageReader& image) override;
  void export_state(int64_t length, ImageWriter& image) const override;
  void import_state(int64_t length, ImageReader& image) override;
  int64_t bytes() const override { return (int64_t(owned_.size()) - first_) * shape_.page_bytes(); }

 private:
  // Index of the first page that a sequence of that length may still need.
  int64_t first_needed(int64_t length, int64_t spare) const;
  void grow(int64_t first, int64_t needed);
  void move_slot(int64_t from, int64_t to);
  // Slots in an image: whole pages as they are, the slots of other pages one by one.
  void export_slots(int64_t first, int64_t last, ImageWriter& image) const;
  void import_slots(int64_t first, int64_t last, ImageReader& image);

  KvShape shape_;
  std::vector<std::shared_ptr<uint8_t>> owned_;  // null: freed
  std::vector<uint8_t*> raw_;                   // pointers of owned_, as kernels read them
  int64_t first_ = 0;                           // index of the first page that was not freed
};

}  // namespace ipex_lookahead
