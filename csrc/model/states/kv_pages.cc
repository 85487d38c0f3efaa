#include "model/states/kv_pages.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "model/spec.h"
#include "runtime/system_pages.h"

namespace ipex_lookahead {
namespace {

// Returns `count` pages of zeros. Large pages are mapped from the system instead of malloc: they live for minutes among a
// step's short-lived arrays, and a mixed heap never shrinks (a server with a 135M model grew by 10 MiB/s). Pages that are
// made together are contiguous, so that huge pages can back them, and are freed one by one.
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
  // An odd number of system pages: at multiples of large powers of two, pages would evict each other from the cache's sets.
  const size_t size = ((size_t(bytes) + kSystemPage - 1) / kSystemPage | 1) * kSystemPage;
  uint8_t* const memory = map_zeros(size * size_t(count));
  try {
    while (pages.size() < size_t(count))
      pages.emplace_back(memory + pages.size() * size, [size](uint8_t* page) { munmap(page, size); });
  } catch (...) {  // emplace_back freed the page that it had no memory for
    const size_t gone = pages.size() + 1;
    if (gone < size_t(count)) munmap(memory + gone * size, (size_t(count) - gone) * size);
    throw;
  }
  return pages;
}
// Returns true if no fork shares the page. A fork that another thread released had finished its reads.
bool is_only_owner(const std::shared_ptr<uint8_t>& page) {
  const bool only = page.use_count() == 1;
  std::atomic_thread_fence(std::memory_order_acquire);
  return only;
}

std::shared_ptr<uint8_t> new_page(int64_t bytes) { return std::move(new_pages(bytes, 1)[0]); }

// Position of one slot's elements in a page: `count` elements of `size` bytes, `stride` bytes apart.
struct SlotPart {
  int64_t begin, stride, size, count;
  void copy(const SlotPart& to, const uint8_t* source, uint8_t* target) const {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(target + to.begin + i * to.stride, source + begin + i * stride, size_t(size));
  }
  SlotPart dense(int64_t at) const { return {at, size, size, count}; }
};

// Keys are [4][head_dim][16], as int8 [4][head_dim / 4][16][4]; values are [64][value_dim16], as int8 [16][value_dim16][4].
SlotPart key_part(const KvShape& shape, int64_t offset, int64_t slot) {
  const bool by_fours = shape.format == KvFormat::int8;
  const int64_t size = by_fours ? 4 : 2, count = by_fours ? shape.head_dim / 4 : shape.head_dim;
  return {offset + (slot / kLanes * count * kLanes + slot % kLanes) * size, kLanes * size, size, count};
}
SlotPart value_part(const KvShape& shape, int64_t offset, int64_t slot) {
  const int64_t row = shape.value_dim16();
  if (shape.format == KvFormat::fp16) return {offset + slot * row * 2, 0, row * 2, 1};
  return {offset + slot / 4 * row * 4 + slot % 4, 4, 1, row};
}

// The keys' scales, then the values'.
SlotPart scale_part(int64_t offset, int64_t slot) {
  const int64_t size = sizeof(float);
  return {offset + slot * size, kPage * size, size, 2};
}

// Calls each(part of slot s, part of slot t) for all parts of two slots.
template <typename Each>
void each_part(const KvShape& shape, int64_t s, int64_t t, const Each& each) {
  for (int layer = 0; layer < shape.layers; ++layer)
    for (int head = 0; head < shape.kv_heads; ++head) {
      const int64_t k = shape.k_offset(layer, head), v = shape.v_offset(layer, head), scales = shape.scale_offset(layer, head);
      each(key_part(shape, k, s), key_part(shape, k, t));
      each(value_part(shape, v, s), value_part(shape, v, t));
      if (shape.format == KvFormat::int8) each(scale_part(scales, s), scale_part(scales, t));
    }
}

// The last page of a window in an image starts up to this number of positions before those that are needed, so that crop() can
// roll an imported cache back.
constexpr int64_t kImageBehind = kPage;

int64_t pages_of(int64_t positions) { return (positions + kPage - 1) / kPage; }

}  // namespace

void KvPages::prepare(int64_t length, int64_t rows, int64_t) { grow(length / kPage, pages_of(length + rows)); }

// Makes the pages [first, needed) exist and writable.
void KvPages::grow(int64_t first, int64_t needed) {
  owned_.reserve(size_t(needed));
  raw_.reserve(size_t(needed));
  const int64_t bytes = shape_.page_bytes(), owned = int64_t(owned_.size());
  for (size_t i = size_t(first); i < size_t(std::min(needed, owned)); ++i) {
    if (is_only_owner(owned_[i])) continue;
    auto fresh = new_page(bytes);  // shared with a fork: copy on write
    std::memcpy(fresh.get(), owned_[i].get(), size_t(bytes));
    owned_[i] = std::move(fresh);
    raw_[i] = owned_[i].get();
  }
  if (needed <= owned) return;
  for (auto& fresh : new_pages(bytes, needed - owned)) {
    raw_.push_back(fresh.get());
    owned_.push_back(std::move(fresh));
  }
}

int64_t KvPages::first_needed(int64_t length, int64_t spare) const {
  return shape_.window == 0 ? 0 : std::max<int64_t>(0, length + 1 - shape_.window - kBeyondWindow - spare) / kPage;
}

void KvPages::keep(int64_t length, const int64_t* rows, int64_t count) {
  // A path's rows are strictly ascending (parents come before children), so rows[i] >= i and no slot is overwritten early.
  for (int64_t i = 0; i < count; ++i)
    if (rows[i] != i) move_slot(length + rows[i], length + i);
  for (const int64_t needed = first_needed(length + count, kKeptBehind); first_ < needed; ++first_) {  // behind the window
    owned_[size_t(first_)].reset();
    raw_[size_t(first_)] = nullptr;
  }
}

// If keys that the window would show again were freed, only length 0 can be reached.
int64_t KvPages::reach(int64_t length) const { return first_needed(length, 0) < first_ ? 0 : length; }

void KvPages::crop(int64_t length) {
  owned_.resize(size_t(pages_of(length)));
  raw_.resize(size_t(pages_of(length)));
  if (length == 0) first_ = 0;
}

// If rows of a step may still be kept, the last page must not be shared: keep() moves slots in it.
std::unique_ptr<State> KvPages::fork(int64_t length, bool stepped) const {
  auto copy = std::make_unique<KvPages>(shape_);
  const size_t needed = size_t(pages_of(length)), bytes = size_t(shape_.page_bytes());
  copy->first_ = first_;
  copy->owned_.assign(owned_.begin(), owned_.begin() + std::ptrdiff_t(needed));
  if (stepped && length % kPage != 0) {
    copy->owned_.back() = new_page(int64_t(bytes));
    std::memcpy(copy->owned_.back().get(), owned_[needed - 1].get(), bytes);
  }
  for (const auto& page : copy->owned_) copy->raw_.push_back(page.get());
  return copy;
}

void KvPages::fill_blank(int64_t length) {
  first_ = first_needed(length, kKeptBehind);
  owned_.assign(size_t(first_), nullptr);
  raw_.assign(size_t(first_), nullptr);
  grow(first_, pages_of(length));
  // Write the pages: unwritten memory is one shared page of zeros, which would stay in the cache.
  for (int64_t i = first_; i < pages_of(length); ++i) std::memset(raw_[size_t(i)], 0, size_t(shape_.page_bytes()));
}

void KvPages::move_slot(int64_t from, int64_t to) {
  const int64_t s = from % kPage, t = to % kPage;
  const uint8_t* source = raw_[size_t(from / kPage)];
  uint8_t* target = raw_[size_t(to / kPage)];
  each_part(shape_, s, t, [&](const SlotPart& of, const SlotPart& part) { of.copy(part, source, target); });
}

void KvPages::export_slots(int64_t first, int64_t last, ImageWriter& image) const {
  const int64_t bytes = shape_.bytes_per_position();
  for (int64_t at = first, end = 0; at < last; at = end) {
    end = std::min(last, (at / kPage + 1) * kPage);
    const uint8_t* const page = raw_[size_t(at / kPage)];
    image.add((end - at) * bytes, [&](uint8_t* out) {
      if (end - at == kPage) std::memcpy(out, page, size_t(kPage * bytes));
      for (int64_t slot = at % kPage; end - at < kPage && slot < at % kPage + end - at; ++slot)
        each_part(shape_, slot, slot, [&](const SlotPart& part, const SlotPart&) {
          part.copy(part.dense(0), page, out);
          out += part.size * part.count;
        });
    });
  }
}

void KvPages::import_slots(int64_t first, int64_t last, ImageReader& image) {
  const int64_t bytes = shape_.bytes_per_position();
  image.check(last - first, bytes);
  grow(first / kPage, pages_of(last));
  for (int64_t at = first, end = 0; at < last; at = end) {
    end = std::min(last, (at / kPage + 1) * kPage);
    uint8_t* const page = raw_[size_t(at / kPage)];
    const uint8_t* in = image.take(end - at, bytes);
    if (end - at == kPage) std::memcpy(page, in, size_t(kPage * bytes));
    for (int64_t slot = at % kPage; end - at < kPage && slot < at % kPage + end - at; ++slot)
      each_part(shape_, slot, slot, [&](const SlotPart& part, const SlotPart&) {
        part.dense(0).copy(part, in, page);
        in += part.size * part.count;
      });
  }
}

void KvPages::export_pages(int64_t first, int64_t last, ImageWriter& image) const {
  if (shape_.window == 0) export_slots(first, last, image);
}

void KvPages::import_pages(int64_t first, int64_t last, ImageReader& image) {
  if (shape_.window == 0) import_slots(first, last, image);
}

void KvPages::export_state(int64_t length, ImageWriter& image) const {
  if (shape_.window == 0) return;
  const int64_t first = std::max(first_, first_needed(length, kImageBehind));
  image.add_number(first);
  export_slots(first * kPage, length, image);
}

void KvPages::import_state(int64_t length, ImageReader& image) {
  if (shape_.window == 0) return crop(length);  // a head's pages may have more rows than its state
  first_ = image.number(0, first_needed(length, 0), "first page of a window");
  image.check(length - first_ * kPage, shape_.bytes_per_position());
  owned_.assign(size_t(first_), nullptr);
  raw_.assign(size_t(first_), nullptr);
  import_slots(first_ * kPage, length, image);
}

}  // namespace ipex_lookahead
