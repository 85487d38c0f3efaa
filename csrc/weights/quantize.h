// Quantisers: the fast twins of ipex_lookahead/formats/{sym_int4,asym_int4,sym_int8}.py, equal to them bit for bit.
//
// A matrix [n_out, n_in] of floats, row-major, becomes streams in plain order (formats/base.py, PackedWeight), with
// blocks = ceil(n_in / 32) and groups = ceil(n_in / group):
//   sym_int4, asym_int4   codes uint8 [n_out, blocks * 16]
//   sym_int8              codes int8 [n_out, blocks * 32]
//   scales, minimums      binary16 bits [n_out, groups]
// Each returns -1, or the first row that cannot be represented: one that holds a NaN or an infinity, or whose scale (or
// minimum) is beyond binary16. What the streams hold from that row on is then unspecified.
// group is 32 or 64; n_out, n_in and threads are at least 1. Rows are split among the threads; the result is the same
// for any number of them.
#pragma once

#include <cstdint>

namespace ipex_lookahead {

enum class FloatKind { fp32, fp16, bf16 };

int64_t quantize_sym_int4(const void* src, FloatKind kind, int64_t n_out, int64_t n_in, int group, int threads,
                          uint8_t* codes, uint16_t* scales);

int64_t quantize_asym_int4(const void* src, FloatKind kind, int64_t n_out, int64_t n_in, int group, int threads,
                           uint8_t* codes, uint16_t* scales, uint16_t* minimums);

int64_t quantize_sym_int8(const void* src, FloatKind kind, int64_t n_out, int64_t n_in, int group, int threads,
                          int8_t* codes, uint16_t* scales);

}  // namespace ipex_lookahead
