#include "runtime/dispatch.h"

#include <stdexcept>

#include "runtime/cpu_features.h"

namespace ipex_lookahead {
namespace {

struct Entry {
  const char* name;
  const KernelTable* (*table)();
  bool available;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {"avx512_vnni", avx512_vnni_kernels, cpu_features().avx512_vnni},
#ifdef HAS_AVX_VNNI  // compilers before gcc 11 cannot build it; avx2 serves then
      {"avx_vnni", avx_vnni_kernels, cpu_features().avx_vnni},
#endif
      {"avx2", avx2_kernels, cpu_features().avx2},
      {"scalar", scalar_kernels, true},
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

const KernelTable* kernels_for(const std::string& name) {
  for (const auto& e : entries()) {
    if (name.empty() ? e.available : name == e.name) {
      if (!e.available)
        throw std::invalid_argument("instruction set '" + name + "' is not available on this processor; available: " +
                                    joined(available_isas()));
      return e.table();
    }
  }
  throw std::invalid_argument("instruction set '" + name + "' is not known; available: " + joined(available_isas()));
}

}  // namespace ipex_lookahead
