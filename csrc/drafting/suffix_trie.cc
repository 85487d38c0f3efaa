#include "drafting/suffix_trie.h"

#include <stdexcept>
#include <string>

namespace ipex_lookahead {
namespace {

constexpr size_t kFirstSlots = 256;

uint64_t key_of(int32_t parent, int32_t token) { return uint64_t(uint32_t(parent)) << 32 | uint32_t(token); }

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t scatter(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

IntegerMap::IntegerMap() : slots_(kFirstSlots, Slot{0, -1}) {}

void IntegerMap::clear() {
  slots_.assign(kFirstSlots, Slot{0, -1});
  used_ = 0;
}

size_t IntegerMap::place(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t at = size_t(scatter(key)) & mask;
  while (slots_[at].value >= 0 && slots_[at].key != key) at = (at + 1) & mask;
  return at;
}

int32_t IntegerMap::find(uint64_t key) const { return slots_[place(key)].value; }

int32_t& IntegerMap::at(uint64_t key, int32_t value) {
  size_t found = place(key);
  if (slots_[found].value < 0) {
    if (2 * (used_ + 1) > slots_.size()) {
      grow();
      found = place(key);
    }
    slots_[found] = {key, value};
    ++used_;
  }
  return slots_[found].value;
}

void IntegerMap::reserve(size_t keys) {
  while (slots_.size() < 2 * (keys + 1)) grow();
}

void IntegerMap::grow() {
  std::vector<Slot> before(2 * slots_.size(), Slot{0, -1});
  before.swap(slots_);
  for (const Slot& slot : before)
    if (slot.value >= 0) slots_[place(slot.key)] = slot;
}

SuffixTrie::SuffixTrie(int depth) : depth_(depth) {
  if (depth < 1 || depth > kMaxSuffix)
    throw std::invalid_argument("depth is " + std::to_string(depth) + "; it must be from 1 to " +
                                std::to_string(kMaxSuffix));
  clear();
}

void SuffixTrie::clear() {
  nodes_.assign(1, Node{-1, 0, 0, 0, -1, -1, -1});
  children_.clear();
  here_ = SuffixContext();
}

void SuffixTrie::reserve(size_t nodes) {
  nodes_.reserve(nodes);
  children_.reserve(nodes);
}

int32_t SuffixTrie::child(int32_t parent, int32_t token) const { return children_.find(key_of(parent, token)); }

int32_t SuffixTrie::count_child(int32_t parent, int32_t token) {
  if (nodes_.size() >= size_t(INT32_MAX)) throw std::length_error("too many tokens for one suffix index");
  const int32_t fresh = int32_t(nodes_.size());
  const int32_t id = children_.at(key_of(parent, token), fresh);
  if (id == fresh) {
    nodes_.push_back({token, 0, 0, 0, -1, -1, -1});
    ++nodes_[size_t(parent)].distinct;
  }
  Node &node = nodes_[size_t(id)], &above = nodes_[size_t(parent)];
  ++node.count;
  ++above.total;
  if (above.first_child == id) return id;
  if (id != fresh) {  // moves it to the front of the list
    nodes_[size_t(node.previous)].next = node.next;
    if (node.next >= 0) nodes_[size_t(node.next)].previous = node.previous;
  }
  node.previous = -1;
  node.next = above.first_child;
  if (node.next >= 0) nodes_[size_t(node.next)].previous = id;
  above.first_child = id;
  return id;
}

void SuffixTrie::extend(int32_t token) {
  SuffixContext after;
  for (int l = 0; l <= here_.length; ++l) {
    const int32_t id = count_child(here_.nodes[l], token);
    if (l < depth_) {
      after.nodes[l + 1] = id;
      after.length = l + 1;
    }
  }
  here_ = after;
}

SuffixContext SuffixTrie::advance(const SuffixContext& from, int32_t token) const {
  SuffixContext after;
  for (int l = 0; l <= from.length && l < depth_; ++l) {
    const int32_t id = child(from.nodes[l], token);
    if (id < 0) break;
    after.nodes[l + 1] = id;
    after.length = l + 1;
  }
  return after;
}

}  // namespace ipex_lookahead
