// A decoder: one call is one step, from token ids to what is wanted of their rows, through a vector of blocks.
//
// Its weights are in decoder.cc, a step's plan and course in decoder_step.cc, and what a block does in attention.cc,
// mlp.cc and experts.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/kv_cache.h"
#include "model/phase_times.h"
#include "model/rope.h"
#include "model/spec.h"
#include "model/thread_context.h"
#include "runtime/arena.h"
#include "runtime/thread_pool.h"
#include "weights/packing.h"

namespace ipex_lookahead {

enum class Slot : int { q, k, v, o, gate, up, down, router };
constexpr int kSlots = 8;
enum class Vector : int { attention_norm, q_norm, k_norm, sinks, attention_after, mlp_norm, mlp_after };
constexpr int kVectors = 7;

constexpr int64_t kMostRows = 1 << 20;  // of a step,
constexpr int64_t kMostTree = 1 << 13;  // and of a sequence of it that is no chain
constexpr int kMostTop = 64;

// One step's rows: several sequences, each with its own cache.
struct Step {
  std::vector<KVCache*> caches;
  std::vector<int64_t> counts;
  const int32_t* tokens = nullptr;
  const int32_t* parents = nullptr;
  int64_t rows = 0;
  const int32_t* want = nullptr;  // rows whose output is asked for
  int64_t wanted = 0;
};

// What a hidden state has gone through: so many layers, 0 the embedding alone; or all of them and the final norm.
constexpr int32_t kFinalNorm = -1;

// What a step writes. Null or none: not wanted.
struct StepOutputs {
  int top = 1;               // of the wanted rows, largest logit first and the lowest id first among equals
  int32_t* ids = nullptr;    // [wanted][top], -1 where no further logit is above -inf, or where one is not finite
  float* logits = nullptr;   // [wanted][vocab]
  const int32_t* hidden_layers = nullptr;  // ascending, of 0 to the number of layers, after kFinalNorm where that is one
  int64_t layers = 0;
  const int32_t* hidden_rows = nullptr;    // rows whose hidden states are asked for, ascending
  int64_t hidden_wanted = 0;
  float* hidden = nullptr;   // [layers][hidden_wanted][hidden]
  PhaseTimes* times = nullptr;  // added to
};

// Whoever changes it holds the process's threads meanwhile (a Crew), so there is one step at a time, weights are not set
// in the middle of one, and a child after fork() finds it whole.
class Decoder {
 public:
  // Throws std::invalid_argument for a shape or a number of threads that no decoder has.
  Decoder(const DecoderShape& shape, int threads, const std::string& isa);

  // Weights are copied into tiles; call in execution order, so that a step reads memory from front to back. `expert` is
  // -1 but for gate, up and down of a mixture. Throw std::out_of_range for a layer or an expert that is not there, and
  // std::invalid_argument for a weight that the layer does not have, or of another shape.
  void set_matrix(int layer, Slot slot, const PlainMatrix& plain, const float* bias, int expert = -1);
  void set_vector(int layer, Vector vector, const float* values);
  // Inputs of q, k and v together (Slot::q), of o, of gate and up (Slot::gate), or of down: input i of these matrices is value
  // order[i] of what they are given. Throws std::invalid_argument for what is no permutation, and in a layer with experts.
  void set_order(int layer, Slot slot, const int32_t* order, int64_t n);
  void set_final_norm(const float* weight);
  void set_lm_head(const PlainMatrix& plain, const float* bias);
  void set_embedding(const PlainMatrix& plain);
  void tie_embedding();
  std::string missing() const;  // the first weight that was not set, or ""

  const DecoderShape& shape() const { return shape_; }
  const char* isa() const { return kernels_->name; }
  int threads() const { return threads_; }
  size_t weight_bytes() const;
  KVCache new_cache() const;

  // How long a vector of a layer is; 0 where the layer has none. Throws std::out_of_range for a layer that is not there.
  int64_t length_of(int layer, Vector vector) const;

  // Weights that were set; what they point to lives as long as the decoder. Throw as the functions that set them do, and
  // MissingWeightError for a weight that was not set.
  Matrix matrix(int layer, Slot slot, int expert = -1) const;
  const float* vector(int layer, Vector vector) const;
  const int32_t* order(int layer, Slot slot, int64_t* n) const;  // null where none was set
  Matrix lm_head() const;
  Matrix embedding() const;
  const float* final_norm() const;

  // How many experts the last step read, over all layers: what a step of a mixture costs goes by it. 0 without experts.
  int64_t experts_touched() const;

  // Bytes of weights that phases of a kind read in a step of one row, all layers together.
  std::array<int64_t, kPhaseKinds> phase_bytes() const;

  // Throws std::out_of_range beyond max_context, std::invalid_argument for bad tokens, parents, caches, layers or wanted
  // rows, MissingWeightError, BusyError where another thread is at one of the caches; nothing is committed.
  void forward(const Step& step, const StepOutputs& out);

 private:
  struct Mlp {
    Matrix gate, up, down;
  };
  struct Block {
    Layer shape;
    Matrix q, k, v, o, router;
    std::vector<Mlp> mlps;  // one, or the experts
    const float* vectors[kVectors] = {};
    const int32_t* orders[kSlots] = {};
    const int32_t* order(Slot slot) const { return orders[int(slot)]; }
    size_t group = 0;       // of layers with its window: their attention is shared out alike, their pages are one
    int number = 0;         // among these
    const float* at(Vector v) const { return vectors[int(v)]; }
  };
  // What a sequence of the step looks like to attention.
  struct Sequence {
    const KVCache* cache;
    int64_t first_row, rows, length;
    bool chain;                // every row follows the one before
    int64_t ancestors;         // offset of its paths in ancestors_, [rows][rows]
    int64_t blocks;            // of positions that its furthest row sees
  };
  // A piece of attention that one thread does: query heads that share a key head, over one block of positions if the
  // step has few rows, else over all blocks for one tile of rows.
  struct AttentionItem {
    int sequence, kv_head, first_head, heads;
    int64_t block, first_row, last_row;
  };
  // How attention is shared out in layers of one window.
  struct AttentionPlan {
    int64_t window;
    std::vector<AttentionItem> items;
  };

  const float* copy_vector(const float* values, int64_t n);
  void pack(Matrix& into, const PlainMatrix& plain, const float* bias, int64_t n_out, int64_t n_in, const std::string& name);
  const Block& block_at(int layer) const;
  const Matrix& place(int layer, Slot slot, int expert) const;
  std::string absent() const;
  void check_complete();
  void check(const Step& step, const StepOutputs& out) const;
  void plan(const Step& step);
  void plan_attention();
  void plan_attention(AttentionPlan& plan, bool by_blocks) const;
  void reserve(const Step& step, const StepOutputs& out);
  void reserve_experts(int64_t rows);

  // The phases of a step; every thread goes through all of them.
  void run(int thread, const Step& step, const StepOutputs& out);
  void embed(ThreadContext& context, const Step& step);
  void attention(ThreadContext& context, const Block& block);
  void mlp(ThreadContext& context, const Block& block);
  void experts(ThreadContext& context, const Block& block);
  void keep_hidden(ThreadContext& context, const StepOutputs& out, int32_t layer);
  void head(ThreadContext& context, int64_t wanted, const StepOutputs& out);

  template <typename Linear>
  void add_to_hidden(ThreadContext& context, const Block& block, Vector after, const Linear& linear, int64_t most = INT64_MAX);
  void choose(const Layer& l, const float* logits, float* scratch, int32_t* experts, float* weights) const;
  int64_t expert_tiles(int64_t assigned) const;
  float* hidden(int64_t row) { return hidden_.data() + row * hidden_stride_; }
  void norm(const float* x, const float* weight, float* out) const;
  bool whole_heads() const { return heads_.head_dim % kLanes == 0; }
  enum class Part { q, k, v };
  struct Head {
    Part part;
    int number;
  };
  Head head_of(int64_t index) const;
  void qkv(const Block& block, const Rows& x, int64_t begin, int64_t end);
  void norm_whole(ThreadContext& context, const Block& block, int64_t row);
  void norm_head(float* x, const float* weight) const;
  void finish_heads(const Block& block, int64_t begin, int64_t end);
  void attend(ThreadContext& context, const Block& block, const AttentionItem& item);
  void merge_heads(ThreadContext& context, const Block& block, int64_t row, float* out);
  Keys keys_of(const Sequence& s, const Block& block, int head) const;
  int64_t attention_floats(int64_t rows) const;  // of a thread's scratch
  float* partial(int64_t row, int64_t head, int64_t block);
  void head_and_top(ThreadContext& context, const Rows& x, int64_t item, int64_t wanted, const StepOutputs& out);
  void merge_tops(int64_t wanted, int top, int32_t* ids);

  const DecoderShape shape_;
  const Layer heads_;  // the first layer, for the numbers that all have alike: heads, kv_heads, head_dim
  CacheShape cache_shape_;
  const KernelTable* const kernels_;
  const int threads_;
  Arena arena_;
  std::vector<Block> blocks_;
  Matrix lm_head_, embedding_;
  const float* final_norm_ = nullptr;
  bool complete_ = false;  // nothing is missing
  std::vector<RopeTable> ropes_;

  // The step in hand.
  std::vector<Sequence> sequences_;
  std::vector<AttentionPlan> attention_plans_;  // one a window that layers have
  Phases phases_;
  std::vector<int32_t> depth_, ancestors_, sequence_of_;
  const int32_t* want_ = nullptr;
  int64_t rows_ = 0;
  int64_t partial_blocks_ = 1;  // partials kept a (row, head)

  // Scratch, grown between steps only. Widths are padded to 16, rows of RowsMemory to 32.
  int64_t hidden_stride_, qkv_stride_, k_column_, v_column_, widest_;
  Buffer<float> hidden_, branch_, qkv_, partials_;
  std::vector<ThreadMemory> own_;  // a thread
  RowsMemory shared_rows_, gated_rows_;
  ExpertChoice shared_choice_;
  Buffer<float> router_logits_;  // [rows][experts padded to 16]
  int64_t experts_touched_ = 0;
  int64_t head_items_ = 0;            // the lm_head's outputs in this many pieces, ascending
  Buffer<float> top_values_;          // [head_items][wanted][top]
  std::vector<int32_t> top_ids_;
  std::vector<int> top_counts_;       // [head_items][wanted]
  std::vector<int> merge_at_;         // [head_items]
};

// Adds to hidden what attention or the MLP comes to, after the layer's norm and multiplier. `linear(begin, end, out, add)`
// computes tiles of it, at most so many, for every row; `out` is where the first of them goes.
template <typename Linear>
void Decoder::add_to_hidden(ThreadContext& context, const Block& block, Vector after, const Linear& linear, int64_t most) {
  const float multiplier = block.shape.residual_multiplier, *weight = block.at(after);
  const int64_t tiles = hidden_stride_ / kLanes;
  if (weight == nullptr && multiplier == 1) {
    const auto add = [&](int64_t begin, int64_t end) { linear(begin, end, hidden_.data() + begin * kLanes, true); };
    context.split_tiles(tiles, add, most);
    return;
  }
  float* const branch = branch_.data();
  context.split_tiles(tiles, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kLanes;
    linear(begin, end, branch + first, false);
    if (weight != nullptr) return;
    const int64_t n = std::min<int64_t>(end * kLanes, shape_.hidden) - first;
    for (int64_t r = 0; r < rows_; ++r)
      kernels_->add_scaled(branch + r * hidden_stride_ + first, n, multiplier, hidden(r) + first);
  }, most);
  if (weight == nullptr) return;
  context.each(rows_, [&](int64_t r) {
    norm(branch + r * hidden_stride_, weight, context.scratch());
    kernels_->add_scaled(context.scratch(), shape_.hidden, multiplier, hidden(r));
  });
}

}  // namespace ipex_lookahead
