// Searches for scales: the compiled twin of ipex_lookahead/formats/search.py, equal to it bit for bit.
#pragma once

#include <cstdint>
#include <vector>

namespace ipex_lookahead {

constexpr int kMostSearched = 1024;  // inputs that may share a scale
constexpr int kMostParts = 16;       // parts that a block may have
constexpr int kMostNumbers = 256;

// ScaleSearch, the same with a scale that is kept as float32, MinimumSearch, ZeroSearch, ExponentSearch.
enum class SearchKind { scale, float_scale, minimum, zero, exponent };

// What the classes of search.py say; see there.
struct Search {
  SearchKind kind;
  int inputs;                  // of a block
  int size;                    // inputs that share a scale; divides `inputs` into 1, 2, 4, 8 or 16 parts
  std::vector<float> numbers;  // ascending; with `whole` the first and the last are enough; exponent: what lies between
  bool whole;                  // whole numbers, all of them between the first and the last; minimum, zero: from 0 on
  std::vector<float> tries;
  int step_limit;  // least_step (negative) or most_step; 0: a block is one part without steps
};

// Blocks taken apart. What a kind of search does not find may be null.
struct FoundParts {
  uint8_t* codes;                  // [blocks, inputs], counted from the least number
  uint16_t *scale, *minimum;       // [blocks], binary16; a zero point is a minimum
  int16_t *steps, *minimum_steps;  // [blocks, parts]; exponents are steps
  float* float_scale;              // [blocks]
};

// values [blocks, inputs]; importance [repeated, inputs], where `repeated` divides `blocks`: that of a row's blocks, once.
// lanes: 16 (AVX-512), 8 (AVX2) or 4 (any CPU) columns side by side; the result is the same.
void search_blocks(const Search& search, const float* values, const float* importance, int64_t blocks, int64_t repeated,
                   int lanes, const FoundParts& out);

int most_search_lanes();  // that this CPU has

}  // namespace ipex_lookahead
