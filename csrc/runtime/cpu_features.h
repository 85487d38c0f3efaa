// Features of this processor and operating system (cpuid and xgetbv).
#pragma once

namespace ipex_lookahead {

struct CpuFeatures {
  bool avx2 = false;         // with fma and f16c, registers saved by the system
  bool avx_vnni = false;     // avx2 with 256-bit integer dot products
  bool avx512_vnni = false;  // avx512 f, bw, vl, dq and vnni
  bool amx_int8 = false;     // avx512_vnni with tile registers and their int8 dot products
  bool tiles_saved = false;  // the system saves tile registers for processes with its permission
};

const CpuFeatures& cpu_features();

}  // namespace ipex_lookahead
