// Which kernels run here: a list in priority order, best first.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ipex_lookahead {

std::vector<std::string> known_isas();
std::vector<std::string> available_isas();

// What became of AMX here: its self-test, or what is in its way.
std::string amx_state();

// The kernels of `name`; the best available for an empty name. Throws std::invalid_argument where the name is unknown or
// this machine lacks the instructions: a forced ISA never falls back.
const KernelTable* kernels_for(const std::string& name);

}  // namespace ipex_lookahead
