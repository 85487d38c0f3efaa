// Searches for scales: the compiled twin of ipex_lookahead/formats/search.py, equal to it bit for bit.
#pragma once

#include <cstdint>
#include <vector>

namespace ipex_lookahead {

constexpr int kMostSearched = 64;   // inputs that may share a scale
constexpr int kMostParts = 16;   // parts that a block may have
constexpr int kMostNumbers = 256;

// What search.py's ScaleSearch and MinimumSearch say; see there.
struct Search {
  int inputs;                  // of a block
  int size;                    // inputs that share a scale; divides `inputs` into 1, 2, 4, 8 or 16 parts
  bool minimum;                // MinimumSearch; its numbers are 0 ... numbers.back()
  std::vector<float> numbers;  // ascending; with `whole` the first and the last are enough
  bool whole;                  // whole numbers, all of them between the first and the last
  std::vector<float> tries;
  int step_limit;  // least_step (negative) or most_step; 0: a block is one part without steps
};

// Blocks taken apart. minimum, steps and minimum_steps may be null where the search finds none.
struct FoundParts {
  uint8_t* codes;                   // [blocks, inputs], counted from the least number
  uint16_t *scale, *minimum;        // [blocks], binary16
  int16_t *steps, *minimum_steps;   // [blocks, parts]
};

// values [blocks, inputs]; importance [repeated, inputs], where `repeated` divides `blocks`: that of a row's blocks, once.
// lanes: 16 (AVX-512), 8 (AVX2) or 4 (any CPU) columns side by side; the result is the same.
void search_blocks(const Search& search, const float* values, const float* importance, int64_t blocks, int64_t repeated,
                   int lanes, const FoundParts& out);

int most_search_lanes();  // that this CPU has

}  // namespace ipex_lookahead
