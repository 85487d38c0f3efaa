// Dispatch of the searches in searcher.h and minimum_searcher.h to the instruction sets of this CPU.
#include "weights/search.h"

#include "weights/minimum_searcher.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define IPEX_LOOKAHEAD_TWINS 1
#endif

namespace ipex_lookahead {
namespace {

#if defined(IPEX_LOOKAHEAD_TWINS)
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) void search_16(
    const Search& s, const float* values, const float* importance, int64_t blocks, int64_t repeated,
    const FoundParts& out) {
  MinimumSearcher<16>(s).run(values, importance, blocks, repeated, out);
}

__attribute__((target("avx2"))) void search_8(const Search& s, const float* values, const float* importance,
                                              int64_t blocks, int64_t repeated, const FoundParts& out) {
  MinimumSearcher<8>(s).run(values, importance, blocks, repeated, out);
}
#endif

}  // namespace

int most_search_lanes() {
#if defined(IPEX_LOOKAHEAD_TWINS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return 16;
  if (__builtin_cpu_supports("avx2")) return 8;
#endif
  return 4;
}

void search_blocks(const Search& search, const float* values, const float* importance, int64_t blocks, int64_t repeated,
                   int lanes, const FoundParts& out) {
#if defined(IPEX_LOOKAHEAD_TWINS)
  if (lanes == 16) return search_16(search, values, importance, blocks, repeated, out);
  if (lanes == 8) return search_8(search, values, importance, blocks, repeated, out);
#endif
  MinimumSearcher<4>(search).run(values, importance, blocks, repeated, out);
}

}  // namespace ipex_lookahead
