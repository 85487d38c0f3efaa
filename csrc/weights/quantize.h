// Quantization of float matrices to plain low-bit matrices, bit-equal to formats/groups.py and formats/blocks.py.
#pragma once

#include <cstdint>

#include "weights/packing.h"
#include "weights/search.h"

namespace ipex_lookahead {

enum class FloatKind { fp32, fp16, bf16 };

// A float matrix and the parameters of its quantization.
struct Quantization {
  WeightFormat format;
  int64_t n_out, n_in;
  FloatKind kind;
  const void* values;       // [n_out, n_in]
  const float* importance;  // of one row, padded to whole blocks with 0
  float largest;            // maximum magnitude of a value
  Search search;
  uint8_t code_of[kMaxNumbers];  // the stream's code for each code of the search
  int lanes;                      // see search_blocks
};

// True if the format's streams can store the result of such a search with blocks of `parts` parts.
bool fits(WeightFormat format, SearchKind kind, int parts);

// Fills the plain streams (codes zeroed before) and returns -1. Otherwise returns the first row with a value that is NaN,
// infinite or too large, or with a scale beyond binary16; the streams are invalid then. Takes a Crew for a limited number of
// items at a time, so that steps of models in other threads can run in between.
int64_t quantize(const Quantization& wanted, uint8_t* codes, uint16_t* scales, uint16_t* minimums, int threads);

}  // namespace ipex_lookahead
