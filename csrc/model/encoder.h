// An encoder: rows of floats in, rows of floats out. Every row attends to all rows, or to those within a distance. There is no
// cache: an input's keys and values are float32 and live as long as its pass.
//
// Attention is two products with the kernels of linear layers: scores = Q K^T and outputs = P V, with K and V in the layout of
// float weights. So a row's result depends on the input's rows alone, through operations in a fixed order.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/operation.h"
#include "model/rope.h"
#include "model/spec.h"
#include "model/weights.h"
#include "runtime/arena.h"
#include "runtime/rows.h"
#include "runtime/thread_pool.h"

namespace ipex_lookahead {

struct LinearShape {
  int64_t n_out = 0, n_in = 0;  // n_out = 0: absent
  bool clip = false;            // inputs and outputs are clamped to four learned limits
};

// An RMS norm without weights.
struct PlainNormShape {
  int64_t width = 0;
  float epsilon = 0;
};

// A sequence of operations on a row, such as a patch embedding or a projector.
using LinkShape = std::variant<NormShape, PlainNormShape, LinearShape, GateKind>;
using ChainShape = std::vector<LinkShape>;

// x + after(attention(before(x))), then x + after(mlp(before(x))); with post_norm, after(x + ...).
struct EncoderBlockShape {
  NormShape mixer_norm, mixer_after, feed_forward_norm, feed_forward_after;
  int heads = 0, kv_heads = 0, head_dim = 0;
  int rope = -1;  // index into EncoderShape::ropes; -1: no rotary embedding
  float query_scale = 1;
  int64_t distance = 0;  // rows see those up to this distance; 0: all
  LinearShape q, k, v, o;
  NormShape q_norm, k_norm;  // per head
  float value_norm = 0;      // epsilon of an RMS norm without weights over each head of values; 0: no norm
  LinearShape gate, up, down;
  GateKind activation = GateKind::silu;
};

// Texts' rows are embedding_norm(multiplier * embedding + type + position).
struct EncoderShape {
  int64_t hidden = 0;
  int64_t vocab = 0, types = 0, positions = 0;  // rows of tables; 0: no table
  float embedding_multiplier = 1;
  NormShape embedding_norm, final_norm;
  bool post_norm = false;
  std::vector<float> slopes;  // [heads]: a score is lowered by its head's slope times the distance; empty: not at all
  std::vector<Rope> ropes;
  int rope_parts = 1;  // consecutive parts of a head that are rotated separately, each half with half
  std::vector<ChainShape> chains;
  std::vector<EncoderBlockShape> layers;
};

class Encoder;

// Texts, a run of tokens each. `types`: null for type 0 everywhere.
struct Texts {
  const int32_t *tokens = nullptr, *types = nullptr;
  std::vector<int64_t> lengths;
};

// Inputs on their way through the layers: one of given rows, or texts one after the other, which do not see each other. It runs
// in slices, so that other work can use the threads between them.
class EncoderPass {
 public:
  // x [rows][hidden]; cos, sin [rows][ropes][head_dim / 2], or null for an encoder without rope. The encoder must outlive the
  // pass.
  EncoderPass(Encoder& encoder, const float* x, int64_t rows, const float* cos, const float* sin);
  // Throws std::invalid_argument for an encoder without an embedding, a text without tokens, and an index without a row;
  // MissingWeightError.
  EncoderPass(Encoder& encoder, const Texts& texts);

  // Runs the next slices until about `work` multiply-adds are done, or layer `until` is complete. 0: kSliceWork per thread.
  // Throws std::invalid_argument if layer `until` is complete or does not exist, MissingWeightError.
  void advance(int64_t until, int64_t work);
  int64_t layer() const { return layer_; }  // number of complete layers
  int64_t rows() const { return rows_; }
  const Encoder& encoder() const { return encoder_; }
  // Copies the rows after layer() layers, [rows][hidden], after all layers with the final norm. Throws std::invalid_argument
  // within a layer.
  void copy(float* out) const;

 private:
  friend class Encoder;
  // An input: its rows, and its first tile of keys. Keys are [kv_heads][tiles][head_dim][16] from that tile, values
  // [kv_heads][head_dim / 16][rows][16] from its first row.
  struct Segment {
    int64_t first, rows, first_tile, tiles;
  };
  EncoderPass(Encoder& encoder, const std::vector<int64_t>& lengths);
  const Segment& segment(int64_t row) const { return segments_[size_t(segment_of_[size_t(row)])]; }

  Encoder& encoder_;
  std::vector<Segment> segments_;
  std::vector<int32_t> segment_of_;  // of each row
  int64_t rows_ = 0, longest_ = 0;
  Buffer<float> hidden_, queries_, keys_, values_, cos_, sin_;
  Buffer<float> distances_;  // n - 1 ... 1, 0, 1 ... n - 1: those of row r begin at n - 1 - r
  int64_t layer_ = 0, next_ = 0;  // next row of the layer's current half
  bool attends_ = false;          // the half: projections, or attention and MLP
};

// Methods that run or change it hold the process's thread pool (a Crew).
class Encoder {
 public:
  static constexpr int64_t kMaxRows = 1 << 20;

  // Throws std::invalid_argument for an invalid shape or number of threads.
  Encoder(const EncoderShape& shape, int threads, const std::string& isa);

  // Names: chains.0.1.weight, layers.0.mixer.q.weight, layers.0.mixer.q.clip.input_min, ...
  DecoderWeights& weights() { return weights_; }
  const DecoderWeights& weights() const { return weights_; }
  const EncoderShape& shape() const { return shape_; }
  const char* isa() const { return kernels_.name; }
  int threads() const { return threads_; }
  // Number of rows of a chain's slice: the time of a slice does not depend on the number of threads.
  int64_t slice_rows() const;

  // Cosines of a row: those of every rope; 0: no layer has rope.
  int64_t rope_width() const;
  // Inputs and outputs of a chain. Throws std::invalid_argument for a chain that does not exist.
  std::pair<int64_t, int64_t> widths(int64_t chain) const;
  // out [rows][outputs] = chain(x [rows][inputs]). Throws as widths(), MissingWeightError.
  void run_chain(int64_t chain, const float* x, int64_t rows, float* out);

 private:
  friend class EncoderPass;
  // Rows of a work item of linear layers: a multiple of bands of integer rows and of what float kernels take at once; and of
  // attention.
  static constexpr int64_t kRowsOfItem = 144, kRowsOfRun = 36;
  struct LinearLayer {
    Matrix matrix;
    int64_t n_out = 0, n_in = 0;
    const float *input_min = nullptr, *input_max = nullptr, *output_min = nullptr, *output_max = nullptr;
    void declare(const std::string& name, const LinearShape& shape, bool floats, DecoderWeights& weights);
    bool any() const { return n_out > 0; }
    bool integer() const { return any() && !is_float(matrix.format); }
  };
  struct Block {
    Norm mixer_norm, mixer_after, feed_forward_norm, feed_forward_after, q_norm, k_norm;
    LinearLayer q, k, v, o, gate, up, down;
  };
  struct Link {
    GateKind activation = GateKind::none;  // if there is neither a norm nor a linear layer
    Norm norm;
    LinearLayer linear;
  };
  // Of one thread.
  struct Scratch {
    Buffer<float> input, q, scores, branch;
    RowsMemory clipped;
    void reserve(int64_t widest, int64_t row_scores);
  };
  // Half of a layer for rows [begin, end) of a pass.
  struct Slice {
    int64_t layer;
    bool attends;
    int64_t begin, end;
    std::vector<std::pair<int64_t, int64_t>> runs;  // rows of one input each, for attention
  };
  // One thread's view of the phases of slices.
  struct Worker;

  template <typename Work>
  void each_band(int64_t begin, int64_t end, const Work& work);
  void widen(int64_t width);
  void reserve(int64_t rows, int64_t row_scores);
  Rows view(RowsMemory& memory, int64_t rows, int64_t width) const;
  int64_t layer_work(int64_t layer) const;
  void run(EncoderPass& pass, const std::vector<Slice>& slices);
  void project(Worker& worker, EncoderPass& pass, const Slice& slice);
  void attend(Worker& worker, EncoderPass& pass, const Slice& slice);
  void apply(Scratch& scratch, const LinearLayer& linear, const Rows& x, int64_t begin, int64_t end, float* out, int64_t stride) const;
  void read_row(const Norm& norm, const float* hidden, const Rows& x, int64_t r, bool integer) const;
  void norm_head(const Norm& norm, int d, float* x) const;
  void store_row(EncoderPass& pass, const Slice& slice, int64_t row, float* k, float* v) const;
  void attend_within(Scratch& scratch, EncoderPass& pass, int64_t layer, int64_t begin, int64_t end, int64_t first_head,
                     int64_t last_head, const Rows& merged) const;
  void add_row(const Norm& after, const float* branch, float* memory, float* hidden) const;
  void rotate(const EncoderPass& pass, int64_t row, int d, float scale, int rope, float* x) const;
  void check_texts(const Texts& texts) const;
  void embed(EncoderPass& pass, const Texts& texts);
  void embed_row(Scratch& scratch, int64_t token, int64_t type, int64_t position, float* out) const;

  const EncoderShape shape_;
  const KernelTable& kernels_;
  const int threads_;
  const int64_t stride_;
  int64_t widest_;  // of the rows that linear layers read, padded
  DecoderWeights weights_;
  std::vector<float> ones_;
  Matrix embedding_, types_, positions_;
  Norm embedding_norm_, final_norm_;
  std::vector<RopeTable> ropes_;  // of texts; grows with a Crew
  std::vector<std::vector<Link>> chains_;
  std::vector<Block> blocks_;
  std::vector<Scratch> scratch_;  // one per thread
  RowsMemory inputs_, merged_, gated_;  // rows of a slice that linear layers read
  Buffer<float> kv_, branch_, gate_;    // rows of a slice that linear layers write
  Phases phases_;
};

}  // namespace ipex_lookahead
