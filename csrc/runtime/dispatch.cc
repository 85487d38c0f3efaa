#include "runtime/dispatch.h"

#include <stdexcept>

#include "runtime/cpu_features.h"
#include "runtime/tile_registers.h"

namespace ipex_lookahead {
namespace {

struct Entry {
  const char* name;
  const KernelTable* (*table)();
  bool available;
  std::string problem;  // why the ISA is unavailable although the processor may have it
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
#ifdef HAS_AMX_INT8  // compilers before gcc 11 cannot build it; avx512_vnni is used then
      {"amx_int8", amx_int8_kernels, tile_registers_problem().empty(),
       cpu_features().amx_int8 ? tile_registers_problem() : ""},
#endif
      {"avx512_vnni", avx512_vnni_kernels, cpu_features().avx512_vnni, ""},
#ifdef HAS_AVX_VNNI  // likewise; avx2 is used then
      {"avx_vnni", avx_vnni_kernels, cpu_features().avx_vnni, ""},
#endif
      {"avx2", avx2_kernels, cpu_features().avx2, ""},
      {"scalar", scalar_kernels, true, ""},
  };
  return all;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& n : names) text += (text.empty() ? "" : ", ") + n;
  return text;
}

}  // namespace

std::vector<std::string> known_isas() {
  std::vector<std::string> names;
  for (const auto& e : entries()) names.emplace_back(e.name);
  return names;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const auto& e : entries())
    if (e.available) names.emplace_back(e.name);
  return names;
}

std::string amx_state() {
#ifdef HAS_AMX_INT8
  return tile_registers_problem().empty() ? "its self-test passed" : tile_registers_problem();
#else
  return "the compiler of this build does not have it";
#endif
}

const KernelTable* kernels_for(const std::string& name) {
  for (const auto& e : entries()) {
    if (name.empty() ? e.available : name == e.name) {
      if (!e.available)
        throw std::invalid_argument("instruction set '" + name + "' is not available on this processor" +
                                    (e.problem.empty() ? "" : " (" + e.problem + ")") +
                                    "; available: " + joined(available_isas()));
      return e.table();
    }
  }
  throw std::invalid_argument("instruction set '" + name + "' is not known; available: " + joined(available_isas()));
}

}  // namespace ipex_lookahead
