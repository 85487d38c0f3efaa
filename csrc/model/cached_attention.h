// Softmax attention over keys and values that a cache holds: how a step's is divided among threads, who sees whom, and the sum
// over what is seen. What queries, keys and values are made of is the operation's that has it.
#pragma once

#include <cstdint>
#include <vector>

#include "model/operation.h"
#include "model/rope.h"

namespace ipex_lookahead {

// Heads that attend: keys are of head_dim, values, and what heads come to, of value_dim.
struct HeadsShape {
  int heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  int64_t window = 0;  // positions that a row sees, up to StepRows::last_seen; 0: all
  float softcap = 0;
};

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

  size_t plan_for(const HeadsShape& shape);  // its number, from now on
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

class CachedAttention {
 public:
  // Its pages are in the state of layers like it, which it joins or adds.
  CachedAttention(const HeadsShape& shape, KvFormat format, CacheShape& cache, AttentionScratch& scratch);
  // It has none of its own, but the keys and values of another layer, which stand in the cache when it runs.
  CachedAttention(const HeadsShape& shape, const CachedAttention& of, AttentionScratch& scratch)
      : shape_(shape), scratch_(scratch), state_(of.state_), plan_(scratch.plan_for(shape)), number_(of.number_) {}
  void place(const CacheShape& cache) { kv_ = std::get<KvShape>(cache.states[state_]); }
  void reserve(StepRows& rows);

  // A row's key, after its rope, and its value, of one head, into the cache; a query, in place, as attending reads it.
  void store_key(const StepRows& rows, int64_t row, int head, const float* key) const;
  void store_value(const StepRows& rows, int64_t row, int head, const float* value) const;
  void prepare_query(const StepRows& rows, float* query) const { rows.kernels.prepare_query[int(kv_.format)](query, shape_.head_dim); }

  // Attends, in a phase that every thread goes through: row r's queries lie one after the other from q + r * q_stride on.
  void run(ThreadContext& context, const StepRows& rows, const float* q, int64_t q_stride) const;
  // What a row's head comes to, once all have been attended with, [value_dim]. `sink`: one more logit in the softmax's
  // denominator; null: none. `memory`: floats(), the thread's own.
  void result(const StepRows& rows, int64_t row, int head, const float* sink, float* memory, float* out) const;
  int64_t floats() const { return 2 * partial_floats(); }

 private:
  int64_t partial_floats() const { return kPartialHead + kv_.value_dim16(); }
  float* partial(int64_t row, int64_t head, int64_t block) const {
    return scratch_.partials.data() + ((row * shape_.heads + head) * scratch_.partial_blocks + block) * partial_floats();
  }
  uint8_t* const* pages(const Sequence& s) const { return s.cache->state<KvPages>(state_).pages(); }
  // Where a row's slot is: its page, and its number in it.
  std::pair<uint8_t*, int64_t> slot(const StepRows& rows, int64_t row) const;
  Keys keys_of(const StepRows& rows, const Sequence& s, int head) const;
  void attend(ThreadContext& context, const StepRows& rows, const AttentionScratch::Item& item, const float* q, int64_t q_stride) const;

  const HeadsShape shape_;
  AttentionScratch& scratch_;
  KvShape kv_;
  size_t state_ = 0, plan_ = 0;
  int number_ = 0;  // among the layers of that state
};

}  // namespace ipex_lookahead
