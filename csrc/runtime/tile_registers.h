// Whether AMX can be used: the processor may have it and the system not, or a hypervisor report what it does not run.
#pragma once

#include <string>

namespace ipex_lookahead {

// Empty where this process may use tile registers and they compute what the scalar kernels do; else what is in the way.
// The first call asks the system for the process's permission and tries them, in a few milliseconds; threads and children
// inherit the permission.
const std::string& tile_registers_problem();

// What is wrong with test() as a child process finds it: empty, that it is false, or the signal that it ends with.
std::string problem_in_child(bool (*test)());

}  // namespace ipex_lookahead
