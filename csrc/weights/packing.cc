#include "weights/packing.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "weights/records.h"

namespace ipex_lookahead {
namespace {

template <bool kConst, typename T>
using ConstIf = std::conditional_t<kConst, const T, T>;

// The plain streams of one tile's rows. A conversion only reads the streams that it converts from.
template <bool kToTile>
struct PlainRows {
  ConstIf<kToTile, uint8_t>* codes;
  ConstIf<kToTile, uint16_t>*scales, *minimums;
  int64_t row_bytes, lanes;  // bytes of a row of codes; number of existing outputs
};
template <bool kToTile>
using Tiles = std::conditional_t<kToTile, TileStreams, Matrix>;

// Transposes n vectors of n elements: every round interleaves the two halves (a perfect shuffle).
template <typename T>
void transpose(__m128i* vectors) {
  constexpr int kCount = 16 / sizeof(T);
  for (int round = 1; round < kCount; round *= 2) {
    __m128i dealt[kCount];
    for (int i = 0; i < kCount / 2; ++i) {
      const __m128i a = vectors[i], b = vectors[i + kCount / 2];
      if constexpr (sizeof(T) == 4) {
        dealt[2 * i] = _mm_unpacklo_epi32(a, b);
        dealt[2 * i + 1] = _mm_unpackhi_epi32(a, b);
      } else if constexpr (sizeof(T) == 2) {
        dealt[2 * i] = _mm_unpacklo_epi16(a, b);
        dealt[2 * i + 1] = _mm_unpackhi_epi16(a, b);
      } else {
        dealt[2 * i] = _mm_unpacklo_epi8(a, b);
        dealt[2 * i + 1] = _mm_unpackhi_epi8(a, b);
      }
    }
    std::memcpy(vectors, dealt, sizeof dealt);
  }
}

template <bool kToTile, typename A, typename B>
void move(A& tile, B& plain) {
  if constexpr (kToTile)
    tile = plain;
  else
    plain = tile;
}

// Copies between [lane][i] and tile order [i][lane] for elements of T.
template <bool kToTile, typename T>
void transpose(ConstIf<!kToTile, T>* tile, ConstIf<kToTile, T>* plain, int64_t count, int64_t lanes) {
  int64_t first = 0;
  if constexpr (kToTile) {
    constexpr int kSquare = 16 / sizeof(T);
    for (; lanes == kLanes && first + kSquare <= count; first += kSquare)
      for (int lane = 0; lane < kLanes; lane += kSquare) {
        __m128i square[kSquare];
        for (int i = 0; i < kSquare; ++i) square[i] = load(plain + (lane + i) * count + first);
        transpose<T>(square);
        for (int i = 0; i < kSquare; ++i) store(tile + (first + i) * kLanes + lane, square[i]);
      }
  }
  for (int64_t k = first; k < count; ++k)
    for (int64_t lane = 0; lane < lanes; ++lane) move<kToTile>(tile[k * kLanes + lane], plain[lane * count + k]);
}

// Packing and unpacking of a format's tiles.
template <class Format, bool kFloats = Format::kArithmetic == Arithmetic::floats>
struct Layout {
  using Codes = typename Format::Codes;
  using Record = RecordOf<Format>;
  using Tile = TilePlanes<Codes>;
  using Scales = typename Format::Scales;
  static constexpr bool kApartScales = kHalves<Scales> && Record::kScale == kApart;
  static constexpr bool kMinimums = Scales::kMinimum;
  static constexpr int kInRecord = Record::kInputs / kGroup;
  static constexpr bool kAllSteps = Scales::kSteps == 2 && kInRecord == 8;

  static constexpr StreamFacts facts() {
    return {Format::kName, Record::kInputs, Record::kBytes, kApartScales, kApartScales && kMinimums};
  }

  static int group_blocks(int group) { return kApartScales ? group / kGroup : Record::kInputs / kGroup; }

  static TileBytes bytes(const Matrix& m) {
    const int64_t groups = (m.blocks + m.group_blocks - 1) / m.group_blocks;
    const int64_t scales = m.tiles() * kLanes * groups * int64_t(sizeof(uint16_t));
    return {m.tiles() * m.blocks * Codes::kBytes, kHalves<Scales> ? scales : 0, kMinimums ? scales : 0,
            Scales::kSteps ? m.tiles() * step_bytes<Scales>(m.blocks) : 0};
  }

  template <bool kToTile>
  static void convert(const Matrix& m, const Tiles<kToTile>& tiles, int64_t tile, const PlainRows<kToTile>& plain) {
    auto* const tile_steps = tiles.steps + (Scales::kSteps ? tile * step_bytes<Scales>(m.blocks) : 0);
    for (int64_t b = 0; b < m.blocks; ++b) {
      auto* const at = tiles.codes + (tile * m.blocks + b) * Codes::kBytes;
      const int j = int(b % kInRecord);
      const int64_t record_at = b / kInRecord * Record::kBytes;
      if constexpr (kToTile) {
        put_codes(at, plain, record_at, j);
        if (kAllSteps && j == 0) put_all_steps(tile_steps, plain, record_at, b, int(std::min<int64_t>(8, m.blocks - b)));
      }
      for (int64_t lane = 0; lane < plain.lanes; ++lane) {
        auto* const record = plain.codes + lane * plain.row_bytes + record_at;
        uint8_t steps[4];
        if constexpr (!kToTile) {
          for (int c = 0; c < kGroup / 4; ++c) Record::put(record, j, c, Tile::get(at + 4 * lane, 0, c) ^ Record::kFlip);
          TileSteps<Scales>::get(tile_steps + lane, b, steps);
          Record::put_steps(record, j, steps);
        } else if (Scales::kSteps && !kAllSteps) {
          Record::get_steps(record, j, steps);
          TileSteps<Scales>::put(tile_steps + lane, b, steps);
        }
      }
    }
    const int64_t groups = (m.blocks + m.group_blocks - 1) / m.group_blocks;
    auto* const scales = tiles.scales + tile * groups * kLanes;
    auto* const minimums = tiles.minimums + tile * groups * kLanes;
    if (kApartScales) {
      transpose<kToTile, uint16_t>(scales, plain.scales, groups, plain.lanes);
      if (kMinimums) transpose<kToTile, uint16_t>(minimums, plain.minimums, groups, plain.lanes);
    } else if (kHalves<Scales>) {
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t lane = 0; lane < plain.lanes; ++lane) {
          auto* const record = plain.codes + lane * plain.row_bytes + g * Record::kBytes;
          move_half<kToTile>(record + Record::kScale, scales[g * kLanes + lane], 0);
          if (kMinimums)
            move_half<kToTile>(record + Record::kMinimum, minimums[g * kLanes + lane], Record::kSubtracted ? 0x8000 : 0);
        }
    }
  }

  // Writes the codes of block j of the records at byte `at` of each row.
  static void put_codes(uint8_t* tile, const PlainRows<true>& plain, int64_t at, int j) {
    for (int64_t lane = 0; lane < plain.lanes; lane += 4) {
      __m128i words[8];
      for (int h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 4; ++i)
          words[4 * h + i] = lane + i < plain.lanes
                                 ? _mm_xor_si128(Record::get4(plain.codes + (lane + i) * plain.row_bytes + at, j, h),
                                                 _mm_set1_epi32(int(Record::kFlip)))
                                 : _mm_setzero_si128();
        transpose<uint32_t>(words + 4 * h);
      }
      Tile::put_block(tile + 4 * lane, words);
    }
  }

  // Writes the steps of the records at byte `at`: `blocks` blocks from block b.
  static void put_all_steps(uint8_t* tile, const PlainRows<true>& plain, int64_t at, int64_t b, int blocks) {
    if constexpr (kAllSteps) {
      __m128i rows[kLanes] = {};
      for (int64_t lane = 0; lane < plain.lanes; ++lane)
        rows[lane] = Record::all_steps(plain.codes + lane * plain.row_bytes + at);
      transpose<uint8_t>(rows);
      TileSteps<Scales>::put_rows(tile, b, blocks, rows);
    }
  }

  template <bool kToTile>
  static void move_half(ConstIf<kToTile, uint8_t>* record, ConstIf<!kToTile, uint16_t>& tile, int flip) {
    uint16_t half = uint16_t(tile ^ flip);
    if constexpr (kToTile) {
      std::memcpy(&half, record, sizeof half);
      tile = uint16_t(half ^ flip);
    } else {
      std::memcpy(record, &half, sizeof half);
    }
  }
};

template <class Format>
struct Layout<Format, true> {
  using Value = std::conditional_t<Format::kSize == 4, uint32_t, uint16_t>;

  static constexpr StreamFacts facts() { return {Format::kName, 1, Format::kSize, false, false}; }

  static int group_blocks(int) { return 1; }

  static TileBytes bytes(const Matrix& m) { return {m.tiles() * kLanes * m.n_in * Format::kSize, 0, 0, 0}; }

  template <bool kToTile>
  static void convert(const Matrix& m, const Tiles<kToTile>& tiles, int64_t tile, const PlainRows<kToTile>& plain) {
    auto* const at = tiles.codes + tile * m.n_in * kLanes * Format::kSize;
    transpose<kToTile, Value>(reinterpret_cast<ConstIf<!kToTile, Value>*>(at),
                              reinterpret_cast<ConstIf<kToTile, Value>*>(plain.codes), m.n_in, plain.lanes);
  }
};

struct Functions {
  StreamFacts facts;
  int (*group_blocks)(int group);
  TileBytes (*bytes)(const Matrix&);
  void (*to_tile)(const Matrix&, const TileStreams&, int64_t tile, const PlainRows<true>&);
  void (*to_plain)(const Matrix&, const Matrix&, int64_t tile, const PlainRows<false>&);
};
template <class Format>
struct FunctionsOf {
  static Functions value() {
    using L = Layout<Format>;
    return {L::facts(), L::group_blocks, L::bytes, L::template convert<true>, L::template convert<false>};
  }
};
const Functions& functions(WeightFormat format) {
  static const auto all = format_table<FunctionsOf>();
  return all.of[int(format)];
}

// Converts the rows of one tile.
template <bool kToTile, typename Bytes, typename Halves>
PlainRows<kToTile> rows_of(const Matrix& m, int64_t tile, Bytes* codes, Halves* scales, Halves* minimums) {
  const int64_t row = tile * kLanes, row_bytes = code_bytes(m.format, m.n_in);
  const int64_t groups = groups_of(m.format, m.n_in, m.group_blocks * kGroup);
  return {codes + row * row_bytes, scales ? scales + row * groups : nullptr, minimums ? minimums + row * groups : nullptr,
          row_bytes, std::min<int64_t>(kLanes, m.n_out - row)};
}

}  // namespace

const StreamFacts& stream_facts(WeightFormat format) { return functions(format).facts; }

WeightFormat format_of(const std::string& name) {
  for (int i = 0; i < kFormats; ++i)
    if (name == stream_facts(WeightFormat(i)).name) return WeightFormat(i);
  throw std::invalid_argument("the native engine has no kernel for format '" + name + "'");
}

int64_t code_bytes(WeightFormat format, int64_t n_in) {
  const StreamFacts& facts = stream_facts(format);
  return (n_in + facts.inputs - 1) / facts.inputs * facts.bytes;
}

int64_t groups_of(WeightFormat format, int64_t n_in, int group) {
  return stream_facts(format).scales ? (n_in + group - 1) / group : 0;
}

Matrix unset_matrix(WeightFormat format, int64_t n_out, int64_t n_in, int group) {
  Matrix m;
  m.format = format;
  m.n_out = n_out;
  m.n_in = n_in;
  m.blocks = int32_t((n_in + kGroup - 1) / kGroup);
  m.group_blocks = functions(format).group_blocks(group);
  return m;
}

TileBytes tile_bytes(const Matrix& m) { return functions(m.format).bytes(m); }

void prepack(const PlainMatrix& plain, const Matrix& shape, const TileStreams& into, Crew& crew) {
  crew.for_each(shape.tiles(), [&](int64_t tile) {
    const auto* codes = static_cast<const uint8_t*>(plain.codes);
    functions(shape.format).to_tile(shape, into, tile, rows_of<true>(shape, tile, codes, plain.scales, plain.minimums));
  });
}

Matrix prepack(const PlainMatrix& plain, Arena& arena, Crew& crew) {
  Matrix m = unset_matrix(plain.format, plain.n_out, plain.n_in, plain.group);
  const TileBytes bytes = tile_bytes(m);
  const auto take = [&](int64_t n) { return n == 0 ? nullptr : arena.take(size_t(n)); };
  const TileStreams into{static_cast<uint8_t*>(take(bytes.codes)), static_cast<uint16_t*>(take(bytes.scales)),
                         static_cast<uint16_t*>(take(bytes.minimums)), static_cast<uint8_t*>(take(bytes.steps))};
  prepack(plain, m, into, crew);
  m.codes = into.codes;
  m.scales = into.scales;
  m.minimums = into.minimums;
  m.steps = into.steps;
  return m;
}

void unpack(const Matrix& m, void* codes, uint16_t* scales, uint16_t* minimums, Crew& crew) {
  crew.for_each(m.tiles(), [&](int64_t tile) {
    functions(m.format).to_plain(m, m, tile, rows_of<false>(m, tile, static_cast<uint8_t*>(codes), scales, minimums));
  });
}

}  // namespace ipex_lookahead
