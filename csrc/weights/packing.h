// Plain (serialisable) weights to prepacked tiles, and back. The layouts are described at Matrix in kernels.h and in the
// Python package: each format's streams.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/kernels.h"
#include "runtime/arena.h"
#include "runtime/thread_pool.h"

namespace ipex_lookahead {

constexpr int kMostGroup = 1024;

// A weight in plain order: rows of code_bytes(), and of binary16 scales and minimums where the format keeps them apart.
struct PlainMatrix {
  WeightFormat format;
  int64_t n_out, n_in;
  int group;  // a power of two from 32 to kMostGroup; ignored where there are no scales
  const void* codes;
  const uint16_t* scales;
  const uint16_t* minimums;
};

// What the streams of a format look like.
struct StreamFacts {
  const char* name;
  int64_t inputs, bytes;  // of a record of codes
  bool scales, minimums;  // binary16, one a row and group, in streams of their own
};
const StreamFacts& stream_facts(WeightFormat format);
WeightFormat format_of(const std::string& name);  // std::invalid_argument for a name that no kernel knows

int64_t code_bytes(WeightFormat format, int64_t n_in);  // of one plain row
int64_t groups_of(WeightFormat format, int64_t n_in, int group);  // scales of one row; 0 where they are no stream

// A matrix whose streams are not there yet, and how long they are to be; 0: the format has none.
Matrix unset_matrix(WeightFormat format, int64_t n_out, int64_t n_in, int group);
struct TileBytes {
  int64_t codes, scales, minimums, steps;
};
TileBytes tile_bytes(const Matrix& matrix);

// Where a matrix's streams are written to; null for those that it has not.
struct TileStreams {
  uint8_t* codes;
  uint16_t *scales, *minimums;
  uint8_t* steps;
};

// Fills the streams (zeros before) of a matrix of the plain one's format and shape; or makes it, in the arena.
void prepack(const PlainMatrix& plain, const Matrix& shape, const TileStreams& into, Crew& crew);
Matrix prepack(const PlainMatrix& plain, Arena& arena, Crew& crew);

// Fills the plain streams (sizes as above, zeros before) from a prepacked matrix.
void unpack(const Matrix& matrix, void* codes, uint16_t* scales, uint16_t* minimums, Crew& crew);

}  // namespace ipex_lookahead
