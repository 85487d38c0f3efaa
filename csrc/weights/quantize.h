// Float matrices to plain low-bit ones, as formats/groups.py and formats/blocks.py define it, equal to them bit for bit.
#pragma once

#include <cstdint>

#include "weights/packing.h"
#include "weights/search.h"

namespace ipex_lookahead {

enum class FloatKind { fp32, fp16, bf16 };

// A float matrix, and what its rows are to become.
struct Quantization {
  WeightFormat format;
  int64_t n_out, n_in;
  FloatKind kind;
  const void* values;       // [n_out, n_in]
  const float* importance;  // of a row, to whole blocks; 0 where there are no inputs
  float largest;            // magnitude that a value may have
  Search search;
  uint8_t code_of[kMostNumbers];  // what the search's codes are in the stream
  int lanes;                      // see search_blocks
};

// Whether the format's streams hold what such a search of blocks in so many parts finds.
bool fits(WeightFormat format, SearchKind kind, int parts);

// Fills the plain streams, codes zeros before, and returns -1; or the first row that has a value that is NaN, infinite or too
// large, or needs a scale beyond binary16: what the streams hold is of no use then. Takes a Crew now and then, so that steps
// of models in other threads get their turn.
int64_t quantize(const Quantization& wanted, uint8_t* codes, uint16_t* scales, uint16_t* minimums, int threads);

}  // namespace ipex_lookahead
