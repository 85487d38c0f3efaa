// Availability of AMX: a processor may have it while the system does not support it, or a hypervisor may report it wrongly.
#pragma once

#include <string>

namespace ipex_lookahead {

// Empty if this process may use tile registers and they compute the same as the scalar kernels; else the reason. The first call
// requests the permission and runs the self-test, which takes a few milliseconds; threads and children inherit the permission.
const std::string& tile_registers_problem();

// Runs test() in a child process. Empty if it returned true; else a message with its result or the signal that ended it.
std::string problem_in_child(bool (*test)());

}  // namespace ipex_lookahead
