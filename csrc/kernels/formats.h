// The weight formats of the kernels, declared once. WEIGHT_FORMATS lists for each format how a tile stores its codes (Codes),
// the value of a code (code - kZero, or Values), and its scales (Scales). The enumeration, the function tables,
// weight_formats in Python and the OpenCL kernels' options are generated from that list. weights/records.h has the bit layout
// of records in files.
//
// Types and constants only: every instruction set compiles them separately (generic/codes.inl, generic/scales.inl).
#pragma once

#include <cstdint>
#include <type_traits>

namespace ipex_lookahead {

// Codes: 16 outputs x 32 inputs in kBytes. A tile unpacks into eight rows of 64 bytes; byte j of row c is output j / 4, input
// 4 c + j % 4. kMaxCode is the largest unsigned code: it limits the number of products that fit 16 bits without VNNI.
struct Bytes {  // [8][64]
  static constexpr const char* kName = "BYTES";
  static constexpr int kBytes = 512, kMaxCode = 255;
};
struct Nibbles {  // [4][64]: row c low, row c + 4 high
  static constexpr const char* kName = "NIBBLES";
  static constexpr int kBytes = 256, kMaxCode = 15;
};

struct Nibbles5 {  // [4][64] as Nibbles, then [64]: bit c is the fifth of row c
  static constexpr const char* kName = "NIBBLES5";
  static constexpr int kBytes = 320, kMaxCode = 31;
};
struct Nibbles6 {  // [4][64] as Nibbles, then [2][64]: two bits of rows 4 h ... 4 h + 3, the first row's lowest
  static constexpr const char* kName = "NIBBLES6";
  static constexpr int kBytes = 384, kMaxCode = 63;
};
struct Crumbs {  // [2][64]: rows 4 h ... 4 h + 3, the first row's lowest
  static constexpr const char* kName = "CRUMBS";
  static constexpr int kBytes = 128, kMaxCode = 3;
};
struct Crumbs3 {  // [2][64] as Crumbs, then [64]: bit c is the third of row c
  static constexpr const char* kName = "CRUMBS3";
  static constexpr int kBytes = 192, kMaxCode = 7;
};
// Nibbles that index a table of integers. kTable holds value + zero point, which is positive.
struct E2m1 : Nibbles {  // 0, 0.5, 1, 1.5, 2, 3, 4, 6, doubled, then negative
  static constexpr const char* kName = "E2M1";
  static constexpr int kMaxCode = 31;
  static constexpr uint8_t kTable[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
};
struct Iq4 : Nibbles {  // llama.cpp's non-linear four bits: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, ...
  static constexpr const char* kName = "IQ4";
  static constexpr int kMaxCode = 255;
  static constexpr uint8_t kTable[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
};

// Scales. kBlocks: number of 32-input blocks that share a binary16 scale of an output; 0: the matrix's group_blocks. kSteps:
// additional bytes per output and block. kMinimum: there is a second binary16 number, which is added to the scaled code, or, if
// kZeroPoint, an integer that is subtracted from the codes.
struct GroupScale {  // value = scale * code
  static constexpr const char* kName = "GROUP_SCALE";
  static constexpr int kBlocks = 0, kSteps = 0;
  static constexpr bool kMinimum = false;
};
struct GroupScaleAndMinimum {  // scale * code + minimum
  static constexpr const char* kName = "GROUP_SCALE_AND_MINIMUM";
  static constexpr int kBlocks = 0, kSteps = 0;
  static constexpr bool kMinimum = true;
};
struct HalvedGroupScale : GroupScale {  // scale / 2 * code
  static constexpr const char* kName = "HALVED_GROUP_SCALE";
};
struct GroupScaleAndZero {  // scale * (code - zero), zero an integer
  static constexpr const char* kName = "GROUP_SCALE_AND_ZERO";
  static constexpr int kBlocks = 0, kSteps = 0;
  static constexpr bool kMinimum = true;
};
struct FloatScale {  // scale * code, scale a float32 for two blocks: its four bytes, lowest first, [4][16]
  static constexpr const char* kName = "FLOAT_SCALE";
  static constexpr int kBlocks = 2, kSteps = 2;
  static constexpr bool kMinimum = false;
};
struct ExponentScale {  // 2^(step - 128) * code
  static constexpr const char* kName = "EXPONENT_SCALE";
  static constexpr int kBlocks = 0, kSteps = 1;
  static constexpr bool kMinimum = false;
};
struct StepScale {  // scale * (step - 32) * code
  static constexpr const char* kName = "STEP_SCALE";
  static constexpr int kBlocks = 8, kSteps = 1;
  static constexpr bool kMinimum = false;
};
struct StepScaleAndMinimum {  // scale * step * code + minimum * second step
  static constexpr const char* kName = "STEP_SCALE_AND_MINIMUM";
  static constexpr int kBlocks = 8, kSteps = 2;
  static constexpr bool kMinimum = true;
};
struct HalfSteps {  // scale * step * code, a signed step for each half of a block
  static constexpr const char* kName = "HALF_STEPS";
  static constexpr int kBlocks = 8, kSteps = 2;
  static constexpr bool kMinimum = false;
};
struct HalfSteps6 {  // scale * (step - 32) * code, six bits: for 8 blocks [8][16] low nibbles of both, [4][16] the rest
  static constexpr const char* kName = "HALF_STEPS6";
  static constexpr int kBlocks = 8, kSteps = 2;
  static constexpr bool kMinimum = false;
};
struct HalfStepsAndMinimums {  // scale * (step & 15) * code + minimum * (step >> 4), a step for each half of a block
  static constexpr const char* kName = "HALF_STEPS_AND_MINIMUMS";
  static constexpr int kBlocks = 8, kSteps = 2;
  static constexpr bool kMinimum = true;
};
template <class Scales>
constexpr int64_t step_bytes(int64_t blocks) {  // per tile
  return 16 * Scales::kSteps * blocks;
}
template <>
constexpr int64_t step_bytes<HalfSteps6>(int64_t blocks) {
  return (blocks + 7) / 8 * 192;
}
template <>
constexpr int64_t step_bytes<FloatScale>(int64_t blocks) {
  return (blocks + 1) / 2 * 64;
}
template <class Scales>
constexpr bool kZeroPoint = std::is_same_v<Scales, GroupScaleAndZero>;
template <class Scales>
constexpr bool kHalves = !std::is_same_v<Scales, ExponentScale> && !std::is_same_v<Scales, FloatScale>;  // binary16 scales

// Arithmetic of products: floats; integers, with activations quantized to int8; or floats looked up from codes.
enum class Arithmetic { floats, whole, codebook };

template <int Size>
struct FloatFormat {
  static constexpr Arithmetic kArithmetic = Arithmetic::floats;
  static constexpr int kSize = Size;  // bytes per weight
};
template <class CodesOf, int Zero, class ScalesOf>
struct IntegerFormat {
  static constexpr Arithmetic kArithmetic = Arithmetic::whole;
  static constexpr int kZero = Zero;
  using Codes = CodesOf;
  using Scales = ScalesOf;
};
// weight = scale * value of its code, rounded once; an int8 table would not be exact. Values is a table of floats, or
// minifloats.
template <class CodesOf, class Values, class ScalesOf = GroupScale>
struct CodebookFormat : Values {
  static constexpr Arithmetic kArithmetic = Arithmetic::codebook;
  static constexpr int kZero = 0;
  using Codes = CodesOf;
  using Scales = ScalesOf;
};
struct Normal4 {  // QLoRA's quantiles
  static constexpr float kTable[16] = {
      -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
      -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
      0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
};
struct Normal3 {
  static constexpr float kTable[16] = {-1.0f, -0.4786292016506195f, -0.2171417921781540f, 0.0f, 0.16093020141124725f,
                                       0.33791524171829224f, 0.5626170039176941f, 1.0f};
};
struct BitsandbytesFloat4 {
  static constexpr float kTable[16] = {0.0f,  0.005208333333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
                                       -0.0f, -0.005208333333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};
};
// The upper two bytes of a float32 are linear in the exponent and mantissa of a shorter float, except for subnormals. Holds
// the addends of upper = magnitude >> (Mantissa + 1) and lower = magnitude << (7 - Mantissa), for magnitudes up to 14, and
// from 15 on.
struct UpperBytes {
  uint8_t upper[16], lower[16];
};
constexpr UpperBytes upper_bytes(int mantissa, int bias) {
  UpperBytes r{};
  for (int i = 0; i < 16; ++i) r.upper[i] = uint8_t((127 - bias) / 2);
  r.upper[0] = 0;
  for (int i = 1; i < 1 << mantissa; ++i) {  // i * 2^(1 - bias - mantissa)
    int power = 0;
    while (i >> (power + 1) != 0) ++power;
    const int exponent = 128 - bias - mantissa + power, bits = exponent << 7 | (i - (1 << power)) << (7 - power);
    r.upper[i] = uint8_t(bits >> 8);
    r.lower[i] = uint8_t(bits - (i << (7 - mantissa)));
  }
  return r;
}
// Minifloats with a sign, and exponent and mantissa in Magnitude bits.
template <int Magnitude, int Mantissa, int Bias>
struct Minifloat {
  static_assert(Bias % 2 == 1 && Mantissa < 4, "biases differ by whole steps of the upper byte; subnormals are looked up");
  static constexpr int kMagnitude = Magnitude, kMantissa = Mantissa, kBias = Bias;
  static constexpr UpperBytes kUpperBytes = upper_bytes(Mantissa, Bias);
};

// Every format, once: its name, its struct, and its description.
#define WEIGHT_FORMATS(FORMAT)                                                                                      \
  FORMAT(fp32, Fp32, FloatFormat<4>)                                                                                \
  FORMAT(fp16, Fp16, FloatFormat<2>)                                                                                \
  FORMAT(bf16, Bf16, FloatFormat<2>)                                                                                \
  FORMAT(sym_int8, SymInt8, IntegerFormat<Bytes, 128, GroupScale>)                                                  \
  FORMAT(sym_int4, SymInt4, IntegerFormat<Nibbles, 8, GroupScale>)                                                  \
  FORMAT(asym_int4, AsymInt4, IntegerFormat<Nibbles, 0, GroupScaleAndMinimum>)                                      \
  FORMAT(mxfp4, Mxfp4, IntegerFormat<E2m1, 16, ExponentScale>)                                                      \
  FORMAT(q2_k, Q2K, IntegerFormat<Crumbs, 0, HalfStepsAndMinimums>)                                                 \
  FORMAT(q3_k, Q3K, IntegerFormat<Crumbs3, 4, HalfSteps6>)                                                          \
  FORMAT(q4_k, Q4K, IntegerFormat<Nibbles, 0, StepScaleAndMinimum>)                                                 \
  FORMAT(q5_k, Q5K, IntegerFormat<Nibbles5, 0, StepScaleAndMinimum>)                                                \
  FORMAT(q6_k, Q6K, IntegerFormat<Nibbles6, 32, HalfSteps>)                                                         \
  FORMAT(sym_int5, SymInt5, IntegerFormat<Nibbles5, 16, GroupScale>)                                                \
  FORMAT(asym_int5, AsymInt5, IntegerFormat<Nibbles5, 0, GroupScaleAndMinimum>)                                     \
  FORMAT(iq4_nl, Iq4Nl, IntegerFormat<Iq4, 128, GroupScale>)                                                        \
  FORMAT(iq4_xs, Iq4Xs, IntegerFormat<Iq4, 128, StepScale>)                                                         \
  FORMAT(sym_int3, SymInt3, IntegerFormat<Crumbs3, 4, GroupScale>)                                                  \
  FORMAT(sym_int2, SymInt2, IntegerFormat<Crumbs, 2, GroupScale>)                                                   \
  FORMAT(fp4, Fp4, IntegerFormat<E2m1, 16, HalvedGroupScale>)                                                       \
  FORMAT(nf4, Nf4, CodebookFormat<Nibbles, Normal4>)                                                                \
  FORMAT(nf3, Nf3, CodebookFormat<Crumbs3, Normal3>)                                                                \
  FORMAT(fp6, Fp6, CodebookFormat<Nibbles6, Minifloat<5, 2, 15>>) /* binary16's bias */                             \
  FORMAT(fp8_e4m3, Fp8E4m3, CodebookFormat<Bytes, Minifloat<7, 3, 7>>)                                              \
  FORMAT(fp8_e5m2, Fp8E5m2, CodebookFormat<Bytes, Minifloat<7, 2, 15>>)                                             \
  FORMAT(zero_int4, ZeroInt4, IntegerFormat<Nibbles, 0, GroupScaleAndZero>)                                         \
  FORMAT(zero_int8, ZeroInt8, IntegerFormat<Bytes, 128, GroupScaleAndZero>)                                         \
  FORMAT(bnb_nf4, BnbNf4, CodebookFormat<Nibbles, Normal4, FloatScale>)                                             \
  FORMAT(bnb_fp4, BnbFp4, CodebookFormat<Nibbles, BitsandbytesFloat4, FloatScale>)                                  \
  FORMAT(sym_int8_fp32, SymInt8Fp32, IntegerFormat<Bytes, 128, FloatScale>)                                         \
  FORMAT(fp8_e4m3_fp32, Fp8E4m3Fp32, CodebookFormat<Bytes, Minifloat<7, 3, 15>, FloatScale>) /* binary16's bias */

#define WEIGHT_FORMAT(name, Format, ...) name,
enum class WeightFormat : int32_t { WEIGHT_FORMATS(WEIGHT_FORMAT) };
#undef WEIGHT_FORMAT
#define WEIGHT_FORMAT(name, Format, ...)                        \
  struct Format : __VA_ARGS__ {                                 \
    static constexpr const char* kName = #name;                 \
    static constexpr WeightFormat kFormat = WeightFormat::name; \
  };
WEIGHT_FORMATS(WEIGHT_FORMAT)
#undef WEIGHT_FORMAT
#define WEIGHT_FORMAT(name, Format, ...) Format::kArithmetic != Arithmetic::whole,
constexpr bool kFloatActivations[] = {WEIGHT_FORMATS(WEIGHT_FORMAT)};
#undef WEIGHT_FORMAT
constexpr int kFormats = sizeof(kFloatActivations);
inline bool is_float(WeightFormat f) { return kFloatActivations[int(f)]; }  // activations stay floats

// One value per format, in the order of WeightFormat: Make<Format>::value().
#define WEIGHT_FORMAT(name, Format, ...) Make<Format>::value(),
template <template <class> class Make>
__attribute__((always_inline)) inline auto format_table() {
  using Value = decltype(Make<Fp32>::value());
  struct Table {
    Value of[kFormats];
  };
  return Table{{WEIGHT_FORMATS(WEIGHT_FORMAT)}};
}
#undef WEIGHT_FORMAT

}  // namespace ipex_lookahead
