// Conversion between plain (serializable) weights and prepacked tiles. The layouts are described at Matrix in kernels.h and,
// for each format's plain streams, in the Python package.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/kernels.h"
#include "runtime/arena.h"
#include "runtime/thread_pool.h"

namespace ipex_lookahead {

constexpr int kMaxGroup = 1024;

// A weight in plain order: rows of code_bytes(), and binary16 scales and minimums if the format stores them separately.
struct PlainMatrix {
  WeightFormat format;
  int64_t n_out, n_in;
  int group;  // a power of two from 32 to kMaxGroup; ignored without scales
  const void* codes;
  const uint16_t* scales;
  const uint16_t* minimums;
};

// Layout of a format's streams.
struct StreamFacts {
  const char* name;
  int64_t inputs, bytes;  // per record of codes
  bool scales, minimums;  // binary16, one per row and group, in separate streams
};
const StreamFacts& stream_facts(WeightFormat format);
WeightFormat format_of(const std::string& name);  // std::invalid_argument for an unknown name

int64_t code_bytes(WeightFormat format, int64_t n_in);  // per plain row
int64_t groups_of(WeightFormat format, int64_t n_in, int group);  // scales per row; 0 if there is no stream of scales

// A matrix without streams, and the required lengths of its streams; 0: the format has none.
Matrix unset_matrix(WeightFormat format, int64_t n_out, int64_t n_in, int group);
struct TileBytes {
  int64_t codes, scales, minimums, steps;
};
TileBytes tile_bytes(const Matrix& matrix);

// Destinations of a matrix's streams; null for absent ones.
struct TileStreams {
  uint8_t* codes;
  uint16_t *scales, *minimums;
  uint8_t* steps;
};

// Packs `plain` into zeroed streams of a matrix of its format and shape; or allocates the matrix in the arena.
void prepack(const PlainMatrix& plain, const Matrix& shape, const TileStreams& into, Crew& crew);
Matrix prepack(const PlainMatrix& plain, Arena& arena, Crew& crew);

// Unpacks a matrix into zeroed plain streams with the sizes above.
void unpack(const Matrix& matrix, void* codes, uint16_t* scales, uint16_t* minimums, Crew& crew);

}  // namespace ipex_lookahead
