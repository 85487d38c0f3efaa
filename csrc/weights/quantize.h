// Quantisers: the fast twins of ipex_lookahead/formats/{sym_int4,asym_int4,sym_int8}.py, equal to them bit for bit.
#pragma once

#include <cstdint>

#include "kernels/formats.h"

namespace ipex_lookahead {

// Plain streams to be filled: rows of code_bytes(), and binary16 scales and minimums, one a row and group.
struct QuantizedStreams {
  uint8_t* codes;
  uint16_t* scales;
  uint16_t* minimums;
};

// A row-major matrix [n_out, n_in] of floats of format `kind` (fp32, fp16, bf16) becomes streams in plain order. Returns
// -1, or the first row that cannot be represented: one that holds a NaN or an infinity, or whose scale (or minimum) is
// beyond binary16. What the streams hold from that row on is then unspecified. group is 32 or 64; n_out, n_in and threads
// are at least 1. Rows are split among the threads; the result is the same for any number of them.
using Quantizer = int64_t(const void* source, WeightFormat kind, int64_t n_out, int64_t n_in, int group, int threads,
                          QuantizedStreams out);

Quantizer* quantizer_of(WeightFormat format);  // null for a format that the core has none for

}  // namespace ipex_lookahead
