// Scale searches, the compiled counterpart of ipex_lookahead/formats/search.py, bit-equal to it.
#pragma once

#include <cstdint>
#include <vector>

namespace ipex_lookahead {

constexpr int kMaxSearched = 1024;  // maximum number of inputs that share a scale
constexpr int kMaxParts = 16;       // maximum number of parts of a block
constexpr int kMaxNumbers = 256;

// ScaleSearch, the same with a float32 scale, MinimumSearch, ZeroSearch, ExponentSearch.
enum class SearchKind { scale, float_scale, minimum, zero, exponent };

// Parameters of a search; the classes of search.py document them.
struct Search {
  SearchKind kind;
  int inputs;                  // per block
  int size;                    // inputs that share a scale; divides `inputs` into 1, 2, 4, 8 or 16 parts
  std::vector<float> numbers;  // ascending; with `whole`, the first and the last are enough; for exponents, the values in between
  bool whole;                  // all integers between the first and the last number; minimum, zero: from 0
  std::vector<float> tries;
  int step_limit;  // least_step (negative) or most_step; 0: a block is one part without steps
};

// Search results. Fields that a kind of search does not find may be null.
struct FoundParts {
  uint8_t* codes;                  // [blocks, inputs], offset by the smallest number
  uint16_t *scale, *minimum;       // [blocks], binary16; a zero point is stored as a minimum
  int16_t *steps, *minimum_steps;  // [blocks, parts]; exponents are stored as steps
  float* float_scale;              // [blocks]
};

// values [blocks, inputs]; importance [repeated, inputs], where `repeated` divides `blocks`: the importance of one row's
// blocks. lanes: 16 (AVX-512), 8 (AVX2) or 4 (any CPU) columns at a time; the result is the same.
void search_blocks(const Search& search, const float* values, const float* importance, int64_t blocks, int64_t repeated,
                   int lanes, const FoundParts& out);

int most_search_lanes();  // supported by this CPU

}  // namespace ipex_lookahead
