// Softmax attention over cached keys and values: the split among threads, visibility, and the weighted sum. The operations that
// use it compute the queries, keys and values.
#pragma once

#include <cstdint>
#include <vector>

#include "model/operation.h"
#include "model/rope.h"

namespace ipex_lookahead {

// Sizes of attention heads: keys have head_dim values, values and outputs have value_dim.
struct HeadsShape {
  int heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  int64_t window = 0;  // positions that a row sees, up to StepRows::last_seen; 0: all
  float softcap = 0;
  bool spans = false;  // rows of a span see each other
};

// A row's cosines and sines of a rope, [half], and its query factor.
struct Turn {
  const float *cos = nullptr, *sin = nullptr;
  float query = 1;
};

// State shared by the attention layers of a model: the split of a step among threads, and scratch.
class AttentionScratch {
 public:
  AttentionScratch(const std::vector<Rope>& ropes, int64_t max_context, int threads)
      : ropes_(ropes), max_context_(max_context), threads_(threads), tables_(ropes.size()), mixed_(ropes.size()) {}

  // One thread's unit of work: query heads that share a key head, over one block of positions if the step has few rows, else
  // over all blocks for one tile of rows.
  struct Item {
    int sequence, kv_head, first_head, heads;
    int64_t block, first_row, last_row;
  };
  // The items for layers with the same window and number of heads.
  struct Plan {
    int64_t window;
    int heads, kv_heads;
    std::vector<Item> items;
  };

  size_t plan_for(const HeadsShape& shape);  // return the index of the plan for layers of this shape
  // Plans the current step, in which the longest sequence has `positions` positions.
  void plan(const StepRows& rows, int64_t positions);
  const Plan& plan(size_t number) const { return plans_[number]; }
  Turn turn(int rope, const StepRows& rows, int64_t row) const;  // nothing for a rope of -1
  const Rope& rope(int number) const { return ropes_[size_t(number)]; }

  int64_t partial_blocks = 1;     // partial results per (row, head)
  Buffer<float> qkv, partials;

 private:
  void plan(Plan& plan, const StepRows& rows, bool by_blocks) const;
  void mix(size_t rope, const StepRows& rows);

  const std::vector<Rope>& ropes_;
  const int64_t max_context_;
  const int threads_;
  std::vector<Plan> plans_;
  std::vector<RopeTable> tables_;
  struct Mixed {
    Buffer<float> cos, sin;  // [rows][half]
  };
  std::vector<Mixed> mixed_;  // of ropes with axes, in steps with RoPE positions of their own
};

class CachedAttention {
 public:
  // Joins or adds the state of layers of this shape.
  CachedAttention(const HeadsShape& shape, KvFormat format, CacheShape& cache, AttentionScratch& scratch);
  // Reads the keys and values of another layer, which runs first.
  CachedAttention(const HeadsShape& shape, const CachedAttention& of, AttentionScratch& scratch)
      : shape_(shape), scratch_(scratch), state_(of.state_), plan_(scratch.plan_for(shape)), number_(of.number_) {}
  void place(const CacheShape& cache) { kv_ = std::get<KvShape>(cache.states[state_]); }
  void reserve(StepRows& rows);

  // Store one head's key (after rope) or value of a row in the cache; prepare a query in place for run().
  void store_key(const StepRows& rows, int64_t row, int head, const float* key) const;
  void store_value(const StepRows& rows, int64_t row, int head, const float* value) const;
  void prepare_query(const StepRows& rows, float* query) const { rows.kernels.prepare_query[int(kv_.format)](query, shape_.head_dim); }

  // Attends in one phase. Row r's queries are stored consecutively from q + r * q_stride.
  void run(ThreadContext& context, const StepRows& rows, const float* q, int64_t q_stride) const;
  // Writes the attention output [value_dim] of a row's head, after run(). `sink`: one more logit in the softmax's denominator;
  // null: none. `memory`: floats() floats of the calling thread.
  void result(const StepRows& rows, int64_t row, int head, const float* sink, float* memory, float* out) const;
  int64_t floats() const { return 2 * partial_floats(); }

 private:
  int64_t partial_floats() const { return kPartialHead + kv_.value_dim16(); }
  float* partial(int64_t row, int64_t head, int64_t block) const {
    return scratch_.partials.data() + ((row * shape_.heads + head) * scratch_.partial_blocks + block) * partial_floats();
  }
  uint8_t* const* pages(const Sequence& s) const { return s.cache->state<KvPages>(state_).pages(); }
  // The page of a row's slot and the slot's index in it.
  std::pair<uint8_t*, int64_t> slot(const StepRows& rows, int64_t row) const;
  Keys keys_of(const StepRows& rows, const Sequence& s, int head) const;
  void attend(ThreadContext& context, const StepRows& rows, const AttentionScratch::Item& item, const float* q, int64_t q_stride) const;

  const HeadsShape shape_;
  AttentionScratch& scratch_;
  KvShape kv_;
  size_t state_ = 0, plan_ = 0;
  int number_ = 0;  // index among the layers of that state
};

}  // namespace ipex_lookahead
