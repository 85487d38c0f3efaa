// The AMX tile operations in plain C++, as specified in Intel's Software Developer's Manual (volume 2), for tests on machines
// without AMX. Where the processor would fault, it prints a message and aborts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ipex_lookahead {
namespace emulated {

struct Tile {
  int rows = 0, row_bytes = 0;  // as configured
  uint8_t bytes[16][64] = {};
};
struct TileFile {
  bool configured = false;
  Tile tiles[8];
};
inline TileFile& file() {
  static thread_local TileFile registers;  // per thread
  return registers;
}
inline void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "tile operation: %s\n", what);
  std::abort();
}
inline Tile& tile(int number) {
  demand(file().configured, "no configuration is loaded");
  demand(number >= 0 && number < 8, "there are eight tile registers");
  Tile& t = file().tiles[number];
  demand(t.rows > 0, "this register is not configured");
  return t;
}

inline void load_config(const void* memory) {
  uint8_t config[64];
  std::memcpy(config, memory, sizeof config);
  file() = TileFile();
  if (config[0] == 0) return;
  demand(config[0] == 1, "palette 1 is the only one");
  for (int i = 2; i < 16; ++i) demand(config[i] == 0, "reserved bytes of the configuration are not zero");
  for (int t = 0; t < 16; ++t) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, config + 16 + 2 * t, sizeof row_bytes);
    const int rows = config[48 + t];
    demand(t < 8 || (rows == 0 && row_bytes == 0), "there are eight tile registers");
    demand(row_bytes <= 64 && rows <= 16, "a tile has at most 16 rows of 64 bytes");
    demand((rows == 0) == (row_bytes == 0), "rows or bytes alone are zero");
    if (t < 8) {
      file().tiles[t].rows = rows;
      file().tiles[t].row_bytes = row_bytes;
    }
  }
  file().configured = true;
}
inline void release() { file() = TileFile(); }
inline void zero_tile(int to) { std::memset(tile(to).bytes, 0, sizeof Tile::bytes); }
inline void load_tile(int to, const void* memory, int64_t stride) {
  Tile& t = tile(to);
  std::memset(t.bytes, 0, sizeof t.bytes);
  for (int r = 0; r < t.rows; ++r)
    std::memcpy(t.bytes[r], static_cast<const uint8_t*>(memory) + r * stride, size_t(t.row_bytes));
}
inline void store_tile(int from, void* memory, int64_t stride) {
  const Tile& t = tile(from);
  for (int r = 0; r < t.rows; ++r)
    std::memcpy(static_cast<uint8_t*>(memory) + r * stride, t.bytes[r], size_t(t.row_bytes));
}
// to[m][n] += sum over k, i of a[m][4 k + i] * b[k][4 n + i], for signed bytes with 32-bit sums.
inline void dot_signed(int to, int first, int second) {
  Tile& c = tile(to);
  const Tile &a = tile(first), &b = tile(second);
  demand(to != first && to != second && first != second, "the three registers are not different");
  demand(a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0 && c.row_bytes % 4 == 0, "rows are not of whole 32-bit elements");
  demand(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes / 4 == b.rows, "the shapes do not fit");
  for (int m = 0; m < c.rows; ++m)
    for (int n = 0; n < c.row_bytes / 4; ++n) {
      uint32_t sum;
      std::memcpy(&sum, c.bytes[m] + 4 * n, sizeof sum);
      for (int k = 0; k < b.rows; ++k)
        for (int i = 0; i < 4; ++i)
          sum += uint32_t(int32_t(int8_t(a.bytes[m][4 * k + i])) * int32_t(int8_t(b.bytes[k][4 * n + i])));
      std::memcpy(c.bytes[m] + 4 * n, &sum, sizeof sum);
    }
}

}  // namespace emulated
}  // namespace ipex_lookahead

#define _tile_loadconfig(memory) ::ipex_lookahead::emulated::load_config(memory)
#define _tile_release() ::ipex_lookahead::emulated::release()
#define _tile_zero(to) ::ipex_lookahead::emulated::zero_tile(to)
#define _tile_loadd(to, memory, stride) ::ipex_lookahead::emulated::load_tile(to, memory, stride)
#define _tile_stored(from, memory, stride) ::ipex_lookahead::emulated::store_tile(from, memory, stride)
#define _tile_dpbssd(to, a, b) ::ipex_lookahead::emulated::dot_signed(to, a, b)
