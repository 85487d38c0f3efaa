// The interface between the decoder and the instruction sets: plain structs and one function table per ISA.
//
// Guarantee of every function here: an output row depends on its input row alone, through operations in a fixed order. So the
// bits are the same for any number of rows, any split over threads, and every ISA (scalar is the oracle).
#pragma once

#include <cstdint>

#include "kernels/formats.h"

// Every instruction set compiles this header with its own flags, so nothing in it may become an out-of-line function.
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace ipex_lookahead {

constexpr int kLanes = 16;      // outputs in a weight tile; lanes of every canonical reduction
constexpr int kGroup = 32;      // inputs in a block of codes; group size of quantized activations
constexpr int kPage = 64;       // positions in a page of the KV cache
constexpr int kBlock = 256;     // positions in a block of attention; partial results are merged in ascending order

// A prepacked weight matrix. Tiles of 16 outputs are contiguous; the last tile is padded with zero scales.
//   codes    integer formats [n/16][blocks][Codes::kBytes], float formats [n/16][n_in][16]
//   scales, minimums  [n/16][ceil(blocks / group_blocks)][16], binary16
//   steps    [n/16][step_bytes(blocks)]: [blocks][kSteps][16], small integers (formats.h)
struct Matrix {
  WeightFormat format = WeightFormat::fp32;
  int64_t n_out = 0, n_in = 0;
  int32_t blocks = 0;        // ceil(n_in / 32)
  int32_t group_blocks = 1;  // blocks that share a scale; a power of two
  const uint8_t* codes = nullptr;
  const uint16_t* scales = nullptr;
  const uint16_t* minimums = nullptr;
  const uint8_t* steps = nullptr;
  const float* bias = nullptr;
  int64_t tiles() const { return (n_out + kLanes - 1) / kLanes; }
};

constexpr int64_t kBand = 16;   // activation rows with interleaved codes, block by block

// Activation rows: `count` rows from `first` of the `total` in this memory. `values` are for float weights. The other fields,
// filled by quantize_row, are for integer weights, in bands of 16 rows (the last band may have fewer), each [blocks][rows of
// the band], so that the operands of a block of weights are contiguous.
struct Rows {
  float* values = nullptr;        // [total][stride], zero from n_in to stride
  int8_t* codes = nullptr;        // [bands][blocks][rows][32]
  float* scales = nullptr;        // [bands][blocks][rows]: value = scale * code
  int32_t* bias4 = nullptr;       // the same: -8 * sum of the block's codes
  int32_t* bias8 = nullptr;       // -128 * sum of the block's codes
  int32_t* halves = nullptr;      // sums of the first and the last 16 codes, 16 bits each, first low
  float* sums = nullptr;          // scale * sum of the block's codes
  int64_t stride = 0, blocks = 0;
  int64_t first = 0, count = 0, total = 0;

  ALWAYS_INLINE float* values_of(int64_t r) const { return values + (first + r) * stride; }
  // Number of rows of r's band, and how many of them follow r, including r.
  ALWAYS_INLINE int64_t band_rows(int64_t r) const {
    const int64_t left = total - (first + r) / kBand * kBand;
    return left < kBand ? left : kBand;
  }
  ALWAYS_INLINE int64_t together(int64_t r) const { return band_rows(r) - (first + r) % kBand; }
  // Index of block b of row r in scales and sums; its codes start at 32 times that.
  ALWAYS_INLINE int64_t at(int64_t r, int64_t b) const {
    return (first + r) / kBand * kBand * blocks + b * band_rows(r) + (first + r) % kBand;
  }
};

// Activation functions of gated MLPs: f(gate) * up.
//   silu       gate sigmoid(gate) up
//   gelu_tanh  gate sigmoid(2 sqrt(2 / pi) (gate + 0.044715 gate^3)) up, GELU's tanh form
//   clamped    g sigmoid(alpha g) (u + 1), g = min(gate, limit), u = up within [-limit, limit]
//   relu_squared  max(gate, 0)^2 up
//   scaled_silu  g sigmoid(g) up, g = alpha gate
//   xielu      (alpha gate^2 + beta gate) up above 0, else ((e^min(gate, epsilon) - 1 - gate) alpha_below + beta gate) up
// Without a gate: f(up).
enum class ActivationKind : int32_t { silu, gelu_tanh, clamped, relu_squared, xielu, scaled_silu };
struct Activation {
  ActivationKind kind = ActivationKind::silu;
  float alpha = 0, limit = 0;
  float alpha_below = 0, beta = 0, epsilon = 0;
};

// Functions of a gate that multiply its input. gelu: gate (1 + erf(gate / sqrt(2))) / 2; gelu_quick: gate sigmoid(1.702 gate).
enum class GateKind : int32_t { none, sigmoid, silu, gelu_tanh, gelu, gelu_quick, softplus, tanh, relu };

// One row of a linear recurrence for a tile of 16 of a head's values: S = decay S, d = beta (v - S^T k), or beta v without
// the delta rule, S += k d^T, out = S^T q. The state S is [keys][16].
struct Recurrence {
  const float *q = nullptr, *k = nullptr;  // [keys]
  const float* v = nullptr;                // [16]
  float decay = 1, beta = 1;
  bool delta = false;
  float* out = nullptr;                    // [16]; null: only the state is updated
  const float* decays = nullptr;           // [keys]: a decay for each row of S, instead of `decay`; null: none
};

// Storage of keys and values: binary16, or int8 with a float scale per position and head.
enum class KvFormat : int32_t { fp16, int8 };
constexpr int kKvFormats = 2;
constexpr int64_t kv_bytes(KvFormat f) { return f == KvFormat::fp16 ? 2 : 1; }

// Keys and values of one sequence for attention; offsets in bytes.
struct Keys {
  uint8_t* const* pages = nullptr;  // page i holds slots 64 i ...; slot = position for committed rows
  int64_t k_offset = 0;             // of this layer and head in a page: keys [4][head_dim][16]; int8 in groups of four
  int64_t v_offset = 0;             // values [64][value_dim16]; int8 in groups of four (generic/attention_int8.inl)
  int64_t scale_offset = 0;         // int8 only: float key scales [64], then value scales [64]
  int64_t length = 0;               // committed positions; row r of the step is in slot length + r
  const int32_t* depth = nullptr;   // [rows]: row r has position length + depth[r]
  const int32_t* seen = nullptr;    // [rows]: row r sees up to position length + seen[r], of a chain; null: up to its own
  const int32_t* ancestors = nullptr;  // [rows][ancestor_stride]: the row at each depth up to and including itself; null: chain
  int64_t ancestor_stride = 0;
};

// One unit of attention: rows [begin, end) of a step and `heads` query heads that share one key head, over the positions
// [256 block, 256 block + 256). Rows that see none of them are skipped.
struct Attend {
  int heads = 0, head_dim = 0, value_dim = 0;
  const float* q = nullptr;  // q + r * q_stride + h * head_dim is a query, prepared by prepare_query
  int64_t q_stride = 0;
  int64_t begin = 0, end = 0, step_rows = 0;
  int64_t block = 0;
  int64_t window = 0;  // positions that a row sees, including its own, and those after it up to Keys::seen; 0: all
  float softcap = 0;   // scores become cap tanh(score / cap); 0: no cap
  float* partials = nullptr;  // row r's result is at partials + (r - begin) * partial_row_stride + h * partial_head_stride
  int64_t partial_row_stride = 0, partial_head_stride = 0;
  float* scratch = nullptr;  // attention_scratch(step_rows) floats
};

// A partial softmax over one block of positions: {max, sum, 14 unused, weighted values [value_dim16]}.
constexpr int kPartialHead = 16;

constexpr int kNotFinite = -1;  // returned by top_k() for values with NaN or an infinity

struct KernelTable {
  const char* name;

  // out[r][n - 16 begin] = (add ? out[r][n - 16 begin] : 0) + bias[n] + sum over k of x[r][k] w[n][k], for the tiles of 16
  // outputs [begin, end).
  void (*linear)(const Matrix& w, const Rows& x, int64_t begin, int64_t end, float* out, int64_t out_stride, bool add);
  // f(gate(x)) * up(x), or f(up(x)) if gate has no codes, as the next layer's rows, for the groups of 32 outputs [begin,
  // end): codes, scales and sums, or values if they are not quantized. Zero beyond the last output.
  void (*gate_up)(const Matrix& gate, const Matrix& up, const Activation& activation, const Rows& x, int64_t begin,
                  int64_t end, const Rows& out, bool quantize);
  // The second half of gate_up for group `group` of every row: f(gate) * up, or f(up) if gate is null, from [rows][32]. The
  // values are always stored, the codes only to quantize.
  void (*activate)(const Activation& activation, const float* gate, const float* up, const Rows& out, int64_t group, bool quantize);
  // Row `row` of the matrix as float [n_in] (embedding lookup).
  void (*dequantize_row)(const Matrix& w, int64_t row, float* out);
  // out = x / sqrt(mean(x^2) + eps) * weight; x and weight are zero-padded to a multiple of 16.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // The same for x - mean(x), with `bias` added unless null.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* out);
  // Fills codes, scales and sums of row r from its values.
  void (*quantize_row)(const Rows& x, int64_t r);
  // Rotates a head's first 2 half values in place, i with i + half; then multiplies the whole head by `scale`.
  void (*rope)(float* head, const float* cos, const float* sin, int half, int head_dim, float scale);
  // Store one head's key and value in a slot of a page, by KvFormat.
  void (*store_key[kKvFormats])(const float* k, uint8_t* keys, float* scales, int64_t slot_in_page, int head_dim);
  void (*store_value[kKvFormats])(const float* v, uint8_t* values, float* scales, int64_t slot_in_page, int head_dim);
  // Converts a head's query in place for attend(), by KvFormat.
  void (*prepare_query[kKvFormats])(float* q, int head_dim);
  // Scores, softmax and weighted values over one block of positions, by KvFormat.
  void (*attend[kKvFormats])(const Keys& keys, const Attend& a);
  // state = merge(state, next), both partials.
  void (*merge)(float* state, const float* next, int value_dim);
  // scale: x *= factor. add_scaled: out += factor * x, fused. The third: x = x * factor, and with a cap above 0
  // cap tanh(x / cap), NaN if x is not finite.
  void (*scale)(float* x, int64_t n, float factor);
  // x = min(max(x, low), high); NaN stays NaN.
  void (*clamp)(float* x, int64_t n, float low, float high);
  void (*add_scaled)(const float* x, int64_t n, float factor, float* out);
  void (*cap)(float* x, int64_t n, float factor, float cap);
  // x = softmax of x[0 .. n); the padding up to a multiple of 16 is overwritten.
  void (*softmax)(float* x, int64_t n);
  // out = weighted values / sum.
  void (*finish)(const float* state, int value_dim, float* out);
  // The k largest of x[0 .. n) with indices first, first + 1, ...: largest first, the lowest index first among equals. Returns
  // min(k, n), or kNotFinite if any x is NaN or infinite.
  int (*top_k)(const float* x, int64_t n, int64_t first, int k, float* values, int32_t* indices);
  // x = x f(gate).
  void (*gate)(const float* gate, int64_t n, GateKind kind, float* x);
  // out[c] = f(bias[c] + sum over t of weight[t][c] taps[t][c]) for n channels, where f is silu or the identity; weights
  // [kernel][stride].
  void (*convolve)(const float* const* taps, int kernel, const float* weight, int64_t stride, const float* bias, int64_t n,
                   bool silu, float* out);
  // steps = softplus(x + bias) within [least, most], decays = e^(rate steps).
  void (*recurrence_steps)(const float* x, const float* bias, const float* rate, float least, float most, int64_t n,
                           float* steps, float* decays);
  // decays = e^(bound sigmoid(rate (x + bias))).
  void (*bounded_decays)(const float* x, const float* bias, const float* rate, float bound, int64_t n, float* decays);
  // x = e^x.
  void (*exponentials)(float* x, int64_t n);
  // Applies one row to one tile of a recurrent state.
  void (*recur)(float* state, int64_t keys, const Recurrence& row);
  // Reads a buffer from end to end; a multiple of 256 bytes. For measuring bandwidth.
  float (*read)(const uint8_t* data, int64_t bytes);
  // About `repeats` x 8 of 16 x 4 integer dot products in registers, at full speed. For measuring the peak.
  int32_t (*integer_peak)(int64_t repeats);
};

constexpr int kQueries = 24;  // maximum number of queries attended to together
inline int64_t attention_scratch(int64_t step_rows) { return kQueries * (kBlock + step_rows + 2 * kLanes); }

const KernelTable* scalar_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx_vnni_kernels();
const KernelTable* avx512_vnni_kernels();
const KernelTable* amx_int8_kernels();  // tile registers for many rows, else as avx512_vnni

// Checks the integer results of two tile operations. Allocates nothing, so that it can run in a child process
// (runtime/tile_registers.h).
bool amx_tiles_multiply();

}  // namespace ipex_lookahead
