#include "model/states/recurrent.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/system_pages.h"

namespace ipex_lookahead {
namespace {

// Zeroed memory mapped from the system: states live long among short-lived arrays.
std::shared_ptr<float> zeros(int64_t floats) {
  const size_t size = (size_t(floats) * sizeof(float) + kSystemPage - 1) / kSystemPage * kSystemPage;
  if (size == 0) return nullptr;
  void* const memory = map_zeros(size);
  return {static_cast<float*>(memory), [size](float* at) { munmap(at, size); }};
}

// Granularity in rows of the memory for drafts, because a draft model adds one row per step.
constexpr int64_t kDraftRows = 8;

// A fork that another thread released had finished its reads.
bool shared(const std::shared_ptr<float>& memory) {
  const bool others = memory.use_count() > 1;
  std::atomic_thread_fence(std::memory_order_acquire);
  return others;
}

}  // namespace

RecurrentState::RecurrentState(const RecurrentShape& shape) : shape_(shape), now_(empty()) {}

RecurrentState::Snapshot RecurrentState::empty() const {
  Snapshot snapshot;
  snapshot.history = zeros(shape_.layers * shape_.history());
  return snapshot;
}

void RecurrentState::drop_settled() {
  if (settled_ == 0) return;
  now_ = std::move(undo_);
  undo_ = {};
  settled_ = 0;
}

void RecurrentState::prepare(int64_t, int64_t rows, int64_t settled) {
  drop_settled();
  const bool holds = settled == kHold;
  if (holds) settled = 0;
  deferred_ = holds ? accepted() : 0;
  const int64_t matrices = shape_.layers * shape_.matrix(), drafts = deferred_ + rows - settled;
  Snapshot& next = next_;
  if (next.history == nullptr || shared(next.history)) next.history = zeros(shape_.layers * shape_.history());
  if (next.drafts == nullptr || shared(next.drafts) || next.draft_rows < drafts) {
    const int64_t some = (drafts + kDraftRows - 1) / kDraftRows * kDraftRows;
    next.drafts = zeros(shape_.layers * some * shape_.raw());
    next.draft_rows = some;
  }
  const bool moves = settled > 0 || (accepted() > deferred_ && (now_.matrix == nullptr || shared(now_.matrix)));
  if (!moves)
    next.matrix = now_.matrix;
  else
    next.matrix = spare_ != nullptr ? spare_ : zeros(matrices);
  spare_ = nullptr;
  next_settled_ = settled;
}

void RecurrentState::stepped() {
  settled_ = next_settled_;
  next_.at = now_.length() - deferred_ + settled_;
  next_.accepted.resize(size_t(deferred_));
  std::iota(next_.accepted.begin(), next_.accepted.end(), 0);
  std::swap(now_, next_);
  if (settled_ > 0)
    undo_ = std::exchange(next_, {});
  else
    next_.matrix = nullptr;
}

void RecurrentState::keep(int64_t, const int64_t* rows, int64_t count) {
  for (int64_t i = settled_; i < count; ++i) now_.accepted.push_back(deferred_ + rows[i] - settled_);
  if (settled_ > 0 && undo_.matrix != nullptr && !shared(undo_.matrix)) spare_ = std::move(undo_.matrix);
  undo_ = {};
  settled_ = 0;
}

int64_t RecurrentState::reach(int64_t length) const {
  const Snapshot& now = settled_ > 0 ? undo_ : now_;
  if (now.at <= length && length <= now.length()) return length;
  int64_t furthest = 0;
  for (const Snapshot& one : checkpoints_)
    if (one.at <= length) furthest = std::max(furthest, std::min(length, one.length()));
  return furthest;
}

void RecurrentState::crop(int64_t length) {
  drop_settled();
  if (now_.at > length || length > now_.length()) {
    const auto holds = [&](const Snapshot& one) { return one.at <= length && length <= one.length(); };
    const auto found = std::find_if(checkpoints_.rbegin(), checkpoints_.rend(), holds);
    now_ = found == checkpoints_.rend() ? empty() : *found;
    now_.at = found == checkpoints_.rend() ? 0 : now_.at;
  }
  now_.accepted.resize(size_t(length - now_.at));
  const auto beyond = [&](const Snapshot& one) { return one.length() > length; };
  checkpoints_.erase(std::remove_if(checkpoints_.begin(), checkpoints_.end(), beyond), checkpoints_.end());
}

void RecurrentState::checkpoint(int64_t length) {
  drop_settled();
  if (!checkpoints_.empty() && checkpoints_.back().length() == length) return;
  if (checkpoints_.size() == kCheckpoints) checkpoints_.erase(checkpoints_.begin());
  checkpoints_.push_back(now_);
}

void RecurrentState::fill_blank(int64_t length) {
  now_ = empty();
  now_.at = length;
}

std::unique_ptr<State> RecurrentState::fork(int64_t, bool) const {
  auto copy = std::make_unique<RecurrentState>(shape_);
  copy->now_ = settled_ > 0 ? undo_ : now_;
  copy->checkpoints_ = checkpoints_;
  return copy;
}

void RecurrentState::export_state(int64_t, ImageWriter& image) const {
  const Snapshot& now = settled_ > 0 ? undo_ : now_;
  constexpr int64_t kFloat = sizeof(float);
  image.add_number(int64_t(now.accepted.size()));
  image.add_number(now.matrix != nullptr);
  image.add(now.history.get(), shape_.layers * shape_.history() * kFloat);
  if (now.matrix != nullptr) image.add(now.matrix.get(), shape_.layers * shape_.matrix() * kFloat);
  for (int layer = 0; layer < shape_.layers; ++layer)
    for (const int64_t row : now.accepted) image.add(draft(now, layer, row), shape_.raw() * kFloat);
}

void RecurrentState::import_state(int64_t length, ImageReader& image) {
  const int64_t rows = image.number(0, length, "number of accepted rows");
  const bool has_matrix = image.number(0, 1, "matrix flag") != 0;
  now_ = empty();
  now_.at = length - rows;
  image.copy(now_.history.get(), shape_.layers * shape_.history());
  if (has_matrix && shape_.matrix() > 0) {
    image.check(shape_.layers * shape_.matrix(), sizeof(float));
    now_.matrix = zeros(shape_.layers * shape_.matrix());
    image.copy(now_.matrix.get(), shape_.layers * shape_.matrix());
  }
  image.check(rows, shape_.layers * shape_.raw() * int64_t(sizeof(float)));
  if (rows == 0) return;
  now_.draft_rows = (rows + kDraftRows - 1) / kDraftRows * kDraftRows;
  now_.drafts = zeros(shape_.layers * now_.draft_rows * shape_.raw());
  for (int layer = 0; layer < shape_.layers; ++layer) image.copy(draft(now_, layer, 0), rows * shape_.raw());
  now_.accepted.resize(size_t(rows));
  std::iota(now_.accepted.begin(), now_.accepted.end(), 0);
}

int64_t RecurrentState::bytes() const {
  std::set<const float*> counted;
  int64_t floats = 0;
  const auto count = [&](const Memory& memory, int64_t size) {
    if (memory != nullptr && counted.insert(memory.get()).second) floats += size;
  };
  const auto count_snapshot = [&](const Snapshot& snapshot) {
    count(snapshot.matrix, shape_.layers * shape_.matrix());
    count(snapshot.history, shape_.layers * shape_.history());
    count(snapshot.drafts, shape_.layers * snapshot.draft_rows * shape_.raw());
  };
  count_snapshot(now_);
  count_snapshot(next_);
  count_snapshot(undo_);
  count(spare_, shape_.layers * shape_.matrix());
  for (const Snapshot& one : checkpoints_) count_snapshot(one);
  return floats * int64_t(sizeof(float));
}

}  // namespace ipex_lookahead
