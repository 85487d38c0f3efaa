// Counted suffixes of texts: which tokens followed each run of at most `depth` tokens, how often, and how recently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ipex_lookahead {

constexpr int kMaxSuffix = 16;

// A map from 64-bit keys to integers that only grows: open addressing, at most half full.
class IntegerMap {
 public:
  IntegerMap();
  void clear();
  int32_t find(uint64_t key) const;         // -1: absent
  int32_t& at(uint64_t key, int32_t value);  // the value there, `value` if it was absent
  void reserve(size_t keys);                // no growth until the map has this number of keys
 private:
  struct Slot {
    uint64_t key;
    int32_t value;  // -1: empty
  };
  size_t place(uint64_t key) const;
  void grow();
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

// Position of a text in the trie: nodes[l] is the node of its last l tokens, for every l from 0 to length that has one.
struct SuffixContext {
  int32_t nodes[kMaxSuffix + 1] = {0};
  int length = 0;
};

// A trie of every run of at most depth + 1 tokens. A node is a run; its children are the tokens that followed it, the
// most recent first. One more token touches the depth + 1 nodes that end with it, so it costs O(depth).
class SuffixTrie {
 public:
  explicit SuffixTrie(int depth);  // 1 .. kMaxSuffix, else std::invalid_argument

  struct Node {
    int32_t token;
    uint32_t count;     // occurrences of this run
    uint32_t total;     // occurrences with a follower
    uint32_t distinct;  // number of different followers
    int32_t first_child, next, previous;
  };

  void clear();
  void extend(int32_t token);  // adds a token to the current text
  void reserve(size_t nodes);  // no allocation until the trie has this number of nodes
  void cut() { here_ = SuffixContext(); }  // starts another text

  int depth() const { return depth_; }
  size_t size() const { return nodes_.size(); }
  const SuffixContext& here() const { return here_; }  // after the last token of the current text
  SuffixContext advance(const SuffixContext& from, int32_t token) const;
  const Node& node(int32_t id) const { return nodes_[size_t(id)]; }
  int32_t child(int32_t parent, int32_t token) const;  // -1: none

 private:
  int32_t count_child(int32_t parent, int32_t token);

  int depth_;
  std::vector<Node> nodes_;
  IntegerMap children_;
  SuffixContext here_;
};

}  // namespace ipex_lookahead
