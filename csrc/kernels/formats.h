// The weight formats as the kernels read them: one struct a format, made of how a tile holds its codes (Codes), what a
// code stands for (its value less kZero), and where its scales come from (Scales). A new format is a struct and its name
// in FormatList; how it looks in a file stands in weights/records.h.
//
// Types and constants alone: every instruction set compiles this in its own way (generic/codes.inl, generic/scales.inl).
#pragma once

#include <cstdint>
#include <type_traits>

namespace ipex_lookahead {

enum class WeightFormat : int32_t {
  fp32, fp16, bf16, sym_int8, sym_int4, asym_int4, mxfp4, q2_k, q3_k, q4_k, q5_k, q6_k, sym_int5, asym_int5, iq4_nl, iq4_xs,
  sym_int3, sym_int2, fp4, nf4, nf3, fp6, fp8_e4m3, fp8_e5m2, zero_int4, zero_int8, bnb_nf4, bnb_fp4, sym_int8_fp32,
  fp8_e4m3_fp32
};

// Codes: 16 outputs x 32 inputs in kBytes. A tile unpacks into eight rows of 64 bytes, byte j of row c being output j / 4,
// input 4 c + j % 4. kMost is the largest unsigned code: it decides how many products fit 16 bits where there is no VNNI.
struct Bytes {  // [8][64]
  static constexpr int kBytes = 512, kMost = 255;
};
struct Nibbles {  // [4][64]: row c low, row c + 4 high
  static constexpr int kBytes = 256, kMost = 15;
};

struct Nibbles5 {  // [4][64] as Nibbles, then [64]: bit c is the fifth of row c
  static constexpr int kBytes = 320, kMost = 31;
};
struct Nibbles6 {  // [4][64] as Nibbles, then [2][64]: two bits of rows 4 h ... 4 h + 3, the first row's lowest
  static constexpr int kBytes = 384, kMost = 63;
};
struct Crumbs {  // [2][64]: rows 4 h ... 4 h + 3, the first row's lowest
  static constexpr int kBytes = 128, kMost = 3;
};
struct Crumbs3 {  // [2][64] as Crumbs, then [64]: bit c is the third of row c
  static constexpr int kBytes = 192, kMost = 7;
};
// Nibbles that count the entries of a table of whole numbers. kTable holds value + zero point, which is positive.
struct E2m1 : Nibbles {  // 0, 0.5, 1, 1.5, 2, 3, 4, 6, doubled, then negative
  static constexpr int kMost = 31;
  static constexpr uint8_t kTable[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
};
struct Iq4 : Nibbles {  // llama.cpp's non-linear four bits: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, ...
  static constexpr int kMost = 255;
  static constexpr uint8_t kTable[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
};

// Scales. kBlocks: blocks of 32 inputs that share a binary16 scale of an output, 0 = the matrix's group_blocks. kSteps: bytes
// an output and block beside it. kMinimum: whether there is a second binary16 number, which is added to what codes are
// multiplied to; or, where kZeroPoint, a whole number that is taken from the codes before.
struct GroupScale {  // value = scale * code
  static constexpr int kBlocks = 0, kSteps = 0;
  static constexpr bool kMinimum = false;
};
struct GroupScaleAndMinimum {  // scale * code + minimum
  static constexpr int kBlocks = 0, kSteps = 0;
  static constexpr bool kMinimum = true;
};
struct HalvedGroupScale : GroupScale {};  // scale / 2 * code
struct GroupScaleAndZero {  // scale * (code - zero), zero a whole number
  static constexpr int kBlocks = 0, kSteps = 0;
  static constexpr bool kMinimum = true;
};
struct FloatScale {  // scale * code, scale a float32 for two blocks: its four bytes, lowest first, [4][16]
  static constexpr int kBlocks = 2, kSteps = 2;
  static constexpr bool kMinimum = false;
};
struct ExponentScale {  // 2^(step - 128) * code
  static constexpr int kBlocks = 0, kSteps = 1;
  static constexpr bool kMinimum = false;
};
struct StepScale {  // scale * (step - 32) * code
  static constexpr int kBlocks = 8, kSteps = 1;
  static constexpr bool kMinimum = false;
};
struct StepScaleAndMinimum {  // scale * step * code + minimum * second step
  static constexpr int kBlocks = 8, kSteps = 2;
  static constexpr bool kMinimum = true;
};
struct HalfSteps {  // scale * step * code, a signed step for each half of a block
  static constexpr int kBlocks = 8, kSteps = 2;
  static constexpr bool kMinimum = false;
};
struct HalfSteps6 {  // scale * (step - 32) * code, six bits: for 8 blocks [8][16] low nibbles of both, [4][16] the rest
  static constexpr int kBlocks = 8, kSteps = 2;
  static constexpr bool kMinimum = false;
};
struct HalfStepsAndMinimums {  // scale * (step & 15) * code + minimum * (step >> 4), a step for each half of a block
  static constexpr int kBlocks = 8, kSteps = 2;
  static constexpr bool kMinimum = true;
};
template <class Scales>
constexpr int64_t step_bytes(int64_t blocks) {  // of one tile
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

// How a product is taken: of floats; of whole numbers, activations quantised to int8; of floats that codes stand for.
enum class Arithmetic { floats, whole, codebook };

template <int Size>
struct FloatFormat {
  static constexpr Arithmetic kArithmetic = Arithmetic::floats;
  static constexpr int kSize = Size;  // bytes of a weight
};
template <class CodesOf, int Zero, class ScalesOf>
struct IntegerFormat {
  static constexpr Arithmetic kArithmetic = Arithmetic::whole;
  static constexpr int kZero = Zero;
  using Codes = CodesOf;
  using Scales = ScalesOf;
};
// A weight is scale * what its code stands for, rounded once; no table of int8 would be exact to the definition.
template <class CodesOf, class ScalesOf = GroupScale>
struct CodebookFormat {
  static constexpr Arithmetic kArithmetic = Arithmetic::codebook;
  static constexpr int kZero = 0;
  using Codes = CodesOf;
  using Scales = ScalesOf;
};
// The upper two bytes of a float32 are linear in exponent and mantissa of a shorter one, but for the subnormals: what is to be
// added to upper = magnitude >> (Mantissa + 1) and lower = magnitude << (7 - Mantissa), for magnitudes up to 14, and from 15 on.
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
// Floats of a sign, and of exponent and mantissa in Magnitude bits.
template <class CodesOf, int Magnitude, int Mantissa, int Bias, class ScalesOf = GroupScale>
struct MinifloatFormat : CodebookFormat<CodesOf, ScalesOf> {
  static_assert(Bias % 2 == 1 && Mantissa < 4, "biases differ by whole steps of the upper byte; subnormals are looked up");
  static constexpr int kMagnitude = Magnitude, kMantissa = Mantissa;
  static constexpr UpperBytes kUpperBytes = upper_bytes(Mantissa, Bias);
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

struct Mxfp4 : IntegerFormat<E2m1, 16, ExponentScale> {
  static constexpr const char* kName = "mxfp4";
};
struct Q2K : IntegerFormat<Crumbs, 0, HalfStepsAndMinimums> {
  static constexpr const char* kName = "q2_k";
};
struct Q3K : IntegerFormat<Crumbs3, 4, HalfSteps6> {
  static constexpr const char* kName = "q3_k";
};
struct Q4K : IntegerFormat<Nibbles, 0, StepScaleAndMinimum> {
  static constexpr const char* kName = "q4_k";
};
struct Q5K : IntegerFormat<Nibbles5, 0, StepScaleAndMinimum> {
  static constexpr const char* kName = "q5_k";
};
struct Q6K : IntegerFormat<Nibbles6, 32, HalfSteps> {
  static constexpr const char* kName = "q6_k";
};
struct SymInt5 : IntegerFormat<Nibbles5, 16, GroupScale> {
  static constexpr const char* kName = "sym_int5";
};
struct AsymInt5 : IntegerFormat<Nibbles5, 0, GroupScaleAndMinimum> {
  static constexpr const char* kName = "asym_int5";
};
struct Iq4Nl : IntegerFormat<Iq4, 128, GroupScale> {
  static constexpr const char* kName = "iq4_nl";
};
struct Iq4Xs : IntegerFormat<Iq4, 128, StepScale> {
  static constexpr const char* kName = "iq4_xs";
};
struct SymInt3 : IntegerFormat<Crumbs3, 4, GroupScale> {
  static constexpr const char* kName = "sym_int3";
};
struct SymInt2 : IntegerFormat<Crumbs, 2, GroupScale> {
  static constexpr const char* kName = "sym_int2";
};
struct Fp4 : IntegerFormat<E2m1, 16, HalvedGroupScale> {
  static constexpr const char* kName = "fp4";
};
template <class ScalesOf>
struct Normal4 : CodebookFormat<Nibbles, ScalesOf> {  // QLoRA's table
  static constexpr float kTable[16] = {
      -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
      -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
      0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
};
struct Nf4 : Normal4<GroupScale> {
  static constexpr const char* kName = "nf4";
};
struct Nf3 : CodebookFormat<Crumbs3> {
  static constexpr const char* kName = "nf3";
  static constexpr float kTable[16] = {-1.0f, -0.4786292016506195f, -0.2171417921781540f, 0.0f, 0.16093020141124725f,
                                       0.33791524171829224f, 0.5626170039176941f, 1.0f};
};
struct Fp6 : MinifloatFormat<Nibbles6, 5, 2, 15> {  // binary16's bias
  static constexpr const char* kName = "fp6";
};
struct Fp8E4m3 : MinifloatFormat<Bytes, 7, 3, 7> {
  static constexpr const char* kName = "fp8_e4m3";
};
struct Fp8E5m2 : MinifloatFormat<Bytes, 7, 2, 15> {
  static constexpr const char* kName = "fp8_e5m2";
};
struct ZeroInt4 : IntegerFormat<Nibbles, 0, GroupScaleAndZero> {
  static constexpr const char* kName = "zero_int4";
};
struct ZeroInt8 : IntegerFormat<Bytes, 128, GroupScaleAndZero> {
  static constexpr const char* kName = "zero_int8";
};
struct BnbNf4 : Normal4<FloatScale> {
  static constexpr const char* kName = "bnb_nf4";
};
struct BnbFp4 : CodebookFormat<Nibbles, FloatScale> {
  static constexpr const char* kName = "bnb_fp4";
  static constexpr float kTable[16] = {0.0f,  0.005208333333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
                                       -0.0f, -0.005208333333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};
};
struct SymInt8Fp32 : IntegerFormat<Bytes, 128, FloatScale> {
  static constexpr const char* kName = "sym_int8_fp32";
};
struct Fp8E4m3Fp32 : MinifloatFormat<Bytes, 7, 3, 15, FloatScale> {  // binary16's bias
  static constexpr const char* kName = "fp8_e4m3_fp32";
};

template <class... Each>
struct Formats {
  static constexpr int kCount = sizeof...(Each);
  static constexpr bool kFloat[] = {Each::kArithmetic != Arithmetic::whole...};
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
using FormatList = Formats<Fp32, Fp16, Bf16, SymInt8, SymInt4, AsymInt4, Mxfp4, Q2K, Q3K, Q4K, Q5K, Q6K, SymInt5, AsymInt5,
                           Iq4Nl, Iq4Xs, SymInt3, SymInt2, Fp4, Nf4, Nf3, Fp6, Fp8E4m3, Fp8E5m2, ZeroInt4, ZeroInt8, BnbNf4,
                           BnbFp4, SymInt8Fp32, Fp8E4m3Fp32>;  // in WeightFormat's order

constexpr int kFormats = FormatList::kCount;
inline bool is_float(WeightFormat f) { return FormatList::kFloat[int(f)]; }  // whether its activations stay floats

}  // namespace ipex_lookahead
