// The weight formats as the kernels read them: one struct a format, made of how a tile holds its codes (Codes), what a
// code stands for (its value less kZero), and where its scales come from (Scales). A new format is a struct and its name
// in FormatList; how it looks in a file stands in weights/records.h.
//
// Types and constants alone: every instruction set compiles this in its own way (generic/codes.inl, generic/scales.inl).
#pragma once

#include <cstdint>

namespace ipex_lookahead {

enum class WeightFormat : int32_t { fp32, fp16, bf16, sym_int8, sym_int4, asym_int4 };

// Codes: 16 outputs x 32 inputs in kBytes. A tile unpacks into eight rows of 64 bytes, byte j of row c being output j / 4,
// input 4 c + j % 4. kMost is the largest unsigned code: it decides how many products fit 16 bits where there is no VNNI.
struct Bytes {  // [8][64]
  static constexpr int kBytes = 512, kMost = 255;
};
struct Nibbles {  // [4][64]: row c low, row c + 4 high
  static constexpr int kBytes = 256, kMost = 15;
};

// Scales of binary16, one (and a minimum) for each output and group of inputs.
struct GroupScale {};
struct GroupScaleAndMinimum {};

// Activations stay floats, and so do weights.
template <int Size>
struct FloatFormat {
  static constexpr bool kFloat = true;
  static constexpr int kSize = Size;  // bytes of a weight
};
template <class CodesOf, int Zero, class ScalesOf>
struct IntegerFormat {
  static constexpr bool kFloat = false;
  static constexpr int kZero = Zero;
  using Codes = CodesOf;
  using Scales = ScalesOf;
};

struct Fp32 : FloatFormat<4> {
  static constexpr const char* kName = "fp32";
};
struct Fp16 : FloatFormat<2> {
  static constexpr const char* kName = "fp16";
};
struct Bf16 : FloatFormat<2> {
  static constexpr const char* kName = "bf16";
};
struct SymInt8 : IntegerFormat<Bytes, 128, GroupScale> {
  static constexpr const char* kName = "sym_int8";
};
struct SymInt4 : IntegerFormat<Nibbles, 8, GroupScale> {
  static constexpr const char* kName = "sym_int4";
};
struct AsymInt4 : IntegerFormat<Nibbles, 0, GroupScaleAndMinimum> {
  static constexpr const char* kName = "asym_int4";
};

template <class... Each>
struct Formats {
  static constexpr int kCount = sizeof...(Each);
  // One value for each format, in the order of WeightFormat: Make<Format>::value().
  template <template <class> class Make>
  static auto table() {
    using Value = decltype(Make<Fp32>::value());
    struct Table {
      Value of[sizeof...(Each)];
    };
    return Table{{Make<Each>::value()...}};
  }
};
using FormatList = Formats<Fp32, Fp16, Bf16, SymInt8, SymInt4, AsymInt4>;  // in WeightFormat's order

constexpr int kFormats = FormatList::kCount;
inline bool is_float(WeightFormat f) { return f <= WeightFormat::bf16; }

}  // namespace ipex_lookahead
