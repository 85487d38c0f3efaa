// Selection of the kernels: a list in priority order, best first.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ipex_lookahead {

std::vector<std::string> known_isas();
std::vector<std::string> available_isas();

// State of AMX on this machine: the result of its self-test, or why it is not available.
std::string amx_state();

// The kernels of `name`; the best available ones for an empty name. Throws std::invalid_argument if the name is unknown or this
// machine lacks the instructions: a requested ISA never falls back.
const KernelTable* kernels_for(const std::string& name);

}  // namespace ipex_lookahead
