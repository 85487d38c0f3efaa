// Attention of one block: queries, keys and values, who sees whom, and the sum over what is seen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/operation.h"
#include "model/rope.h"

namespace ipex_lookahead {

// What the layers' attention shares: how a step's is divided among threads, and memory that one layer after the other uses.
class AttentionScratch {
 public:
  AttentionScratch(const std::vector<Rope>& ropes, int64_t max_context, int threads)
      : ropes_(ropes), max_context_(max_context), threads_(threads), tables_(ropes.size()) {}

  // A piece of attention that one thread does: query heads that share a key head, over one block of positions if the
  // step has few rows, else over all blocks for one tile of rows.
  struct Item {
    int sequence, kv_head, first_head, heads;
    int64_t block, first_row, last_row;
  };
  // How attention is divided in layers of one window and as many heads.
  struct Plan {
    int64_t window;
    int heads, kv_heads;
    std::vector<Item> items;
  };

  size_t plan_for(const AttentionShape& shape);  // its number, from now on
  // For the sequences of a step, the furthest of which reaches so many positions.
  void plan(const StepRows& rows, int64_t positions);
  const Plan& plan(size_t number) const { return plans_[number]; }
  const RopeTable* table(int rope) const { return rope < 0 ? nullptr : &tables_[size_t(rope)]; }
  const Rope& rope(int number) const { return ropes_[size_t(number)]; }

  int64_t partial_blocks = 1;     // partial results kept a (row, head)
  Buffer<float> qkv, partials;

 private:
  void plan(Plan& plan, const StepRows& rows, bool by_blocks) const;

  const std::vector<Rope>& ropes_;
  const int64_t max_context_;
  const int threads_;
  std::vector<Plan> plans_;
  std::vector<RopeTable> tables_;
};

class Attention : public Operation {
 public:
  // Its pages are in the state of layers like it, which it joins or adds.
  Attention(const OperationParts& of, AttentionScratch& scratch);
  void place(const CacheShape& cache) override { kv_ = std::get<KvShape>(cache.states[state_]); }
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  enum class Part { q, k, v };
  struct Head {
    Part part;
    int number;
  };

  bool whole_heads() const { return shape_.head_dim % kLanes == 0; }
  int64_t partial_floats() const { return kPartialHead + kv_.head_dim16(); }
  float* partial(int64_t row, int64_t head, int64_t block) const {
    return scratch_.partials.data() + ((row * shape_.heads + head) * scratch_.partial_blocks + block) * partial_floats();
  }
  uint8_t* const* pages(const Sequence& s) const { return s.cache->state<KvPages>(state_).pages(); }
  Head head_of(int64_t index) const;
  Keys keys_of(const StepRows& rows, const Sequence& s, int head) const;
  void qkv(const StepRows& rows, const Rows& x, int64_t begin, int64_t end) const;
  void norm_whole(ThreadContext& context, const StepRows& rows, int64_t row) const;
  void norm_head(const StepRows& rows, const Norm& norm, float* x) const;
  void finish_heads(const StepRows& rows, int64_t begin, int64_t end) const;
  void attend(ThreadContext& context, const StepRows& rows, const AttentionScratch::Item& item) const;
  void merge_heads(ThreadContext& context, const StepRows& rows, int64_t row, float* out) const;

  const AttentionShape shape_;
  AttentionScratch& scratch_;
  Matrix q_, k_, v_, o_;
  Norm q_norm_, k_norm_;
  const float* sinks_ = nullptr;
  const int32_t *order_ = nullptr, *o_order_ = nullptr;  // of the inputs of q, k and v, and of o
  KvShape kv_;
  size_t state_ = 0, plan_ = 0;
  int number_ = 0;                                       // among the layers of that state
  int64_t k_column_, v_column_, stride_;                 // of rows in scratch_.qkv
};

}  // namespace ipex_lookahead
